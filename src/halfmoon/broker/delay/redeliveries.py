"""`DelayedRedeliveries`: how many delayed messages wait for each retry topic. In memory, 8 bytes a message; derived from the log.

A level delivers in the order of parking, so that the messages that wait are those at or behind its progress: nothing is counted
down. After a start the records of the messages that wait are read, some at a time; until all are, no count is known. One whose
body alone is damaged counts as the others do, until it is passed over; one that does not say whose it is counts as damaged.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate

from halfmoon.broker.delay.level_queue import LevelQueue
from halfmoon.broker.names import RETRY_PREFIX, SCHEDULE_TOPIC
from halfmoon.broker.transactions.half import real_queue
from halfmoon.errors import BadMessage, CorruptRecord
from halfmoon.hot import parts_of
from halfmoon.instant import Steady
from halfmoon.store.entries import QueueEntry, entries_at
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store

READ_AT_ONCE, READ_BYTES_AT_ONCE = 64, 256 * 1024
"""Records that are read at a time after a start, and their bytes, but for one record: about 1 ms."""
READ_PAUSE_MS = 4
"""Pause between two reads after a start: they take a tenth of the time, for some 15,000 messages a second."""
UNKNOWN = ""
"""Stands for the retry topic of a damaged record that does not say it."""
_PRUNED_FROM = 64
"""Length from which on offsets that are delivered are removed when a message is parked."""
_SWEPT_FROM = 1024
"""Retry topics and levels from which on those are forgotten for which nothing waits, when another one comes."""


class DelayedRedeliveries:
    """Queue offsets of parked messages by retry topic and level, in order."""

    def __init__(self, store: Store, lanes: Mapping[int, LevelQueue], warn: Callable[..., None], now: Steady) -> None:
        self._store, self._lanes, self._warn, self._read_at = store, lanes, warn, now
        self._offsets: dict[tuple[str, int], array[int]] = {}
        self._swept_from = _SWEPT_FROM
        self._read: dict[tuple[str, int], array[int]] = {}
        """Those that were parked before the start."""
        ends = ((level, lane.offset, store.queue_max(SCHEDULE_TOPIC, level - 1)) for level, lane in lanes.items())
        self._unread = [(level, begin, end) for level, begin, end in ends if begin < end]

    @property
    def due(self) -> Steady | None:
        """When `read` wants to be called; None: all messages parked before the start are read."""
        return self._read_at if self._unread else None

    @property
    def fault(self) -> str | None:
        """Return a text that counts the messages that wait and are so damaged that nobody knows whose they are; None: none is."""
        count = self.count(UNKNOWN)
        return f"delayed messages that cannot be read, and will not be delivered: {count}" if count else None

    def parked(self, topic: str, level: int, queue_offset: int) -> None:
        """Note a message that was parked now."""
        if not topic.startswith(RETRY_PREFIX):
            return
        if (topic, level) not in self._offsets and len(self._offsets) >= self._swept_from:
            for key in list(self._offsets):
                self._prune(key)
            self._swept_from = max(_SWEPT_FROM, 2 * len(self._offsets))
        offsets = self._offsets.setdefault((topic, level), array("q"))
        if len(offsets) >= _PRUNED_FROM and offsets[len(offsets) // 2] < self._lanes[level].offset:
            del offsets[: bisect_left(offsets, self._lanes[level].offset)]
        offsets.append(queue_offset)

    def count(self, topic: str) -> int | None:
        """Return how many messages for a retry topic are delayed; None: not known yet."""
        if self._unread:
            return None
        return sum(self._prune((topic, level)) for level in self._lanes if (topic, level) in self._offsets)

    def _prune(self, key: tuple[str, int]) -> int:
        """Forget what is delivered; return how many messages are left."""
        offsets = self._offsets[key]
        del offsets[: bisect_left(offsets, self._lanes[key[1]].offset)]
        if not offsets:
            del self._offsets[key]
        return len(offsets)

    def read(self, now: Steady) -> None:
        """Read some of the messages that were parked before the start, if it is time."""
        if not self._unread or now < self._read_at:
            return
        self._read_at = now + READ_PAUSE_MS
        level, begin, end = self._unread.pop()
        begin = max(begin, self._store.queue_min(SCHEDULE_TOPIC, level - 1))
        entries = entries_at(self._store, SCHEDULE_TOPIC, level - 1, begin, max(0, min(READ_AT_ONCE, end - begin)))
        sizes = list(accumulate(entry.size for entry in entries))
        entries = entries[: max(1, bisect_right(sizes, READ_BYTES_AT_ONCE))]
        for entry in entries:
            topic = self._topic(entry, level) if entry.size and entry.physical_offset >= self._store.min_offset else None
            if topic is not None and (topic == UNKNOWN or topic.startswith(RETRY_PREFIX)):
                self._read.setdefault((topic, level), array("q")).append(entry.queue_offset)
        if entries and entries[-1].queue_offset + 1 < end:
            self._unread.append((level, entries[-1].queue_offset + 1, end))
        if not self._unread:
            for key, offsets in self._read.items():
                self._offsets[key] = offsets + self._offsets.get(key, array("q"))
            self._read = {}

    def _topic(self, entry: QueueEntry, level: int) -> str | None:
        """Return the topic of a parked message; `UNKNOWN`: its record is damaged and does not say it; None: it names none.

        A damaged record is logged.
        """
        record = self._store.record(entry.physical_offset, entry.size)
        reason: Exception | str = "its lengths are wrong"
        if record is not None:
            try:
                return real_queue(whole_record(record).properties)[0] or None
            except CorruptRecord as exc:
                reason = exc
        try:
            topic = UNKNOWN if record is None else real_queue(parts_of(bytes(record)).properties)[0]
        except BadMessage:
            topic = UNKNOWN
        self._warn(
            "a delayed message is damaged, and will not be delivered: level=%d offset=%d position=%d topic=%s reason=%s",
            level, entry.queue_offset, entry.physical_offset, topic or "unknown", reason,
        )  # fmt: skip
        return topic
