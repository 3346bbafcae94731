"""Delivery of parked messages that are due: reads their records and stores them in their real topic.

Knows nothing of time. Follows DeliverDelayedMessageTimerTask.messageTimeup (RocketMQ 4.9.8): the delivered record keeps all
properties, those of the parking too, and its born time and host; its tag code is the hash of its tag again.
Differs: a message that can never be delivered is skipped with a warning and stays in its parking queue (4.9.8 retries it for ever,
and everything behind it waits); a deleted real topic is created again only where a send would create it, otherwise its messages are
copied to ``TRANS_CHECK_MAX_TIME_TOPIC`` with the reason; a queue number that the topic does not have is taken modulo the number of
its queues, so that consumers find the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from halfmoon.broker.names import EXPIRED_TOPIC, FORBIDDEN_TO_SEND, check_topic
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.topics import Topics
from halfmoon.broker.transactions.late_decisions import REASON
from halfmoon.errors import BrokerError, CorruptRecord, MessageRefused, SystemBusy, UsageError
from halfmoon.hot import Draft, Parts, property_of
from halfmoon.instant import Instant
from halfmoon.store.entries import QueueEntry
from halfmoon.store.records import tag_hash_of, whole_record
from halfmoon.store.store import Store
from halfmoon.wire.codes import TRANSACTION_MASK
from halfmoon.wire.properties import with_pairs

_QUEUE_DIGITS_MAX = 9
_CREATING_MAX = 1000
"""Queues that are created in the background at a time; one more is created when it is needed, which waits."""


class Due(NamedTuple):
    """A message that is due: its parking queue entry, its real topic and queue, and the record to store."""

    entry: QueueEntry
    topic: str
    queue_id: int
    draft: Draft


def in_order(messages: Iterable[Due | None]) -> list[Due]:
    """Return messages grouped by topic and queue, in which order they are stored; None is left out."""
    by_queue: dict[tuple[str, int], list[Due]] = {}
    for message in messages:
        if message is not None:
            by_queue.setdefault((message.topic, message.queue_id), []).append(message)
    return [due for group in by_queue.values() for due in group]


class Deliveries:
    """Stores messages that are due. ``delivered`` and ``skipped`` count since the start."""

    def __init__(self, settings: BrokerSettings, store: Store, topics: Topics, sends: Sends, warn: Callable[..., None]) -> None:
        self._settings, self._store, self._topics, self._sends, self._warn = settings, store, topics, sends, warn
        self._creating: set[tuple[str, int]] = set()
        self.on_created: Callable[[], None] = lambda: None
        """Called when a missing queue was created."""
        self.delivered = self.skipped = 0

    def read(self, entries: Iterable[QueueEntry]) -> list[Due]:
        """Return the messages of entries, in the order in which they are stored: by topic and queue, each as it was parked.

        Those that can never be delivered are left out. The order depends on the records alone, so a restart repeats it.
        """
        return in_order(self.read_one(entry) for entry in entries)

    def read_one(self, entry: QueueEntry) -> Due | None:
        """Return the message of an entry; None: it can never be delivered."""
        parts = self.parts(entry) if entry.size else None
        return None if parts is None else self.due(entry, parts)

    def parts(self, entry: QueueEntry) -> Parts | None:
        """Return the record of an entry; None, with a warning, when it cannot be read."""
        record = self._store.record(entry.physical_offset, entry.size)
        if record is None:
            self._skip(entry, "its record is no longer in the log")
            return None
        try:
            return whole_record(record)
        except CorruptRecord as exc:
            self._skip(entry, f"its record is damaged: {exc}")
            return None

    def due(self, entry: QueueEntry, parts: Parts) -> Due | None:
        """Return the message of a record as it is to be delivered; None, with a warning, when it names no topic and queue."""
        properties = parts.properties
        topic = (property_of(properties, b"REAL_TOPIC") or b"").decode("utf-8", "replace")
        queue = property_of(properties, b"REAL_QID") or b""
        if not queue.isdigit() or len(queue) > _QUEUE_DIGITS_MAX or int(queue) >= self._settings.queues_max:
            self._skip(entry, f"it names no queue in REAL_QID: {queue[:50]!r}")
            return None
        if self._topics.get(topic) is None or topic in FORBIDDEN_TO_SEND:
            try:
                check_topic(topic)
            except BrokerError as exc:
                self._skip(entry, f"it names no topic in REAL_TOPIC: {exc}")
                return None
            if topic in FORBIDDEN_TO_SEND:
                self._skip(entry, f"messages may not be delivered to {topic}")
                return None
        draft = (
            parts.body, properties, parts.flag, parts.sys_flag & ~TRANSACTION_MASK, parts.born_ms, parts.born_host,
            parts.reconsume_times, 0, tag_hash_of(properties),
        )  # fmt: skip
        return Due(entry, topic, int(queue), draft)

    def _skip(self, entry: QueueEntry, reason: str) -> None:
        self.skipped += 1
        self._warn("the parked message at %d of the log is skipped: %s", entry.physical_offset, reason)

    def gone(self, level: int, first: int, end: int) -> None:
        """Log that messages of a level were lost with their log file: the log keeps its files for a limited time."""
        self._warn("delay level %d: messages from %d to %d were lost, their log file is expired", level, first, end)

    # ------------------------------------------------------------ storing

    def store(self, messages: Sequence[Due], now: int) -> list[Due]:
        """Store messages that `read` returned, a queue at a time; return those that cannot be stored now."""
        left: list[Due] = []
        start, skipped = 0, self.skipped
        while start < len(messages):
            topic, queue_id = messages[start].topic, messages[start].queue_id
            stop = start + 1
            while stop < len(messages) and messages[stop].queue_id == queue_id and messages[stop].topic == topic:
                stop += 1
            left += self._store_group(topic, queue_id, messages[start:stop], now)
            start = stop
        self.delivered += len(messages) - len(left) - (self.skipped - skipped)
        return left

    def _store_group(self, topic: str, queue_id: int, group: Sequence[Due], now: int) -> Sequence[Due]:
        born = self._topics.accepts_from(topic)
        if born and (old := [due for due in group if due.entry.physical_offset < born]):
            young = [due for due in group if due.entry.physical_offset >= born]
            return [*self._expire(topic, old, now), *(self._store_group(topic, queue_id, young, now) if young else ())]
        try:
            place = self.place_of(topic, queue_id, now)
        except BrokerError as exc:  # there are too many topics: skipped, so that no other message waits for that
            for due in group:
                self._skip(due.entry, f"its topic {topic} was deleted and cannot be created again: {exc}")
            return ()
        try:
            if not self.ready(topic, place):
                return group
            self._sends.append(topic, place, [due.draft for due in group], now)
        except (MessageRefused, UsageError) as exc:
            return self._one_by_one(topic, queue_id, group, now, exc)
        except BrokerError as exc:
            self._warn("%d messages to %s are due and cannot be delivered now: %s", len(group), topic, exc)
            return group
        return ()

    def is_void(self, topic: str, physical_offset: int) -> bool:
        """Return whether the topic of a delayed message was deleted after it was accepted: then it is not delivered."""
        return physical_offset < self._topics.accepts_from(topic)

    def _expire(self, topic: str, group: Sequence[Due], now: int) -> Sequence[Due]:
        """Keep messages to a deleted topic as expired ones; return those that cannot be stored now."""
        reason = self._topics.gone(topic)
        drafts = [
            (*draft[:1], with_pairs(draft[1], {REASON: reason}), *draft[2:7], entry.physical_offset, draft[8])
            for entry, _, _, draft in group
        ]
        try:
            self._topics.ensure(EXPIRED_TOPIC, 1, now)
            if not self.ready(EXPIRED_TOPIC, 0):
                return group
            self._sends.append(EXPIRED_TOPIC, 0, drafts, now)
        except (MessageRefused, SystemBusy) as exc:
            if len(group) > 1:
                return [left for due in group for left in self._expire(topic, [due], now)]
            self._skip(group[0].entry, f"{reason}, and it cannot be kept in {EXPIRED_TOPIC}: {exc}")
            return ()
        except BrokerError as exc:
            self._warn("%d messages to %s are due and cannot be kept now: %s", len(group), topic, exc)
            return group
        self.skipped += len(group)
        self._warn("%d delayed messages are kept in %s instead of being delivered: %s", len(group), EXPIRED_TOPIC, reason)
        return ()

    def _one_by_one(self, topic: str, queue_id: int, group: Sequence[Due], now: int, exc: Exception) -> list[Due]:
        if len(group) == 1:
            self._skip(group[0].entry, str(exc))
            return []
        return [left for due in group for left in self._store_group(topic, queue_id, [due], now)]

    def place_of(self, topic: str, queue_id: int, now: int) -> int:
        """Return the queue that takes the message. Raises SystemBusy when a deleted topic cannot be created again."""
        config = self._topics.get(topic) or self._topics.ensure(topic, max(queue_id + 1, 4), now)
        count = max(config.read_queue_nums, config.write_queue_nums)
        return queue_id if queue_id < count or count < 1 else queue_id % count

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether a queue takes messages without waiting; else it is being created.

        It is created only now, when it is needed: an Apache broker begins an empty queue at offset 1.
        """
        key = (topic, queue_id)
        if key in self._creating:
            return False
        if self._sends.ready(topic, queue_id) or len(self._creating) >= _CREATING_MAX:
            return True
        self._creating.add(key)

        def created(error: Exception | None, now: Instant) -> None:
            self._creating.discard(key)
            self.on_created()

        self._store.make_ready(topic, queue_id, created)
        return False
