"""Redelivery: messages that a group could not consume are delivered again from its retry topic, and end as dead letters.

A group sends a message back by its physical offset (36), or, if that is refused, publishes it to its retry topic itself. The copy
waits on a delay level that grows with each attempt. Decides and stores; delays are those of `halfmoon.broker.delay.delay`.

Follows SendMessageProcessor.asyncConsumerSendMsgBack and handleRetryAndDLQ (RocketMQ 4.9.8).
Differs: a group can only send back what it consumes, so that no client fills another group's topics; a message that was consumed
from a dead-letter topic is retried like a new one; a reason from the client is stored with the message; with sync flush the copy is
durable before the reply; a retry topic with fewer queues than its group's setting loses nothing; a message that a client publishes
for the last time becomes a dead letter at once, where the original delays it first; sending back creates no group.
"""

from __future__ import annotations

import logging

import msgspec

from halfmoon.broker.context import Context
from halfmoon.broker.delay.delay import Delays
from halfmoon.broker.delay.properties import ASKED
from halfmoon.broker.names import (
    DEAD_PREFIX,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from halfmoon.broker.request import Handlers, Reply, Request
from halfmoon.broker.saving import saved_later
from halfmoon.broker.send.sends import SendHeaderOf, Sends
from halfmoon.broker.service import Service
from halfmoon.broker.topics import UNIT_SUB
from halfmoon.errors import BadMessage, BrokerError, CorruptRecord, GroupNotFound, MessageRefused, NoPermission
from halfmoon.hot import Draft, Parts, tag_hash
from halfmoon.limits import TOPIC_LENGTH_MAX
from halfmoon.model import RECONSUME_REASON, one_line
from halfmoon.store.records import whole_record
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import SubscriptionGroupConfig
from halfmoon.wire.codes import TRANSACTION_MASK, VERSION_V3_4_9, Perm
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from halfmoon.wire.properties import with_pairs, without
from halfmoon.wire.record import decode_record

log = logging.getLogger("halfmoon.broker")

FIRST_LEVEL = 3
"""Delay level of the first redelivery; each further one waits a level longer."""

_NEVER_CONSUMED = frozenset((HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))
_OF_THE_LAST_WAIT = frozenset((
    b"DELAY", b"REAL_TOPIC", b"REAL_QID", b"WAIT", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"TIMER_OUT_MS",
    b"__STARTDELIVERTIME",
))  # fmt: skip


class RedeliveredCopy(msgspec.Struct):
    """A message as it is stored again: where, on which delay level (0: at once), and for whom it is counted."""

    topic: str
    queue_id: int
    level: int
    draft: Draft
    counted: str


class Redelivery(Service):
    """The service that answers 36 and looks at sends to retry topics."""

    def __init__(self, context: Context, sends: Sends, delays: Delays) -> None:
        self._settings, self._store, self._topics, self._groups = context.settings, context.store, context.topics, context.groups
        self._clients, self._offsets, self._stats, self._random = context.clients, context.offsets, context.stats, context.random
        self._queue_waiters, self._sends, self._delays = context.queue_waiters, sends, delays

    def handlers(self) -> Handlers:
        """Return the handler of each request that it answers."""
        return {
            ConsumerSendMsgBack: self.send_back,
        }

    # ------------------------------------------------------------ sent back

    @saved_later("the next message that is given back makes its topic again")
    def send_back(self, request: Request) -> Reply | None:
        """Store a message again that a group could not consume (36), or refuse it; nothing changes then."""
        header = request.header(ConsumerSendMsgBack)
        config = self._groups.get(header.group)
        if config is None:
            raise GroupNotFound(f"subscription group not exist, {header.group}")
        if not self._settings.permission & Perm.WRITE:
            raise NoPermission(f"the broker[{self._settings.address}] sending message is forbidden")
        if config.retry_queue_nums <= 0:
            return Reply()  # the group wants no redelivery
        parts, message_id = self._given(header)
        copy = self._copy(header, config, parts, message_id, request)
        place = (SCHEDULE_TOPIC, copy.level - 1) if copy.level else (copy.topic, copy.queue_id)
        if self._sends.ready(*place):
            self._store_copy(request, copy)
        else:
            self._queue_waiters.wait(request, *place, self.send_back)
        return None

    def _given(self, header: ConsumerSendMsgBack) -> tuple[Parts, str]:
        """Return the message that is sent back and its broker's id.

        Raises BrokerError when there is none, when the group does not consume it, or when it is not the one that the client means.
        """
        record = self._store.record(header.offset) if header.offset >= 0 else None
        if record is None:
            raise BrokerError(f"look message by offset failed, {header.offset}")
        try:
            parts, message_id = whole_record(record), decode_record(record).offset_msg_id
        except (CorruptRecord, BadMessage) as exc:
            raise BrokerError(f"look message by offset failed, {header.offset}: {exc}") from exc
        if not self._consumes(header.group, parts.topic):
            raise BrokerError(f"the group {header.group} does not consume topic {parts.topic}, its message is not taken back")
        known = {message_id, (wire_properties.value_of(parts.properties, b"UNIQ_KEY") or b"").decode(errors="replace")}
        if header.origin_msg_id and header.origin_msg_id not in known:
            raise BrokerError(f"the message at {header.offset} is not {header.origin_msg_id}")
        return parts, message_id

    def _consumes(self, group: str, topic: str) -> bool:
        if topic.startswith(RETRY_PREFIX) or topic in _NEVER_CONSUMED:
            return topic == retry_topic(group)
        info = self._clients.group(group)
        return (info is not None and topic in info.subscriptions) or bool(self._offsets.queues(group, topic))

    def _copy(
        self, header: ConsumerSendMsgBack, config: SubscriptionGroupConfig, parts: Parts, message_id: str, request: Request
    ) -> RedeliveredCopy:
        again = parts.topic == retry_topic(header.group)
        times = max(0, parts.reconsume_times) if again else 0
        most = _times_max(config, header.max_reconsume_times, request.command.version)
        queue_id = self._retry_queue(header, config, request.now.date)
        if times >= most or header.delay_level < 0:
            topic, queue_id, level = self._dead_letters(header.group, request.now.date), 0, 0
        else:
            topic, level = retry_topic(header.group), self._delays.capped(header.delay_level or FIRST_LEVEL + times)
        origin = (again and wire_properties.value_of(parts.properties, b"RETRY_TOPIC")) or parts.topic.encode()
        name = origin.decode(errors="replace")
        draft = _draft(parts, _properties(parts, message_id, name, header.reason), times + 1)
        return RedeliveredCopy(topic, queue_id, level, draft, f"{name}@{header.group}")

    def _retry_queue(self, header: ConsumerSendMsgBack, config: SubscriptionGroupConfig, now: int) -> int:
        """Return a queue of the group's retry topic, created if it is missing. Raises BrokerError, NoPermission."""
        topic = retry_topic(header.group)
        if len(topic) > TOPIC_LENGTH_MAX:
            raise BrokerError(f"the group {header.group} has too long a name for a retry topic")
        retry = self._topics.ensure(topic, config.retry_queue_nums, now, sys_flag=UNIT_SUB if header.unit_mode else 0)
        if not retry.perm & Perm.WRITE or retry.write_queue_nums < 1:
            raise NoPermission(f"the topic[{topic}] sending message is forbidden")
        return self._random.randrange(min(config.retry_queue_nums, retry.write_queue_nums, max(1, retry.read_queue_nums)))

    def _dead_letters(self, group: str, now: int) -> str:
        """Return the topic of a group's dead letters, created if it is missing."""
        return self._topics.ensure(dead_letter_topic(group), 1, now).topic_name

    def _store_copy(self, request: Request, copy: RedeliveredCopy) -> None:
        if copy.level:
            appended = self._delays.park(copy.topic, copy.queue_id, copy.level, copy.draft, request.now.date)
        else:
            appended = self._sends.append(copy.topic, copy.queue_id, [copy.draft], request.now.date)
        self._stats.add("SNDBCK_PUT_NUMS", copy.counted, 1)
        if copy.topic.startswith(DEAD_PREFIX):
            log.info("dead letter: topic=%s origin=%s times=%d", copy.topic, copy.counted, copy.draft[6])
        self._sends.stored(request, copy.queue_id, appended, wait=True)

    # ------------------------------------------------------------ published by the client itself

    def published(self, request: Request, header: SendHeaderOf) -> SendHeaderOf:
        """Return a send to a retry topic as it is to be carried out: to the dead letters if it was tried often enough.

        Raises GroupNotFound (26) for a group that does not exist and may not be created.
        """
        group = header.topic[len(RETRY_PREFIX) :]
        config = self._groups.existing(group, request.now.date)
        most = _times_max(config, header.max_reconsume_times, request.command.version)
        if (header.reconsume_times or 0) < most:
            return header
        kept = without((header.properties or "").encode(), ASKED | {b"DELAY"})
        topic = self._dead_letters(group, request.now.date)
        return msgspec.structs.replace(header, topic=topic, queue_id=0, properties=kept.decode())


def _times_max(config: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """Return the maximum of attempts: that of the client if it is new enough to send one, else the group's setting."""
    return config.retry_max_times if asked is None or version < VERSION_V3_4_9 else asked


def _properties(parts: Parts, message_id: str, origin: str, reason: str | None) -> bytes:
    """Return the copy's properties. Raises MessageRefused when there is no room for those that a redelivery needs."""
    kept = without(parts.properties, _OF_THE_LAST_WAIT)
    first_id = (wire_properties.value_of(kept, b"ORIGIN_MESSAGE_ID") or message_id.encode()).decode(errors="replace")
    pairs = {"RETRY_TOPIC": origin, "ORIGIN_MESSAGE_ID": first_id}
    line = one_line(reason or "")
    if line:
        pairs[RECONSUME_REASON] = line
    properties = with_pairs(kept, pairs)
    if wire_properties.value_of(properties, b"ORIGIN_MESSAGE_ID") is None:
        raise MessageRefused(f"the message's properties leave no room to deliver it again: {len(kept)} bytes")
    return properties


def _draft(parts: Parts, properties: bytes, times: int) -> Draft:
    tag = wire_properties.value_of(properties, b"TAGS")
    code = tag_hash(tag) if tag else 0
    sys_flag = parts.sys_flag & ~TRANSACTION_MASK  # a committed message's copy is no second visible message of its transaction
    return parts.body, properties, parts.flag, sys_flag, parts.born_ms, parts.born_host, times, 0, code
