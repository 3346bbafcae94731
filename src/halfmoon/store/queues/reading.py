"""Reading one queue: which messages a pull gets, and where the next one begins. Looks at entries, and at the lengths in records.

Follows DefaultMessageStore.getMessage (RocketMQ 4.9.8): statuses, next offsets, and when a reply is full.
Differs: a pull with a filter looks at `scan_entries_max` entries instead of 800 and continues in the queue's next file, so that a
rare tag costs fewer round trips; messages that the filter leaves out do not fill a reply; an offset beyond the end always leads to
the end (4.7.1 leads to 0 when the minimum is 0). A record with wrong lengths, or with another offset than its own, is left out:
the original sends it, and a decoder that stops at it, or a consumer that continues behind the offset in it, misses the messages
behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from halfmoon.errors import CorruptRecord
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, RECORD_BYTES_MIN, gather, whole_records
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.matching import PropertyTest, selector
from halfmoon.store.records import store_time_at
from halfmoon.store.settings import StoreSettings

Wanted = frozenset[int] | PropertyTest | None
"""Filter of a reader: tag hashes, a test of properties, or (None) every message."""


ReportEntry = Callable[[ConsumeQueue, int], None]
"""Called with a queue and the offset of an entry that readers step over."""


class ReadStatus(Enum):
    """How a read ended (RocketMQ: GetMessageStatus)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class ReadResult(NamedTuple):
    """Result of a read (RocketMQ: GetMessageResult). ``pieces`` are stored records; neighbours in the log are one piece."""

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[memoryview]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    size_bytes: int


_LOOKED_MAX = 16
"""Ranges of one queue that are remembered as checked: as many readers may be at different places of it."""

_STEP, _STEP_MAX = 128, 4_096
"""Entries given to a filter at once: few at first, because the reply is soon full if many match."""


class Reader:
    """The rules of reading, with the settings taken out once."""

    __slots__ = (
        "_bytes_disk", "_bytes_memory", "_count_disk", "_count_max", "_count_memory", "_in_memory_bytes", "_looked", "_scan_max",
        "damaged", "distrust", "log",
    )  # fmt: skip

    def __init__(self, log: CommitLog, settings: StoreSettings, distrust: ReportEntry, damaged: ReportEntry) -> None:
        """``distrust`` is told of an entry that cannot be one, ``damaged`` of one whose record is not whole; both are left out."""
        self.log = log
        self.distrust, self.damaged = distrust, damaged
        self._in_memory_bytes = (settings.memory_bytes or 8 * 1024**3) * settings.access_in_memory_ratio // 100
        self._count_memory, self._bytes_memory = settings.transfer_count_in_memory, settings.transfer_bytes_in_memory
        self._count_disk, self._bytes_disk = settings.transfer_count_on_disk, settings.transfer_bytes_on_disk
        self._count_max = max(self._count_memory, self._count_disk)
        self._scan_max = settings.scan_entries_max
        self._looked: dict[ConsumeQueue, list[tuple[int, int]]] = {}
        """Offsets, from one to another, whose records were looked into lately and are whole."""

    def look_again(self) -> None:
        """Look into each record again, from now on: it may have been damaged meanwhile."""
        self._looked.clear()

    def read(self, queue: ConsumeQueue, offset: int, max_count: int, wanted: Wanted, max_bytes: int) -> ReadResult:
        """Return what a consumer that is at ``offset`` gets. ``wanted`` are hashes of tags or a test; None: every message.

        Looks at a bounded number of entries, with a filter in steps that grow.
        """
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        select = None if wanted is None else selector(self.log, queue, wanted)
        if not 0 < max_count < self._count_max:
            max_count = self._count_max if max_count > 0 else 1
        step = _STEP if select else max_count
        collector = _Collector(self, queue, max_count, max_bytes)
        at, stop = offset, min(high, offset + self._scan_max)
        while at < stop:
            entries = bytes(queue.entries(at, step if step < stop - at else stop - at))
            here = len(entries) // ENTRY_BYTES
            if here == 0:
                break
            chosen, looked, enough = select(entries, at, collector.left) if select else (None, here, False)
            taken = collector.take(entries, at, chosen)
            if taken is not None:
                at += taken
                break
            at += looked
            if enough:
                break
            step = min(step * 4, _STEP_MAX)
        return collector.result(at, low, high)

    def bounds(self, physical_offset: int, max_count: int, max_bytes: int) -> tuple[int, int]:
        """Return how many records and bytes an answer may have that begins at a place."""
        if self.in_memory(physical_offset):
            count, size_bytes = self._count_memory, self._bytes_memory
        else:
            count, size_bytes = self._count_disk, self._bytes_disk
        return max_count if max_count < count else count, max_bytes if max_bytes < size_bytes else size_bytes

    def in_memory(self, physical_offset: int) -> bool:
        """Whether a place is near enough to the end of the log to be taken as still in memory."""
        return self.log.end - physical_offset <= self._in_memory_bytes

    def gathered(
        self, area: memoryview, base: int, entries: bytes, chosen: list[int] | None, queue: ConsumeQueue, offset: int,
        max_bytes: int,
    ) -> tuple[int, int, list[memoryview]]:  # fmt: skip
        """Return what `gather` does. What was looked into for one reader is not for the next ones, for about a second."""
        if chosen is not None:
            return gather(area, base, entries, chosen, queue.queue_id, offset, max_bytes, False)
        stop, ranges = offset + len(entries) // ENTRY_BYTES, self._looked.setdefault(queue, [])
        for begin, end in ranges:
            if begin <= offset and stop <= end:
                return gather(area, base, entries, None, queue.queue_id, offset, max_bytes, True)
        gathered = gather(area, base, entries, None, queue.queue_id, offset, max_bytes, False)
        stop = offset + gathered[0]
        for at, (begin, end) in enumerate(ranges):
            if begin <= stop and offset <= end:
                ranges[at] = min(begin, offset), max(end, stop)
                return gathered
        if len(ranges) >= _LOOKED_MAX:
            del ranges[0]
        ranges.append((offset, stop))
        return gathered


