"""Reading one queue: which entries a pull gets, and where the next one begins. Looks at entries, and at the lengths in records.

Follows DefaultMessageStore.getMessage (RocketMQ 4.9.8): statuses, next offsets, and when an answer is full.
Differs: a pull with a filter looks at `scan_entries_max` entries instead of 800 and walks on into the queue's next file, so that
a rare tag costs fewer round trips; of what the filter leaves out nothing counts when an answer is full; an offset beyond the end
always leads to the end (4.7.1 leads to 0 when the minimum is 0). A record whose lengths do not fit, or that names a place that is
not its own, is left out: the original hands it out, and a decoder that stops at it, or a consumer that goes on behind the offset
that it names, misses what is whole behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import CorruptRecord
from halfmoon.hot import ENTRY, ENTRY_BYTES, RECORD_BYTES_MIN, whole_records
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.layout import FILLER_SIZE
from halfmoon.store.matching import PropertyTest, selector
from halfmoon.store.records import store_time_at
from halfmoon.store.settings import StoreSettings

Wanted = frozenset[int] | PropertyTest | None
"""What a reader wants: hashes of tags, a test of properties, or (None) every message."""


Doubt = Callable[[ConsumeQueue, int], None]
"""Is told of a queue and the offset of an entry that readers step over."""


class FoundStatus(Enum):
    """How a read ended."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class Found(NamedTuple):
    """What a read brought. ``pieces`` are stored records, neighbours of the log joined into one piece."""

    status: FoundStatus
    next_offset: int
    min_offset: int
    max_offset: int
    pieces: list[memoryview]
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody misses
    size_bytes: int


_STEP, _STEP_MAX = 128, 512
"""Entries that a filter is given at once: few at first, for where many match the answer is soon full."""
_TAGS_STEP_MAX = 16_384


@lru_cache(maxsize=128)
def _flat(count: int) -> Struct:
    return Struct(">" + "qiq" * count)


