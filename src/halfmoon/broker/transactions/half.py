"""Half messages: sends with ``TRAN_MSG=true``. `Sends` stores them under a topic that nobody consumes, until they are decided.

A half message is an ordinary record in queue 0 of ``RMQ_SYS_TRANS_HALF_TOPIC`` that remembers in REAL_TOPIC and REAL_QID where it
belongs; its queue offset there is its place in the transaction index. Decides nothing about transactions (see
`halfmoon.broker.transactions.decisions`).

Follows TransactionalMessageBridge.parseHalfMessageInner (RocketMQ 4.9.8).
Differs: a delay on a half message is cleared, as the original's own producer does; there it would park the half message, and no
check would ever see it. A half message without a producer group is refused, for nobody could be asked about it. REAL_TOPIC,
REAL_QID and counts of checks that a sender made up are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

from halfmoon.broker.names import HALF_TOPIC, check_group, check_topic
from halfmoon.broker.request import Request
from halfmoon.broker.send.sends import SendHeaderOf, Sends
from halfmoon.errors import BrokerError, MessageIllegal, MessageRefused, ServiceNotAvailable, StoreNotWritable
from halfmoon.hot import Draft, Group, HalfMessageCache, Messages, Parts, tag_hash
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.store.store import Appended
from halfmoon.store.transactions.index import TransactionIndex
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.codes import TRANSACTION_MASK

PRODUCER_GROUP, REAL_TOPIC, REAL_QUEUE, CHECK_TIMES = "PGROUP", "REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES"
IMMUNITY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
OURS = frozenset({
    REAL_TOPIC, REAL_QUEUE, CHECK_TIMES, "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_EXPIRED_REASON", "TRANSACTION_CHECK_HISTORY",
    "CLUSTER", "MSG_REGION", "TRACE_ON",
})  # fmt: skip
"""Properties of a half message that only the broker gives."""
DELAYS = frozenset({"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME"})
CACHED_MAX, CACHED_BYTES_MAX = 8192, 8 * 1024 * 1024
"""Half messages that are kept in memory, since most are decided within milliseconds of their send."""

Caller = tuple[int, int, int]
"""connection, opaque, serialization"""

Prepared = tuple[bytes, int, bool, str]
"""Properties of a half message ready to be stored, tag code, whether the sender waits for the sync, producer group."""


_group_hash = lru_cache(1024)(tag_hash)
"""Hash of a producer group's name."""