class _Collector:
    """Collects the records of one reply. Reports entries and records that make no sense, and leaves them out."""

    __slots__ = (
        "_area", "_base", "_bytes_max", "_count", "_count_max", "_limit", "_pieces", "_queue", "_reader", "_removed", "_size_bytes",
    )  # fmt: skip

    def __init__(self, reader: Reader, queue: ConsumeQueue, max_count: int, max_bytes: int) -> None:
        self._reader, self._queue = reader, queue
        self._count_max, self._bytes_max = max_count, max_bytes
        self._pieces: list[memoryview] = []
        self._count = self._size_bytes = self._base = self._limit = 0
        self._removed = False

    @property
    def left(self) -> int:
        """How many more records it takes at most."""
        return self._count_max - self._count

    def take(self, entries: bytes, offset: int, chosen: list[int] | None) -> int | None:
        """Take the chosen ones (None: all) of entries from a queue offset on.

        Return None, or the index of the entry with which the next reply has to begin, for this one is full.
        """
        done, end = 0, len(entries) // ENTRY_BYTES if chosen is None else len(chosen)
        while done < end:
            index = done if chosen is None else chosen[done]
            place, size, _ = ENTRY.unpack_from(entries, index * ENTRY_BYTES)
            # The first one goes whatever its size: no reader would ever get past it.
            if self._count and self._size_bytes + size > self._bytes_max and size != FILLER_SIZE:
                return index
            if not (self._base <= place and 0 < size <= self._limit - place) and not self._is_there(offset + index, place, size):
                done += 1
                continue
            if self._count == 0:
                self._count_max, self._bytes_max = self._reader.bounds(place, self._count_max, self._bytes_max)
            taken = self._take_run(entries, offset, chosen, done, end, size)
            if taken == 0:
                self._removed = True
                self._reader.damaged(self._queue, offset + index)
            done += taken or 1
            if self._count >= self._count_max:
                return done if chosen is None else chosen[done - 1] + 1
        return None

    def _take_run(self, entries: bytes, offset: int, chosen: list[int] | None, done: int, end: int, size: int) -> int:
        """Take records of one file from number ``done`` on, and return how many.

        At least the first, of ``size`` bytes, unless it is damaged.
        """
        behind, room = done + self._count_max - self._count, self._bytes_max - self._size_bytes
        if chosen is not None:
            chosen = chosen[done:behind]
        elif done or behind < end:
            entries, offset = entries[done * ENTRY_BYTES : behind * ENTRY_BYTES], offset + done
        taken, size_bytes, pieces = self._reader.gathered(
            self._area, self._base, entries, chosen, self._queue, offset, room if room > size else size
        )
        self._count += taken
        self._size_bytes += size_bytes
        self._pieces += pieces
        return taken

    def _is_there(self, offset: int, place: int, size: int) -> bool:
        """Whether the log has the bytes that an entry points at; finds the file that they are in."""
        if size == FILLER_SIZE:
            return False
        log = self._reader.log
        if size <= 0 or not 0 <= place <= log.end - size or place % log.file_bytes + size > log.file_bytes:
            self._reader.distrust(self._queue, offset)
            self._removed |= size > 0
            return False
        if place < log.segments.first:
            self._removed = True
            return False
        self._base = place - place % log.file_bytes
        self._limit = min(self._base + log.file_bytes, log.end)
        self._area = log.segments.view(self._base, self._limit - self._base)
        return True

    def result(self, next_offset: int, low: int, high: int) -> ReadResult:
        """Return what was collected."""
        if self._count:
            return ReadResult(ReadStatus.FOUND, next_offset, low, high, self._pieces, self._count, self._size_bytes)
        status = ReadStatus.MESSAGE_WAS_REMOVING if self._removed else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, next_offset, low, high, [], 0, 0)


