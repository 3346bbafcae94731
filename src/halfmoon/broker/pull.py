"""Pulls: who may read which queue, with which filter, and what is answered. Waiting is kept in `halfmoon.broker.hold`.

Follows PullMessageProcessor (RocketMQ 4.9.8).
Differs: half messages and their op records are nobody's to read; a pull with an expression of an unknown kind is refused, not
answered unfiltered; code 21 leaves no record in OFFSET_MOVED_EVENT; a pull parks in the turn that found nothing; a negative number
of messages asked for counts as one.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import msgspec

from halfmoon.broker.acks import reply_to
from halfmoon.broker.clients import Clients
from halfmoon.broker.groups import Groups
from halfmoon.broker.hold import Hold, Holds
from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC
from halfmoon.broker.offsets import Offsets
from halfmoon.broker.request import Reply
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.stats import Stats
from halfmoon.broker.topics import FAQ, Topics
from halfmoon.errors import (
    BrokerError,
    NoPermission,
    SubscriptionNotFound,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
    UsageError,
)
from halfmoon.hot import PullHeader
from halfmoon.model import MessageModel, subscription
from halfmoon.store.store import Found, FoundStatus, Store
from halfmoon.wire.codes import JSON, VERSION, Perm
from halfmoon.wire.command import encode_header
from halfmoon.wire.headers.pull import PullMessage, PullMessageReply
from halfmoon.wire.peer import Peer, Peers

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits of a pull's sysFlag."""

CODES = {
    FoundStatus.FOUND: 0,
    FoundStatus.NO_MATCHED_MESSAGE: 20,
    FoundStatus.MESSAGE_WAS_REMOVING: 20,
    FoundStatus.OFFSET_FOUND_NULL: 19,
    FoundStatus.OFFSET_OVERFLOW_BADLY: 21,
    FoundStatus.OFFSET_OVERFLOW_ONE: 19,
    FoundStatus.OFFSET_TOO_SMALL: 21,
}
"""Response code by what the store found; the status of an empty queue depends on the offset asked for."""

EMPTY_QUEUE = Found(FoundStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0, [], 0, 0)
"""A queue of an existing topic that never had a message: the store does not know it, the original makes it when it is asked."""

_PREFIX = Struct(">ii")
_PLANS_MAX = 16_384
_REMEMBERED_MAX = 512