class Reader:
    """The rules of reading, with the settings taken out once."""

    __slots__ = (
        "_bytes_disk", "_bytes_memory", "_count_disk", "_count_memory", "_damaged", "_distrust", "_in_memory_bytes", "_log",
        "_scan_max",
    )  # fmt: skip

    def __init__(self, log: CommitLog, settings: StoreSettings, distrust: Doubt, damaged: Doubt) -> None:
        """``distrust`` is told of an entry that cannot be one, ``damaged`` of one whose record is not whole; both are left out."""
        self._log = log
        self._distrust, self._damaged = distrust, damaged
        self._in_memory_bytes = (settings.memory_bytes or 8 * 1024**3) * settings.access_in_memory_ratio // 100
        self._count_memory, self._bytes_memory = settings.transfer_count_in_memory, settings.transfer_bytes_in_memory
        self._count_disk, self._bytes_disk = settings.transfer_count_on_disk, settings.transfer_bytes_on_disk
        self._scan_max = settings.scan_entries_max

    def read(self, queue: ConsumeQueue, offset: int, max_count: int, wanted: Wanted, max_bytes: int) -> Found:
        """Return what a consumer that is at ``offset`` gets. ``wanted`` are hashes of tags or a test; None: every message."""
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        log = self._log
        if wanted is not None:
            return self._pick(queue, offset, max_count, wanted, max_bytes)
        asked = min(max_count, self._count_memory)
        if asked > 0:
            # The common case in one stroke: neighbours of the log, recent, and together small enough.
            view = queue.entries(offset, asked)
            count = len(view) // ENTRY_BYTES
            flat = _flat(count).unpack(view)
            start, size_bytes = flat[0], sum(flat[1::3])
            if (
                flat[-3] + flat[-2] - start == size_bytes <= min(max_bytes, self._bytes_memory)
                and start >= log.first
                and log.end - start <= self._in_memory_bytes
                and (piece := log.view(start, size_bytes)) is not None
                and whole_records(piece, flat[1::3], queue.queue_id, offset, start) == count
            ):
                return Found(FoundStatus.FOUND, offset + count, low, high, [piece], count, size_bytes)
        return self._walk(queue, offset, max_count, max_bytes)

    def bounds(self, physical_offset: int, max_count: int, max_bytes: int) -> tuple[int, int]:
        """Return how many records and bytes an answer may have that begins at a place."""
        if self.in_memory(physical_offset):
            return min(max_count, self._count_memory), min(max_bytes, self._bytes_memory)
        return min(max_count, self._count_disk), min(max_bytes, self._bytes_disk)

    def in_memory(self, physical_offset: int) -> bool:
        """Whether a place is near enough to the end of the log to be taken as still in memory."""
        return self._log.end - physical_offset <= self._in_memory_bytes

    def _walk(self, queue: ConsumeQueue, offset: int, max_count: int, max_bytes: int) -> Found:
        """Take entry after entry, whose records prove themselves."""
        log, log_first, file_bytes = self._log, self._log.first, self._log.file_bytes
        low, high = queue.min_offset, queue.max_offset
        disk_below = log.end - self._in_memory_bytes
        count_max, bytes_max = min(max_count, self._count_memory), min(max_bytes, self._bytes_memory)
        pieces: list[memoryview] = []
        run: list[int] = []
        runs: list[tuple[list[int], int, int]] = []  # of each piece: sizes of its records, queue offset and physical offset
        count = size_bytes = run_start = run_end = run_limit = 0
        log_end = log.end
        next_offset, removed, full, first = offset, False, False, True
        stop = min(high, offset + self._scan_max)
        while next_offset < stop and not full:
            view = queue.entries(next_offset, min(stop - next_offset, 64))
            here = min(len(view) // ENTRY_BYTES, queue.per_file - next_offset % queue.per_file)
            for physical_offset, size, _ in ENTRY.iter_unpack(view[: here * ENTRY_BYTES]):
                if first and 0 < size != FILLER_SIZE:
                    first = False
                    if physical_offset < disk_below:
                        count_max, bytes_max = min(max_count, self._count_disk), min(max_bytes, self._bytes_disk)
                if count and (count >= count_max or size_bytes + size > bytes_max) and size != FILLER_SIZE:
                    full = True
                    break
                next_offset += 1
                if physical_offset == run_end and 0 < size <= run_limit - run_end:  # most are: the next record of the same file
                    run_end += size
                    run.append(size)
                else:
                    if size == FILLER_SIZE:
                        continue
                    place = physical_offset % file_bytes
                    if size <= 0 or not 0 <= physical_offset <= log_end - size or place + size > file_bytes:
                        self._distrust(queue, next_offset - 1)
                        removed |= size > 0
                        continue
                    if physical_offset < log_first:
                        removed = True
                        continue
                    if run_end > run_start:
                        pieces.append(log.segments.view(run_start, run_end - run_start))
                    run = [size]
                    runs.append((run, next_offset - 1, physical_offset))
                    run_start, run_end = physical_offset, physical_offset + size
                    run_limit = min(log_end, physical_offset - place + file_bytes)
                count += 1
                size_bytes += size
            if here == 0:
                break
        if run_end > run_start:  # neighbours lie in one file, since at least 8 bytes part the records of two
            pieces.append(log.segments.view(run_start, run_end - run_start))
        queue_id = queue.queue_id
        if not all(whole_records(piece, run, queue_id, *at) == len(run) for piece, (run, *at) in zip(pieces, runs)):
            return self._pick(queue, offset, max_count, None, max_bytes)
        if count:
            return Found(FoundStatus.FOUND, next_offset, low, high, pieces, count, size_bytes)
        status = FoundStatus.MESSAGE_WAS_REMOVING if removed else FoundStatus.NO_MATCHED_MESSAGE
        return Found(status, next_offset, low, high, [], 0, 0)

    def _pick(self, queue: ConsumeQueue, offset: int, max_count: int, wanted: Wanted, max_bytes: int) -> Found:
        """Take what a filter selects, each record for itself. Looks at a bounded number of entries, in steps that grow."""
        low, high = queue.min_offset, queue.max_offset
        stop = min(high, offset + self._scan_max)
        step, step_max = _STEP, _TAGS_STEP_MAX if isinstance(wanted, frozenset) else _STEP_MAX
        select, taken = selector(self._log, queue, wanted), _Taken(self, max_count, max_bytes)
        at = offset
        while at < stop:
            view = queue.entries(at, min(stop - at, step))
            here = min(len(view) // ENTRY_BYTES, queue.per_file - at % queue.per_file)
            if here == 0:
                break
            selected, looked = select(view[: here * ENTRY_BYTES], at)
            for index in selected:
                physical_offset, size, _ = ENTRY.unpack_from(view, index * ENTRY_BYTES)
                if not self._is_whole(queue, at + index, physical_offset, size):
                    size = 0  # it is left out
                if not taken.take(physical_offset, size):
                    return taken.found(at + index, low, high)
                if taken.full:
                    return taken.found(at + index + 1, low, high)
            at += looked
            if looked < here:
                break
            step = min(step * 4, step_max)
        return taken.found(at, low, high)

    def _is_whole(self, queue: ConsumeQueue, offset: int, physical_offset: int, size: int) -> bool:
        """Whether an entry points at a whole record, or at one that is gone; says it of one that does not."""
        log = self._log
        if size <= 0 or not 0 <= physical_offset <= log.end - size or physical_offset % log.file_bytes + size > log.file_bytes:
            self._distrust(queue, offset)
            return False
        if physical_offset < log.first:
            return True
        if whole_records(log.segments.view(physical_offset, size), (size,), queue.queue_id, offset, physical_offset):
            return True
        self._damaged(queue, offset)
        return False


class _Taken:
    """The records of one answer while it is collected, and whether it is full."""

    __slots__ = ("_bytes_max", "_count_max", "_end", "_pieces", "_reader", "_removed", "_start", "count", "full", "size_bytes")

    def __init__(self, reader: Reader, max_count: int, max_bytes: int) -> None:
        self._reader = reader
        self._count_max, self._bytes_max = max_count, max_bytes
        self._pieces: list[memoryview] = []
        self._start = self._end = self.count = self.size_bytes = 0
        self._removed = self.full = False

    def take(self, physical_offset: int, size: int) -> bool:
        """Take a record, or note that it is gone; False when it must wait for the next answer."""
        log = self._reader._log
        if size <= 0 or physical_offset < log.first or physical_offset + size > log.end:
            self._removed = True
            return True
        if self.count == 0:
            self._count_max, self._bytes_max = self._reader.bounds(physical_offset, self._count_max, self._bytes_max)
        elif self.size_bytes + size > self._bytes_max:
            return False
        if physical_offset == self._end and self.count:
            self._end += size
        else:
            self._close()
            self._start, self._end = physical_offset, physical_offset + size
        self.count += 1
        self.size_bytes += size
        self.full = self.count >= self._count_max
        return True

    def _close(self) -> None:
        if self._end > self._start:  # neighbours lie in one file, since at least 8 bytes part the records of two
            self._pieces.append(self._reader._log.segments.view(self._start, self._end - self._start))

    def found(self, next_offset: int, low: int, high: int) -> Found:
        self._close()
        if self.count:
            return Found(FoundStatus.FOUND, next_offset, low, high, self._pieces, self.count, self.size_bytes)
        status = FoundStatus.MESSAGE_WAS_REMOVING if self._removed else FoundStatus.NO_MATCHED_MESSAGE
        return Found(status, next_offset, low, high, [], 0, 0)


def outside(offset: int, low: int, high: int) -> Found:
    """Return the answer to an offset that is not in the queue."""
    if high == 0:
        return Found(FoundStatus.NO_MESSAGE_IN_QUEUE, 0, low, high, [], 0, 0)
    if offset < low:
        return Found(FoundStatus.OFFSET_TOO_SMALL, low, low, high, [], 0, 0)
    if offset == high:
        return Found(FoundStatus.OFFSET_OVERFLOW_ONE, offset, low, high, [], 0, 0)
    return Found(FoundStatus.OFFSET_OVERFLOW_BADLY, high, low, high, [], 0, 0)


NO_QUEUE = Found(FoundStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)


DAMAGED_MAX = 4096
"""Damaged records that one search by time steps over: the broker serves nobody else meanwhile, tens of milliseconds."""


class _Times:
    """When messages of one queue were stored, for one search. Steps over damaged records, and says it."""

    def __init__(self, log: CommitLog, queue: ConsumeQueue, damaged: Doubt) -> None:
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


def bound_at(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, damaged: Doubt, *, upper: bool) -> int:
    """Return the queue offset of the first message stored at a time or later; ``upper``: of the last stored at it or earlier.

    Where there is none, the queue's end, or its first offset. Reads about log2(n) records, also where the clock stepped and times
    are not in order: then it is one of the offsets that have such a neighbour. ``damaged`` is told of what is stepped over.

    Raises CorruptRecord as `offset_at` does. Follows ConsumeQueue.binarySearchInQueueByTime (RocketMQ 5.3).
    """
    start, low, high = queue.min_offset, queue.min_offset, queue.max_offset
    times = _Times(log, queue, damaged)
    while low < high:
        middle = (low + high) // 2
        found = times.at(middle, high)
        if found is not None and (found[1] < timestamp_ms or (upper and found[1] == timestamp_ms)):
            low = found[0] + 1
        else:
            high = middle
    if upper:
        before = times.before(low, start)
        return start if before is None else before[0]
    found = times.at(low, queue.max_offset)
    return queue.max_offset if found is None else found[0]


def offset_at(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, damaged: Doubt) -> int:
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
    start, low, high = queue.min_offset, queue.min_offset, queue.max_offset
    times = _Times(log, queue, damaged)
    while low < high:
        middle = (low + high) // 2
        found = times.at(middle, high)
        if found is not None and found[1] < timestamp_ms:
            low = found[0] + 1
        else:
            high = middle
    after, before = times.at(low, queue.max_offset), times.before(low, start)
    if before is None:
        return after[0] if after else 0
    if after is None:
        return before[0]
    return before[0] if timestamp_ms - before[1] <= after[1] - timestamp_ms and after[1] != timestamp_ms else after[0]
