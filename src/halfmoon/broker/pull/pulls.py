"""Pulls: who may read which queue, with which filter, and the reply. Pulls that wait are in `halfmoon.broker.pull.hold`.

Follows PullMessageProcessor (RocketMQ 4.9.8).
Differs: consumers cannot read half messages and op records; a pull with a class filter, with an expression of an unknown type or
one that does not parse is refused, not answered unfiltered; code 21 leaves no record in OFFSET_MOVED_EVENT; a pull is held in the
turn that found nothing; a held pull with an SQL92 expression moves on over messages that do not match; a negative number of
messages counts as one; at a slave a pull behind the end of the copy is held, where the original has the client ask again at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from halfmoon.broker.access.accounts import Account
from halfmoon.broker.consumers.groups import OF_TOOLS
from halfmoon.broker.context import Context
from halfmoon.broker.metrics import declared as metrics
from halfmoon.broker.names import BATCH_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.broker.pull.filters import NO_CLASS_FILTERS, Filters, Wanted
from halfmoon.broker.pull.hold import EXPIRED_A_TICK, Hold, Holds
from halfmoon.broker.request import Handlers, Reply, Request, refusal_of, reply_head, reply_to
from halfmoon.broker.send.pending_replies import refused
from halfmoon.broker.service import Service, handled_last
from halfmoon.broker.topics import FAQ, check_birth
from halfmoon.errors import (
    AccessRefused,
    BrokerError,
    NoPermission,
    ServiceNotAvailable,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SystemBusy,
)
from halfmoon.hot import Frame, PullHeader, pull_head, pull_header_json
from halfmoon.instant import LONG_AGO, Instant, Steady, instant
from halfmoon.metrics import Samples
from halfmoon.model import MessageModel
from halfmoon.store.store import ReadResult, ReadStatus
from halfmoon.wire.bodies import SubscriptionGroupConfig, TopicConfig
from halfmoon.wire.codes import JSON, VERSION, Perm
from halfmoon.wire.command import encode
from halfmoon.wire.headers.pull import LitePullMessage, PullMessage, PullMessageReply
from halfmoon.wire.peer import Peer

COMMIT, SUSPEND, SUBSCRIPTION, CLASS_FILTER = 1, 2, 4, 8
"""Bits of a pull's sysFlag."""

CODES = {
    ReadStatus.FOUND: 0,
    ReadStatus.NO_MATCHED_MESSAGE: 20,
    ReadStatus.MESSAGE_WAS_REMOVING: 20,
    ReadStatus.OFFSET_FOUND_NULL: 19,
    ReadStatus.OFFSET_OVERFLOW_BADLY: 21,
    ReadStatus.OFFSET_OVERFLOW_ONE: 19,
    ReadStatus.OFFSET_TOO_SMALL: 21,
}
"""Response codes; that of an empty queue depends on the requested offset."""

EMPTY_QUEUE = ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)
"""A queue of an existing topic that never had a message: the store does not know it. The original creates it when it is pulled."""

_PLANS_MAX, _PLANS_CHARACTERS_MAX = 16_384, 1_000_000
"""Cached plans, and characters of their expressions: hashes of tags take up to 40 bytes for each."""
_REMEMBERED_MAX = 512
_CHARACTERS_OF_ROOM = 256
"""A held pull counts as one more for each so many characters that it brought."""

HOLD_MS_MAX = 3_600_000
"""Longest time that a pull is held, whatever it asks for."""

"""A time behind all others: a stopping broker uses it, so that no pull is held any more."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of messages for one connection in one turn; beyond them each further pull gets one message, so that pulls that come by the
hundred do not pile up more than a connection may leave unread."""


class PullPlan(msgspec.Struct):
    """How one (group, topic, expression) is read; valid until topics, groups or clients change."""

    queue_count: int
    birth_ms: int | None  # of the topic
    wanted: Wanted
    codes: frozenset[int] | None  # hashes of tags of which a message must have one; None: any message may match
    by_properties: bool  # so that reading is slow
    epoch: int  # of topics and groups: while it is that, they may be read