def outside(offset: int, low: int, high: int) -> ReadResult:
    """Return the answer to an offset that is not in the queue."""
    if high == 0:
        return ReadResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0, 0)
    if offset < low:
        return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, 0)
    if offset == high:
        return ReadResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, 0)
    return ReadResult(ReadStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, 0)


NO_QUEUE = ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)


DAMAGED_MAX = 4096
"""Damaged records that one search by time steps over: the broker serves nobody else meanwhile, tens of milliseconds."""


class _Times:
    """When messages of one queue were stored, for one search. Steps over damaged records, and says it."""

    def __init__(self, log: CommitLog, queue: ConsumeQueue, damaged: ReportEntry) -> None:
        self._log, self._queue, self._damaged = log, queue, damaged
        self._left = DAMAGED_MAX

    def at(self, offset: int, stop: int) -> tuple[int, int] | None:
        """Return offset and store time of the first message at or behind an offset and before ``stop``; None: there is none."""
        while (real := self._queue.real_entry(offset, stop)) is not None:
            offset, (physical_offset, size, _) = real
            if (stored_ms := self._stored_ms(offset, physical_offset, size)) is not None:
                return offset, stored_ms
            offset += 1
        return None

    def before(self, offset: int, start: int) -> tuple[int, int] | None:
        """Return offset and store time of the last message before an offset, from ``start`` on; None: there is none."""
        while (offset := self._queue.real_before(offset, start)) >= start:
            physical_offset, size, _ = self._queue.entry(offset)
            if (stored_ms := self._stored_ms(offset, physical_offset, size)) is not None:
                return offset, stored_ms
        return None

    def _stored_ms(self, offset: int, physical_offset: int, size: int) -> int | None:
        record = self._log.view(physical_offset, size) if size >= RECORD_BYTES_MIN else None
        if record is not None and whole_records(record, (size,), self._queue.queue_id, offset, physical_offset):
            return store_time_at(record)
        if record is not None:
            self._damaged(self._queue, offset)
        self._left -= 1
        if self._left < 0:
            raise CorruptRecord(physical_offset, f"more than {DAMAGED_MAX} damaged records lie where a search by time looks")
        return None


def _first_there(log: CommitLog, queue: ConsumeQueue) -> int:
    """Return the lowest offset of a queue. It is found again where log files are gone, which `Maintenance` does a while after."""
    if queue.min_offset < queue.max_offset and queue.entry(queue.min_offset)[0] < log.first:
        queue.correct_min(log.first)
    return queue.min_offset


def bound_at(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, damaged: ReportEntry, *, upper: bool) -> int:
    """Return the queue offset of the first message stored at a time or later; ``upper``: of the last stored at it or earlier.

    Where there is none, the queue's end, or its first offset. Reads about log2(n) records, also where the clock stepped and times
    are not in order: then it is one of the offsets that have such a neighbour. ``damaged`` is told of what is stepped over.

    Raises CorruptRecord as `offset_at` does. Follows ConsumeQueue.binarySearchInQueueByTime (RocketMQ 5.3).
    """
    start = low = _first_there(log, queue)
    high = queue.max_offset
    times = _Times(log, queue, damaged)
    while low < high:
        middle = (low + high) // 2
        after = times.at(middle, high)
        if after is not None and (after[1] < timestamp_ms or (upper and after[1] == timestamp_ms)):
            low = after[0] + 1
        else:
            high = middle
    if upper:
        before = times.before(low, start)
        return start if before is None else before[0]
    after = times.at(low, queue.max_offset)
    return queue.max_offset if after is None else after[0]


def offset_at(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, damaged: ReportEntry) -> int:
    """Return the queue offset of the message stored nearest to a time.

    Between two messages the nearer one wins, and a tie goes to the earlier; several stored in that very millisecond give the
    first. An empty queue gives 0; a time before all gives the first, one behind all the last message. Reads about log2(n) records;
    ``damaged`` is told of those that are stepped over.

    Raises:
        CorruptRecord: more than `DAMAGED_MAX` damaged records lie where it looks.

    Follows DefaultMessageStore.getOffsetInQueueByTime (RocketMQ 4.9.8).
    Differs: the original answers any of several messages of the same millisecond, and picks the index file by its modification
    time, which a copied directory has not.
    """
    start = low = _first_there(log, queue)
    high = queue.max_offset
    times = _Times(log, queue, damaged)
    while low < high:
        middle = (low + high) // 2
        later = times.at(middle, high)
        if later is not None and later[1] < timestamp_ms:
            low = later[0] + 1
        else:
            high = middle
    after, before = times.at(low, queue.max_offset), times.before(low, start)
    if before is None:
        return after[0] if after else 0
    if after is None:
        return before[0]
    return before[0] if timestamp_ms - before[1] <= after[1] - timestamp_ms and after[1] != timestamp_ms else after[0]
