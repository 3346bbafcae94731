"""Pulls: who may read which queue, with which filter, and what is answered. Waiting is kept in `halfmoon.broker.pull.hold`.

Follows PullMessageProcessor (RocketMQ 4.9.8).
Differs: half messages and their op records are nobody's to read; a pull with an expression of an unknown kind, or that does not
parse, is refused, not answered unfiltered, and so is one by a class filter; code 21 leaves no record in OFFSET_MOVED_EVENT; a pull
parks in the turn that found nothing; one that waits with an SQL92 expression moves on over what does not match; a negative number
of messages asked for counts as one.
"""

from __future__ import annotations

import msgspec

from halfmoon.broker.context import Context
from halfmoon.broker.names import BATCH_TOPIC, HALF_TOPIC, OP_TOPIC
from halfmoon.broker.pull.filters import NO_CLASS_FILTERS, Filters, Wanted
from halfmoon.broker.pull.hold import Hold, Holds
from halfmoon.broker.request import Handlers, Request
from halfmoon.broker.topics import FAQ, check_birth
from halfmoon.errors import (
    BrokerError,
    NoPermission,
    ServiceNotAvailable,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SystemBusy,
)
from halfmoon.hot import PullHeader, pull_head
from halfmoon.model import MessageModel
from halfmoon.store.store import ReadResult, ReadStatus
from halfmoon.wire.bodies import TopicConfig
from halfmoon.wire.codes import VERSION, Perm
from halfmoon.wire.headers.pull import LitePullMessage, PullMessage
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
"""Response code by what the store found; the status of an empty queue depends on the offset asked for."""

EMPTY_QUEUE = ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)
"""A queue of an existing topic that never had a message: the store does not know it, the original makes it when it is asked."""

_PLANS_MAX, _PLANS_CHARACTERS_MAX = 16_384, 1_000_000
"""Plans that are remembered, and characters of their expressions: hashes of tags take up to 40 bytes for each."""
_REMEMBERED_MAX = 512
_CHARACTERS_OF_ROOM = 256
"""A pull that waits takes the room of one more for each so many characters that it brought."""

HOLD_MS_MAX = 3_600_000
"""Longest that a pull waits, whatever it asks for."""

LAST_MS = 2**62
"""A time behind all others: a broker that stops says it, so that no pull waits any more."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of messages for one connection in one turn; beyond them each further pull gets one message, so that pulls that come by the
hundred do not pile up more than a connection may leave unread."""


class Plan(msgspec.Struct):
    """What is known of one (group, topic, expression) until topics, groups or clients change."""

    queue_count: int
    birth_ms: int | None  # of the topic
    wanted: Wanted
    codes: frozenset[int] | None  # hashes of tags of which a message must have one to be of interest; None: any may be
    by_properties: bool  # so that reading takes its time


class Waiting(msgspec.Struct, eq=False):
    """A pull under way: whom to answer, what was asked, from which queue offset it reads now, and until when it may wait.

    ``plan`` None: nobody has looked at it yet, for the turn in which it came had no time left.
    """

    peer: Peer
    opaque: int
    serialization: int
    header: PullHeader
    plan: Plan | None
    offset: int
    until_ms: int
    held: bool = False