class Pull(msgspec.Struct, eq=False):
    """A pull in progress: the peer, the request, the queue offset from which it reads now, and until when it may be held.

    ``plan`` None: not looked at yet, for the turn in which it came had no time left. ``account``: whose it is, if that is checked.
    """

    peer: Peer
    opaque: int
    serialization: int
    header: PullHeader
    plan: PullPlan | None
    offset: int
    until: Steady
    account: Account | None
    held: bool = False


class Pulls(Service):
    """The service that answers pulls (11, 361)."""

    plans_characters_max = _PLANS_CHARACTERS_MAX
    answer_bytes_max = ANSWER_BYTES_MAX
    expired_a_tick = EXPIRED_A_TICK

    def __init__(self, context: Context, holds: Holds) -> None:
        self._settings, self._store, self._topics, self._groups = context.settings, context.store, context.topics, context.groups
        self._clients, self._offsets, self._stats, self._peers = context.clients, context.offsets, context.stats, context.peers
        self._stale_offsets, self._holds, self._access = context.stale_offsets, holds, context.access
        self.filters = Filters(context.settings, context.clients)
        self._is_master = context.settings.broker_id == 0
        self._now, self._is_stopping, self._has_stopped = instant(0), False, False
        self.plans: dict[tuple[str, str, str | None, str | None, int], PullPlan] = {}
        self._plans_characters = 0
        self._epoch = -1

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            PullMessage: self.request,
            LitePullMessage: self.request,
        }

    @handled_last
    def request(self, request: Request) -> None:
        """Answer a pull that was decoded by itself. Raises BrokerError."""
        header = fields_used(request.header(PullMessage))
        if not request.command.is_oneway:
            command = request.command
            self.pull(request.peer, command.opaque, command.serialization, header, request.now, request.account)

    def pull(
        self, peer: Peer, opaque: int, serialization: int, header: PullHeader, now: Instant, account: Account | None = None
    ) -> None:  # fmt: skip
        """Answer a pull, or hold it. Raises BrokerError."""
        if header.sysFlag & CLASS_FILTER:
            raise BrokerError(NO_CLASS_FILTERS)
        plan = self._plan(header, now)
        if plan is None:
            if not self._defer(Pull(peer, opaque, serialization, header, None, header.queueOffset, LONG_AGO, account)):
                raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many expressions are to be parsed")
            return
        if header.topicBirthMs is not None:
            check_birth(header.topic, plan.birth_ms, header.topicBirthMs)
        if not 0 <= header.queueId < plan.queue_count:
            raise BrokerError(
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{plan.queue_count}] consumer:[{peer.remote}]"
            )
        may_be_stale = bool(self._stale_offsets.newest_before) and header.topicBirthMs is None
        if may_be_stale and self._redirected(peer, opaque, serialization, header, plan):
            return
        if header.sysFlag & COMMIT and self._is_master:
            self._commit(peer, header)
        wait_ms = header.suspendTimeoutMillis if self._settings.long_polling else self._settings.short_polling_ms
        until = now.steady + min(wait_ms, HOLD_MS_MAX) if header.sysFlag & SUSPEND else LONG_AGO
        self._serve(Pull(peer, opaque, serialization, header, plan, header.queueOffset, until, account), plan)

    def _redirected(self, peer: Peer, opaque: int, serialization: int, header: PullHeader, plan: PullPlan) -> bool:
        """Answer a pull at an offset of a deleted topic like one behind the end: with code 21, and where to continue."""
        topic, queue_id, group = header.topic, header.queueId, header.consumerGroup
        if not self._stale_offsets.suspect(peer, topic):
            return False
        begin = self._offsets.get(group, topic, queue_id)
        lowest, end = max(0, self._store.queue_min(topic, queue_id)), max(0, self._store.queue_max(topic, queue_id))
        begin = lowest if begin is None else begin
        if not self._stale_offsets.must_restart(peer, topic, queue_id, group, header.queueOffset, begin):
            return False
        result = ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, begin, lowest, end, [], 0, 0)
        self._answer(Pull(peer, opaque, serialization, header, plan, header.queueOffset, LONG_AGO, None), result)
        return True

    def _commit(self, peer: Peer, header: PullHeader) -> None:
        """Store the progress that a pull carries; not while progress cannot be saved, which the member's own report (15) is told.

        Differs: it never moves progress back. In the original a late pull undoes what was stored since, and the next owner of the
        queue begins too early. Clients that want to go back send a request of its own (15).
        """
        if header.topicBirthMs is None and self._stale_offsets.is_stale(
            peer, header.topic, header.queueId, header.consumerGroup, header.commitOffset
        ):
            return
        known = self._offsets.get(header.consumerGroup, header.topic, header.queueId)
        if (known is None or header.commitOffset > known) and self._offsets.can_be_saved:
            self._offsets.put(header.consumerGroup, header.topic, header.queueId, header.commitOffset)

    # ------------------------------------------------------------ what happens to the broker

    def read(self, peer: Peer, data: bytes, frame: Frame, now: Instant) -> bool:
        """Answer a pull with an ordinary JSON header; return False for one that must be decoded, or checked, by itself."""
        serialization, start, body, _ = frame
        fields = pull_header_json(data[start:body]) if serialization == JSON and self._access is None else None
        if fields is None or fields[1] & 3 or peer.closing:  # an odd header, a reply, or one-way
            return False
        opaque, _, header = fields
        try:
            self.pull(peer, opaque, JSON, header, now)
        except Exception as exc:
            self._refuse(peer, opaque, JSON, refusal_of(exc, f"a pull of {peer.remote}"))
        return True

    def arrived(self) -> None:
        """Resume the pulls that waited for messages which are visible now."""
        for arrival in self._store.arrivals():
            topic, queue_id, max_offset, _ = arrival
            if self._holds.of_queue(topic, queue_id):
                self._resume(self._holds.arrived(topic, queue_id, max_offset, arrival.tag_codes))

    def samples(self, broker: tuple[str], now: Instant) -> Samples:
        """Yield how many pulls are held."""
        yield metrics.HOLDS, broker, self._holds.count

    def due(self, now: Instant) -> Steady | None:
        """Return when the first held pull must be answered."""
        return self._holds.due()

    def tick(self, now: Instant) -> None:
        """Answer pulls that waited for long enough."""
        self._resume(self._holds.expired(now.steady, self.expired_a_tick))

    def lost(self, peer: int, *, by_us: bool) -> None:
        """Forget the held pulls of a connection, and the offsets that it got."""
        self._holds.lost(peer)
        self._stale_offsets.lost(peer)

    def topic_deleted(self, topic: str) -> None:
        """Answer the held pulls of a topic that was deleted."""
        self.filters.forget(topic)
        self._stale_offsets.deleted(topic)
        self._resume(self._holds.of_topic(topic))

    def rules_changed(self) -> None:
        """Refuse the held pulls that are allowed no more."""
        access = self._access
        assert access is not None

        def may_stay(hold: Hold) -> bool:
            pull: Pull = hold.pull
            try:
                access.check_held(pull.account, pull.header.topic, pull.header.consumerGroup, pull.peer)
            except AccessRefused as exc:
                self._refuse(pull.peer, pull.opaque, pull.serialization, exc)
                return False
            return True

        self._holds.refused(may_stay)

    def stop(self, now: Instant) -> None:
        """Answer all held pulls. Later ones that would wait are refused, after which clients pause before they ask again.

        Held until their connection ends, they would keep clients of RocketMQ 4 and Go from pulling for 30 s, their timeout.
        """
        self.turn(now)
        self._is_stopping = True
        self._resume(self._holds.refused(lambda hold: False))
        self._is_stopping, self._has_stopped = False, True

    def turn(self, now: Instant) -> None:
        """Begin a turn of the loop or a tick: property filters get a new budget."""
        self._now = now
        self.filters.turn()
        self.filters.log.tick(now.steady)

    def _resume(self, holds: Iterable[Hold]) -> None:
        """Resume held pulls: messages came, their time is up, or they were deferred."""
        for hold in holds:
            pull: Pull = hold.pull
            try:
                self._go_on(pull)
            except Exception as exc:
                self._refuse(pull.peer, pull.opaque, pull.serialization, refusal_of(exc, f"a held pull of {pull.peer.remote}"))

    def _refuse(self, peer: Peer, opaque: int, serialization: int, error: BrokerError) -> None:
        self._peers.refuse(peer, encode(reply_to(opaque, serialization, refused(error))), error.code)

    def _go_on(self, pull: Pull) -> None:
        if pull.peer.closing:
            return
        if pull.plan is None:
            if self._is_stopping:
                raise ServiceNotAvailable("the broker is stopping")
            self.pull(pull.peer, pull.opaque, pull.serialization, pull.header, self._now, pull.account)
        else:
            if pull.header.topicBirthMs is not None:  # other clients get 21 if the topic was deleted meanwhile, as from Apache
                config = self._topics.existing(pull.header.topic)
                check_birth(config.topic_name, config.birth_ms, pull.plan.birth_ms)
            if pull.plan.epoch != self._topics.epoch + self._groups.epoch:
                self._check_still_readable(pull.header)
            self._check_allowed(pull.header)
            self._serve(pull, pull.plan)

    def _serve(self, pull: Pull, plan: PullPlan) -> None:
        """Answer a pull with the messages that there are, or hold it."""
        if plan.by_properties and self.filters.budget.left <= 0 and self._defer(pull):
            return
        header, peer = pull.header, pull.peer
        count = header.maxMsgNums if header.maxMsgNums > 1 and peer.out_bytes < self.answer_bytes_max else 1
        result = self._store.read(header.topic, header.queueId, pull.offset, count, plan.wanted)
        if result.pieces:
            self._stats.reads_found += 1
            self._answer(pull, result)
            return
        self._stats.reads_missed += 1
        if result.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE:
            result = EMPTY_QUEUE
        if (
            not self._is_master and pull.offset > result.max_offset
        ):  # 21 would send back a group that has read further at the master
            result = result._replace(status=ReadStatus.OFFSET_OVERFLOW_ONE, next_offset=pull.offset)
        if pull.until > self._now.steady and self._waits(pull, plan, result) and self._hold(pull, pull.until):
            pull.held = True
            return
        if pull.held and result.status is ReadStatus.OFFSET_OVERFLOW_ONE and pull.offset != pull.header.queueOffset:
            result = result._replace(status=ReadStatus.NO_MATCHED_MESSAGE)  # it was moved on while it waited
        self._answer(pull, result)

    def _waits(self, pull: Pull, plan: PullPlan, result: ReadResult) -> bool:
        """Whether a pull with this result may be held: the first time if there is nothing new.

        Later, if the messages that woke it do not match, which only reading can tell: it moves on over them.
        """
        if not pull.held:
            return _code(result, pull.header) == 19
        all_seen = result.status is ReadStatus.NO_MATCHED_MESSAGE and result.next_offset == result.max_offset
        if plan.by_properties and all_seen:
            pull.offset = result.next_offset
            return True
        return False

    def _defer(self, pull: Pull) -> bool:
        """Continue a pull in the next turn: others have used up the budget of this one."""
        # A stopping broker has no next turn.
        return self._hold(pull, self._now.steady)

    def _hold(self, pull: Pull, until: Steady) -> bool:
        if self._is_stopping:
            return False
        if self._has_stopped:
            raise ServiceNotAvailable("the broker is stopping")
        header, codes = pull.header, pull.plan.codes if pull.plan is not None else None
        room = 1 + (len(header.subscription or "") + len(header.topic) + len(header.consumerGroup)) // _CHARACTERS_OF_ROOM
        key = (header.topic, header.queueId)
        return self._holds.park(Hold(pull.peer.number, key, pull.offset, codes, until, pull, room=room))

    # ------------------------------------------------------------ who may read

    def _plan(self, header: PullHeader, now: Instant) -> PullPlan | None:
        """Return the plan of a pull, from the cache or made now; None: making it may take more time than this turn has left."""
        epoch = self._topics.epoch + self._groups.epoch + self._clients.epoch  # each of them only grows
        if epoch != self._epoch or len(self.plans) > _PLANS_MAX or self._plans_characters > self.plans_characters_max:
            self.plans.clear()
            self._plans_characters = 0
            self._epoch = epoch
        carried = header.sysFlag & SUBSCRIPTION
        # The version counts only where the subscription of the heartbeats is used.
        key = (
            header.consumerGroup, header.topic, header.subscription if carried else None,
            header.expressionType if carried else None, -1 if carried else header.subVersion,
        )  # fmt: skip
        plan = self.plans.get(key)
        if plan is None:
            if self.filters.budget.left <= 0 and (not carried or header.expressionType == "SQL92"):
                return None
            plan = self._make_plan(header, now)
            characters = len(header.subscription or "")
            if characters <= _REMEMBERED_MAX:
                self.plans[key] = plan
                self._plans_characters += characters
        return plan

    def _make_plan(self, header: PullHeader, now: Instant) -> PullPlan:
        if not self._settings.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._settings.address}] pulling message is forbidden")
        group = self._groups.existing(header.consumerGroup, now.date)
        self._check_group(group)
        topic = self.readable(header.topic)
        self._check_allowed(header)
        info = self._clients.group(header.consumerGroup)
        if info is None and self._settings.reject_pull_consumers and header.consumerGroup not in OF_TOOLS:
            raise SubscriptionNotFound(f"the consumer's group info not exist, or the pull consumer is rejected by server.{FAQ}")
        wanted: Wanted = self.filters.of_retries(header.consumerGroup, header.topic)
        if wanted is not None:
            pass  # the subscription of their first topic counts
        elif header.sysFlag & SUBSCRIPTION:
            wanted = self.filters.of_expression(header.topic, header.subscription, header.expressionType)
        else:
            if info is None:
                raise SubscriptionNotFound(f"the consumer's group info not exist{FAQ}")
            if info.model == MessageModel.BROADCASTING and not group.consume_broadcast_enable:
                raise NoPermission(f"the consumer group[{header.consumerGroup}] can not consume by broadcast way")
            known = info.subscriptions.get(header.topic)
            if known is None:
                why = f": {different}" if (different := info.difference()) else ""
                raise SubscriptionNotFound(f"the consumer's subscription not exist{why}{FAQ}")
            if known.version < header.subVersion:
                raise SubscriptionNotLatest("the consumer's subscription not latest")
            wanted = self.filters.of_subscription(known)
        codes = wanted if isinstance(wanted, frozenset) else None
        epoch = self._topics.epoch + self._groups.epoch
        return PullPlan(topic.read_queue_nums, topic.birth_ms, wanted, codes, by_properties=wanted is not codes, epoch=epoch)

    def _check_still_readable(self, header: PullHeader) -> None:
        """Check group and topic of a held pull again, as the original does when it wakes one. Raises NoPermission (16)."""
        if (group := self._groups.get(header.consumerGroup)) is not None:
            self._check_group(group)
        if self._topics.get(header.topic) is not None:
            self.readable(header.topic)

    def _check_group(self, group: SubscriptionGroupConfig) -> None:
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {group.group_name}")

    def _check_allowed(self, header: PullHeader) -> None:
        if not self._groups.may_read(header.consumerGroup, header.topic):
            raise NoPermission(f"the consumer group[{header.consumerGroup}] is forbidden for topic[{header.topic}]")

    def readable(self, name: str, *, half_messages: bool = False) -> TopicConfig:
        """Return a topic that consumers, or audits of half messages, may read. Raises TopicNotFound, NoPermission."""
        if not self._settings.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._settings.address}] pulling message is forbidden")
        topic = self._topics.existing(name)
        audited = half_messages and name in (HALF_TOPIC, OP_TOPIC)
        if audited and not self._settings.half_messages_readable:
            raise NoPermission(f"the topic[{name}] is not readable for audits: half_messages_readable=false")
        if not topic.perm & Perm.READ or (name in (HALF_TOPIC, OP_TOPIC, BATCH_TOPIC) and not audited):
            raise NoPermission(f"the topic[{name}] pulling message is forbidden")
        return topic

    # ------------------------------------------------------------ answers

    def _answer(self, pull: Pull, result: ReadResult) -> None:
        header, code = pull.header, _code(result, pull.header)
        if self._stale_offsets.newest_before:
            self._stale_offsets.give(pull.peer, header.topic, header.queueId, result.next_offset, header.consumerGroup)
        if result.count:
            self._stats.moved(header.topic, header.consumerGroup, result.count, result.size_bytes)
            self._stats.read(header.queueId, header.topic, header.consumerGroup)
        birth_ms = None if header.topicBirthMs is None or pull.plan is None else pull.plan.birth_ms or 0
        status, next_offset, low, high, pieces, _, size_bytes = result
        remark, offsets = "FOUND" if pieces else status.name, (next_offset, low, high)
        suggested = self._suggested(header, result) if self._settings.slave_read_enable else 0
        if suggested:
            reply = PullMessageReply(
                suggest_which_broker_id=suggested, next_begin_offset=next_offset, min_offset=low, max_offset=high,
                topic_birth_ms=birth_ms,
            )  # fmt: skip
            head = reply_head(pull.opaque, pull.serialization, Reply(code, remark, reply), size_bytes)
        else:
            head = pull_head(pull.opaque, pull.serialization, code, remark, offsets, birth_ms, size_bytes, VERSION)
        pull.peer.out_bytes += size_bytes
        self._peers.answers(pull.peer, [head, *pieces])

    def _suggested(self, header: PullHeader, result: ReadResult) -> int:
        """Return the id of the broker that a consumer is to ask next: of a slave while it reads what is not in memory here.

        Follows PullMessageProcessor and DefaultMessageStore.getMessage (RocketMQ 4.9.8).
        """
        group = self._groups.get(header.consumerGroup)
        if group is None:
            return 0
        is_near = not result.count or self._store.in_memory(header.topic, header.queueId, result.next_offset - 1)
        return group.broker_id if is_near else group.which_broker_when_consume_slowly