EXPRESSION_LENGTH_MAX = 32 * 1024
"""Characters of a pull's filter. Thousands of tags fit; a megabyte would stop all others while it is read."""

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of messages for one connection in one turn; beyond them each further pull gets one message, so that pulls that come by the
hundred do not pile up more than a connection may leave unread."""


class Plan(msgspec.Struct):
    """What is known of one (group, topic, expression) until topics, groups or clients change."""

    queue_count: int
    codes: frozenset[int] | None  # tag codes wanted; None: all


class Waiting(msgspec.Struct, eq=False):
    """A pull that is held: whom to answer and what was asked."""

    peer: Peer
    opaque: int
    serialization: int
    header: PullHeader
    plan: Plan


class Pulls:
    """The service that hands out messages."""

    def __init__(
        self, settings: BrokerSettings, store: Store, topics: Topics, groups: Groups, clients: Clients, offsets: Offsets,
        holds: Holds, peers: Peers, stats: Stats,
    ) -> None:  # fmt: skip
        self._settings, self._store, self._topics, self._groups = settings, store, topics, groups
        self._clients, self._offsets, self._holds, self._peers, self._stats = clients, offsets, holds, peers, stats
        self._plans: dict[tuple[str, str, str | None, str | None, int], Plan] = {}
        self._epochs = (-1, -1, -1)

    def pull(self, peer: Peer, opaque: int, serialization: int, header: PullHeader, now: int) -> None:
        """Answer one pull, or let it wait. Raises BrokerError with the refusal's code."""
        plan = self._plan(header, now)
        if not 0 <= header.queueId < plan.queue_count:
            raise BrokerError(
                f"queueId[{header.queueId}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{plan.queue_count}] consumer:[{peer.remote}]"
            )
        found = self._read(header, plan, peer)
        if header.sysFlag & COMMIT:
            self._offsets.put(header.consumerGroup, header.topic, header.queueId, header.commitOffset)
        waiting = Waiting(peer, opaque, serialization, header, plan)
        if header.sysFlag & SUSPEND and _code(found, header) == 19 and self._park(waiting, now):
            return
        self._answer(waiting, found)

    def go_on(self, hold: Hold) -> None:
        """Answer a pull that waited: with messages, or empty when its time is up."""
        waiting: Waiting = hold.pull
        if not waiting.peer.closing:
            self._answer(waiting, self._read(waiting.header, waiting.plan, waiting.peer))

    def _read(self, header: PullHeader, plan: Plan, peer: Peer) -> Found:
        count = header.maxMsgNums if header.maxMsgNums > 1 and peer.out_bytes < ANSWER_BYTES_MAX else 1
        found = self._store.read(header.topic, header.queueId, header.queueOffset, count, plan.codes)
        return EMPTY_QUEUE if found.status is FoundStatus.NO_MATCHED_LOGIC_QUEUE else found

    def _park(self, waiting: Waiting, now: int) -> bool:
        header = waiting.header
        wait_ms = header.suspendTimeoutMillis if self._settings.long_polling else self._settings.short_polling_ms
        if wait_ms <= 0:
            return False
        deadline = now + min(wait_ms, 3_600_000)
        key = (header.topic, header.queueId)
        return self._holds.park(Hold(waiting.peer.number, key, header.queueOffset, waiting.plan.codes, deadline, waiting))

    # ------------------------------------------------------------ who may read

    def _plan(self, header: PullHeader, now: int) -> Plan:
        epochs = (self._topics.epoch, self._groups.epoch, self._clients.epoch)
        if epochs != self._epochs or len(self._plans) > _PLANS_MAX:
            self._plans.clear()
            self._epochs = epochs
        carried = header.sysFlag & SUBSCRIPTION
        key = (
            header.consumerGroup, header.topic, header.subscription if carried else None,
            header.expressionType if carried else None, -1 if carried else header.subVersion,
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan(header, now)
            if len(header.subscription or "") <= _REMEMBERED_MAX:
                self._plans[key] = plan
        return plan

    def _make_plan(self, header: PullHeader, now: int) -> Plan:
        if not self._settings.permission & Perm.READ:
            raise NoPermission(f"the broker[{self._settings.address}] pulling message is forbidden")
        group = self._groups.existing(header.consumerGroup, now)
        if not group.consume_enable:
            raise NoPermission(f"subscription group no permission, {header.consumerGroup}")
        topic = self._topics.existing(header.topic)
        if not topic.perm & Perm.READ or header.topic in (HALF_TOPIC, OP_TOPIC):
            raise NoPermission(f"the topic[{header.topic}] pulling message is forbidden")
        if header.sysFlag & SUBSCRIPTION:
            wanted = self.parsed(header.topic, header.subscription, header.expressionType)
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
            if known.expression_type != "TAG":
                raise BrokerError("The broker does not support consumer to filter message by SQL92")
            wanted = known.codes or None
        return Plan(topic.read_queue_nums, wanted)

    def parsed(self, topic: str, expression: str | None, expression_type: str | None) -> frozenset[int] | None:
        """Return the tag codes of an expression, None for all. Raises SubscriptionParseFailed (23), or 1 for SQL92."""
        if expression_type == "SQL92":
            raise BrokerError("The broker does not support consumer to filter message by SQL92")
        if expression_type not in (None, "", "TAG"):
            raise SubscriptionParseFailed(
                f"parse the consumer's subscription failed: unknown expression type {expression_type[:40]}"
            )
        if len(expression or "") > EXPRESSION_LENGTH_MAX:
            raise SubscriptionParseFailed(f"the consumer's subscription is longer than {EXPRESSION_LENGTH_MAX} characters")
        try:
            return subscription(topic, expression).codes or None
        except UsageError as exc:
            raise SubscriptionParseFailed("parse the consumer's subscription failed") from exc

    # ------------------------------------------------------------ answers

    def _answer(self, waiting: Waiting, found: Found) -> None:
        header, code = waiting.header, _code(found, waiting.header)
        if found.count:
            self._stats.got(header.consumerGroup, header.topic, found.count, found.size_bytes)
        if waiting.serialization == JSON:
            head = (
                f'{{"code":{code},"extFields":{{"suggestWhichBrokerId":"0","nextBeginOffset":"{found.next_offset}",'
                f'"minOffset":"{found.min_offset}","maxOffset":"{found.max_offset}"}},"flag":1,"language":"JAVA",'
                f'"opaque":{waiting.opaque},"remark":"{found.status.name}","serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'
            ).encode()
            size = len(head)
        else:
            head = encode_header(_plain(waiting, found, code))
            size = waiting.serialization << 24 | len(head)
        waiting.peer.out_bytes += found.size_bytes
        self._peers.answers(waiting.peer, [_PREFIX.pack(4 + len(head) + found.size_bytes, size) + head, *found.pieces])


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
    )  # fmt: skip


def _plain(waiting: Waiting, found: Found, code: int) -> Any:
    reply = PullMessageReply(
        suggest_which_broker_id=0, next_begin_offset=found.next_offset, min_offset=found.min_offset, max_offset=found.max_offset
    )
    return reply_to(waiting.opaque, waiting.serialization, Reply(code, found.status.name, reply))


def _code(found: Found, header: PullHeader) -> int:
    code = CODES.get(found.status)
    if code is None:  # an empty queue
        return 21 if header.queueOffset != 0 else 19
    return code