class Pulls:
    """The service that hands out messages."""

    def __init__(self, context: Context, holds: Holds) -> None:
        self._settings, self._store, self._topics, self._groups = context.settings, context.store, context.topics, context.groups
        self._clients, self._offsets, self._stats, self._stale = context.clients, context.offsets, context.stats, context.stale
        self._peers, self._holds = context.peers, holds
        self.filters = Filters(context.settings, context.clients)
        self._now = 0
        self._plans: dict[tuple[str, str, str | None, str | None, int], Plan] = {}
        self._plans_characters = 0
        self._epoch = -1

    def handlers(self) -> Handlers:
        """Return what answers which request."""
        return {
            PullMessage: self.request,
            LitePullMessage: self.request,
        }

    def request(self, request: Request) -> None:
        """Answer one pull that was decoded by itself (11, 361). Raises BrokerError."""
        header = fields_used(request.header(PullMessage))
        if not request.command.is_oneway:
            self.pull(request.peer, request.command.opaque, request.command.serialization, header, request.now)

    def pull(self, peer: Peer, opaque: int, serialization: int, header: PullHeader, now: int) -> None:
        """Answer one pull, or let it wait. Raises BrokerError with the refusal's code."""
        if header.sysFlag & CLASS_FILTER:
            raise BrokerError(NO_CLASS_FILTERS)
        plan = self._plan(header, now)
        if plan is None:
            if not self._put_off(Waiting(peer, opaque, serialization, header, None, header.queueOffset, 0)):
                raise SystemBusy("[OVERLOAD]system busy, start flow control for a while: too many expressions are to be read")
            return
        if header.topicBirthMs is not None:
            check_birth(header.topic, plan.birth_ms, header.topicBirthMs)
        if not 0 <= header.queueId < plan.queue_count:
            raise BrokerError(
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{plan.queue_count}] consumer:[{peer.remote}]"
            )
        if self._stale.anew and header.topicBirthMs is None and self._sent_elsewhere(peer, opaque, serialization, header, plan):
            return
        if header.sysFlag & COMMIT:
            self._commit(peer, header)
        wait_ms = header.suspendTimeoutMillis if self._settings.long_polling else self._settings.short_polling_ms
        until_ms = now + min(wait_ms, HOLD_MS_MAX) if header.sysFlag & SUSPEND else 0
        self._serve(Waiting(peer, opaque, serialization, header, plan, header.queueOffset, until_ms), plan)

    def _sent_elsewhere(self, peer: Peer, opaque: int, serialization: int, header: PullHeader, plan: Plan) -> bool:
        """Answer a pull at an offset of a deleted topic as one behind the end is answered: with code 21, and where to go on."""
        topic, queue_id, group = header.topic, header.queueId, header.consumerGroup
        if not self._stale.suspect(peer, topic):
            return False
        begin = self._offsets.get(group, topic, queue_id)
        lowest, end = max(0, self._store.queue_min(topic, queue_id)), max(0, self._store.queue_max(topic, queue_id))
        begin = lowest if begin is None else begin
        if not self._stale.elsewhere(peer, topic, queue_id, group, header.queueOffset, begin):
            return False
        found = ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, begin, lowest, end, [], 0, 0)
        self._answer(Waiting(peer, opaque, serialization, header, plan, header.queueOffset, 0), found)
        return True

    def _commit(self, peer: Peer, header: PullHeader) -> None:
        """Store the progress that rides on a pull.

        Differs: it never takes progress back; the original lets a pull that is late undo what was stored since, and the next owner
        of the queue begins too early. Clients that go back say so with a request of its own (15).
        """
        if header.topicBirthMs is None and self._stale.ignores(
            peer, header.topic, header.queueId, header.consumerGroup, header.commitOffset
        ):
            return
        known = self._offsets.get(header.consumerGroup, header.topic, header.queueId)
        if known is None or header.commitOffset > known:
            self._offsets.put(header.consumerGroup, header.topic, header.queueId, header.commitOffset)

    def stepped(self, by_ms: int) -> None:
        """The clock was set: pulls that wait for a message wait as long as they would have."""
        for hold in self._holds.stepped(by_ms):
            hold.pull.until_ms += by_ms

    def turn(self, now: int) -> None:
        """A turn of the loop begins, or a tick: tests of properties may take their time again."""
        self._now = now
        self.filters.turn()

    def go_on(self, hold: Hold) -> None:
        """Go on with a pull that waited: for messages, for the end of its time, or for its turn."""
        waiting: Waiting = hold.pull
        if waiting.peer.closing:
            return
        if waiting.plan is None:
            if self._now >= LAST_MS:
                raise ServiceNotAvailable("the broker stops")
            self.pull(waiting.peer, waiting.opaque, waiting.serialization, waiting.header, self._now)
        else:
            if waiting.header.topicBirthMs is not None:  # others are answered 21 when the topic went meanwhile, as by Apache
                config = self._topics.existing(waiting.header.topic)
                check_birth(config.topic_name, config.birth_ms, waiting.plan.birth_ms)
            self._serve(waiting, waiting.plan)

    def _serve(self, waiting: Waiting, plan: Plan) -> None:
        """Answer a pull with what is there, or let it wait."""
        if plan.by_properties and self.filters.budget.left <= 0 and self._put_off(waiting):
            return
        header, peer = waiting.header, waiting.peer
        count = header.maxMsgNums if header.maxMsgNums > 1 and peer.out_bytes < ANSWER_BYTES_MAX else 1
        found = self._store.read(header.topic, header.queueId, waiting.offset, count, plan.wanted)
        if found.pieces:
            self._answer(waiting, found)
            return
        if found.status is ReadStatus.NO_MATCHED_LOGIC_QUEUE:
            found = EMPTY_QUEUE
        if waiting.until_ms > self._now and self._waits(waiting, plan, found) and self._hold(waiting, waiting.until_ms):
            waiting.held = True
            return
        if waiting.held and found.status is ReadStatus.OFFSET_OVERFLOW_ONE and waiting.offset != waiting.header.queueOffset:
            found = found._replace(status=ReadStatus.NO_MATCHED_MESSAGE)  # it was moved on while it waited
        self._answer(waiting, found)

    def _waits(self, waiting: Waiting, plan: Plan, found: ReadResult) -> bool:
        """Whether a pull that found this may wait: for the first time when there is nothing new, and again when what woke it is not
        what it wants, which only reading can tell; it is moved on over that.
        """
        if not waiting.held:
            return _code(found, waiting.header) == 19
        all_seen = found.status is ReadStatus.NO_MATCHED_MESSAGE and found.next_offset == found.max_offset
        if plan.by_properties and all_seen:
            waiting.offset = found.next_offset
            return True
        return False

    def _put_off(self, waiting: Waiting) -> bool:
        """Go on with a pull in the next turn: others have used up what tests may take in this one."""
        return self._now < LAST_MS and self._hold(waiting, self._now)

    def _hold(self, waiting: Waiting, until_ms: int) -> bool:
        header, codes = waiting.header, waiting.plan.codes if waiting.plan is not None else None
        room = 1 + (len(header.subscription or "") + len(header.topic) + len(header.consumerGroup)) // _CHARACTERS_OF_ROOM
        key = (header.topic, header.queueId)
        return self._holds.park(Hold(waiting.peer.number, key, waiting.offset, codes, until_ms, waiting, room=room))

    # ------------------------------------------------------------ who may read

    def _plan(self, header: PullHeader, now: int) -> Plan | None:
        """Return what is known of a pull, or found out now; None: that may take time of which this turn has no more."""
        epoch = self._topics.epoch + self._groups.epoch + self._clients.epoch  # each of them only grows
        if epoch != self._epoch or len(self._plans) > _PLANS_MAX or self._plans_characters > _PLANS_CHARACTERS_MAX:
            self._plans.clear()
            self._plans_characters = 0
            self._epoch = epoch
        carried = header.sysFlag & SUBSCRIPTION
        key = (
            header.consumerGroup, header.topic, header.subscription if carried else None,
            header.expressionType if carried else None, -1 if carried else header.subVersion,
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            if self.filters.budget.left <= 0 and (not carried or header.expressionType == "SQL92"):
                return None
            plan = self._make_plan(header, now)
            characters = len(header.subscription or "")
            if characters <= _REMEMBERED_MAX:
                self._plans[key] = plan
                self._plans_characters += characters
        return plan

    def _make_plan(self, header: PullHeader, now: int) -> Plan:
        if not self._settings.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._settings.address}] pulling message is forbidden")
        group = self._groups.existing(header.consumerGroup, now)
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {header.consumerGroup}")
        topic = self.readable(header.topic)
        wanted: Wanted = self.filters.of_retries(header.consumerGroup, header.topic)
        if wanted is not None:
            pass  # what is said of the topic where its messages were first counts
        elif header.sysFlag & SUBSCRIPTION:
            wanted = self.filters.of_expression(header.topic, header.subscription, header.expressionType, header.consumerGroup)
        else:
            info = self._clients.group(header.consumerGroup)
            if info is None:
                raise SubscriptionNotFound(f"the consumer's group info not exist{FAQ}")
            if info.model == MessageModel.BROADCASTING and not group.consume_broadcast_enable:
                raise NoPermission(f"the consumer group[{header.consumerGroup}] can not consume by broadcast way")
            known = info.subscriptions.get(header.topic)
            if known is None:
                raise SubscriptionNotFound(f"the consumer's subscription not exist{FAQ}")
            if known.version < header.subVersion:
                raise SubscriptionNotLatest("the consumer's subscription not latest")
            wanted = self.filters.of_subscription(known, header.consumerGroup)
        codes = wanted if isinstance(wanted, frozenset) else None
        return Plan(topic.read_queue_nums, topic.birth_ms, wanted, codes, by_properties=wanted is not codes)

    def readable(self, name: str, *, half_messages: bool = False) -> TopicConfig:
        """Return a topic that may be read here, or by an audit of half messages. Raises TopicNotFound, NoPermission."""
        if not self._settings.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._settings.address}] pulling message is forbidden")
        topic = self._topics.existing(name)
        audited = half_messages and name in (HALF_TOPIC, OP_TOPIC)
        if audited and not self._settings.half_messages_readable:
            raise NoPermission(f"the topic[{name}] may not be read by audits here: half_messages_readable=false")
        if not topic.perm & Perm.READ or (name in (HALF_TOPIC, OP_TOPIC, BATCH_TOPIC) and not audited):
            raise NoPermission(f"the topic[{name}] pulling message is forbidden")
        return topic

    # ------------------------------------------------------------ answers

    def _answer(self, waiting: Waiting, found: ReadResult) -> None:
        header, code = waiting.header, _code(found, waiting.header)
        if self._stale.anew:
            self._stale.told(waiting.peer, header.topic, header.queueId, found.next_offset, header.consumerGroup)
        if found.count:
            self._stats.moved(header.topic, header.consumerGroup, found.count, found.size_bytes)
        birth_ms = None if header.topicBirthMs is None or waiting.plan is None else waiting.plan.birth_ms or 0
        status, next_offset, low, high, pieces, _, size_bytes = found
        remark, offsets = "FOUND" if pieces else status.name, (next_offset, low, high)
        head = pull_head(waiting.opaque, waiting.serialization, code, remark, offsets, birth_ms, size_bytes, VERSION)
        waiting.peer.out_bytes += size_bytes
        self._peers.answers(waiting.peer, [head, *pieces])


def fields_used(sent: PullMessage) -> PullHeader:
    """Return the fields of a pull. Raises BrokerError 1 for one that is missing and that its bits say is used.

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


def _code(found: ReadResult, header: PullHeader) -> int:
    if found.pieces:
        return 0
    code = CODES.get(found.status)
    if code is None:  # an empty queue
        return 21 if header.queueOffset != 0 else 19
    return code