def fields_used(sent: PullMessage) -> PullHeader:
    """Return the fields of a pull. Raises BrokerError 1 if one is missing that its sysFlag says is used.

    Follows PullMessageProcessor (RocketMQ 4.9.7), which fails on such a field only where it reads it.
    """
    used = {"commitOffset": (sent.commit_offset, COMMIT), "suspendTimeoutMillis": (sent.suspend_timeout_millis, SUSPEND)}
    missing = [name for name, (value, bit) in used.items() if value is None and sent.sys_flag & bit]
    if sent.sub_version is None and not sent.sys_flag & SUBSCRIPTION:
        missing.append("subVersion")
    if missing:
        raise BrokerError(f"a pull with sysFlag {sent.sys_flag} needs {', '.join(missing)}")
    return PullHeader(
        sent.consumer_group, sent.topic, sent.queue_id, sent.queue_offset, sent.max_msg_nums, sent.sys_flag,
        sent.commit_offset or 0, sent.suspend_timeout_millis or 0, sent.sub_version or 0, sent.subscription, sent.expression_type,
        sent.topic_birth_ms,
    )  # fmt: skip


def _code(result: ReadResult, header: PullHeader) -> int:
    if result.pieces:
        return 0
    code = CODES.get(result.status)
    if code is None:  # an empty queue
        return 21 if header.queueOffset != 0 else 19
    return code