class HalfMessages:
    """Half messages: their properties, the index, and the cache of recent ones.

    ``immunity_seen``: some half message asked for a minimum age of its own.
    """

    def __init__(self, sends: Sends, index: TransactionIndex, warn: Callable[..., None]) -> None:
        self._sends, self.index, self._warn = sends, index, warn
        self.cache = HalfMessageCache(CACHED_MAX, CACHED_BYTES_MAX)
        self._broker_pairs = sends.broker_pairs
        self.stored_count = 0
        self.immunity_seen = index.pending_count > 0

    def draft(self, request: Request, header: SendHeaderOf, suffix: bytes) -> tuple[Draft, bool, str]:
        """Return one half message as it is stored, whether its sender waits for the sync, and its producer group.

        Raises MessageRefused (13) for what it cannot hold.
        """
        properties, code, wait, group = self.prepare((header.properties or "").encode(), header.topic, suffix)
        draft = (
            bytes(request.command.body), properties, header.flag, header.sys_flag & ~TRANSACTION_MASK, header.born_timestamp,
            request.peer.host, header.reconsume_times or 0, 0, code,
        )  # fmt: skip
        return draft, wait, group

    def make_room(self, count: int) -> None:
        """Take the index's space for half messages that are to be stored. Raises ServiceNotAvailable (14) when there is none."""
        try:
            self.index.make_room(count, 0)
        except StoreNotWritable as exc:
            raise ServiceNotAvailable(f"service not available now: {exc}") from exc

    def stored(self, half: Group, appended: Appended, now: int) -> None:
        """Enter half messages of one producer group that the log has. Raises StoreNotWritable."""
        topic, queue_id, group, messages = half
        index, entries = appended.queue_offset, appended.entries
        self.index.prepared(index, entries, now // 1000, _group_hash(group.encode()))
        self.cache.add(index, entries, topic, queue_id, group, messages)
        self.stored_count += len(messages)

    def append(self, half: Group, now: int) -> Appended:
        """Store half messages that nobody waits for. Raises what `make_room`, `Sends.append` and `stored` do."""
        messages = half[3]
        self.make_room(len(messages))
        appended = self._sends.append(HALF_TOPIC, 0, messages, now)
        self.stored(half, appended, now)
        return appended

    # ------------------------------------------------------------ properties

    def prepare(self, text: bytes, topic: str, suffix: bytes) -> Prepared:
        """Return the properties that a half message is stored with, ``suffix`` at their end. Raises MessageRefused (13)."""
        pairs = wire_properties.decode(text)
        group = pairs.get(PRODUCER_GROUP, "")
        if not group:
            raise MessageRefused(f"a half message names its producer group in {PRODUCER_GROUP}: nobody could be asked about it")
        try:
            check_group(group)
        except BrokerError as exc:
            raise MessageRefused(f"no producer can be of the group that {PRODUCER_GROUP} names: {exc.remark}") from exc
        if delays := sorted(DELAYS & pairs.keys()):
            self._warn("a half message to %s asks for a delay (%s), which is cleared", topic, ", ".join(delays))
        if IMMUNITY in pairs:
            self.immunity_seen = True
        wait = pairs.get("WAIT", "true").lower() == "true"
        kept = {name: value for name, value in pairs.items() if name not in OURS and name not in DELAYS}
        tag = pairs.get("TAGS", "")
        try:
            stored = wire_properties.encode(kept) + suffix
        except MessageIllegal as exc:
            raise MessageRefused(f"the message is illegal: {exc}") from exc
        if len(stored) > PROPERTIES_BYTES_MAX:
            raise MessageRefused(f"the message is illegal: its properties take {len(stored)} bytes, over {PROPERTIES_BYTES_MAX}")
        return stored, tag_hash(tag.encode()) if tag else 0, wait, group

    def suffix(self, topic: str, queue_id: int) -> bytes:
        """Return the pairs that say where a half message belongs."""
        return self._broker_pairs + wire_properties.encode({REAL_TOPIC: topic, REAL_QUEUE: str(queue_id)})


def checks_written(parts: Parts) -> int:
    """Return how many checks the record itself counts: another broker copied it at each."""
    text = wire_properties.value_of(parts.properties, CHECK_TIMES.encode()) if CHECK_TIMES.encode() in parts.properties else None
    return int(text) if text is not None and text.isdigit() and len(text) < 6 else 0


class Completion(msgspec.Struct, gc=False):
    """Decision of one producer, or of an operator. ``caller`` None: nobody waits for a reply."""

    caller: Caller | None
    peer: int
    group: str
    index: int
    physical_offset: int
    committed: bool
    key: str = ""
    """The message id in the request."""


class HalfMessage(msgspec.Struct, gc=False):
    """One half message: where it lies, its producer group, where it belongs, and ``message``, which is that one alone."""

    physical_offset: int
    group: str
    topic: str
    queue_id: int
    message: Messages


def real_queue(properties: bytes) -> tuple[str, int]:
    """Return topic and queue where a half message belongs; ("", 0) when it does not say, or names what can be no topic."""
    topic = (wire_properties.value_of(properties, REAL_TOPIC.encode()) or b"").decode("utf-8", "replace")
    queue = wire_properties.value_of(properties, REAL_QUEUE.encode()) or b""
    try:
        check_topic(topic)
    except BrokerError:
        return "", 0
    return (topic, int(queue)) if queue.isdigit() and len(queue) < 10 else ("", 0)


def half_message(parts: Parts) -> HalfMessage:
    """Return a half message as it was stored."""
    tag = wire_properties.value_of(parts.properties, b"TAGS") if b"TAGS\x01" in parts.properties else None
    group = (wire_properties.value_of(parts.properties, PRODUCER_GROUP.encode()) or b"").decode("utf-8", "replace")
    draft = (
        parts.body, parts.properties, parts.flag, parts.sys_flag, parts.born_ms, parts.born_host, parts.reconsume_times, 0,
        tag_hash(tag) if tag else 0,
    )  # fmt: skip
    return HalfMessage(parts.physical_offset, group, *real_queue(parts.properties), Messages([draft]))


def committed(halves: Iterable[HalfMessage]) -> Messages:
    """Return what commits of half messages store."""
    return Messages.committed([(half.message, half.physical_offset) for half in halves])
