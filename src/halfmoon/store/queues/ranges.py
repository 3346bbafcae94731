"""Reading much of one queue at once: whole stretches of entries, and the records that they point at. Answers no consumer's pull.

`store.queues.reading` has the rules of those. Of what records say a filter by properties alone is told; their lengths and places
are proved. Reading needs numpy (`halfmoon.arrays`).
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from halfmoon import arrays
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, RECORD_BYTES_MIN, whole_records
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.matching import PropertyTest, by_properties
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.reading import NO_QUEUE, ReadResult, ReadStatus, ReportEntry, Wanted, outside
from halfmoon.wire.headers.ranges import PARTS

ENTRIES_MAX = 16_384
"""Entries that one read looks at: some 3 ms of work where every record lies apart from the one before."""

PIECES_MAX = 64
"""More pieces than this are joined: they would cost the socket more than a copy does."""

FILTERED_MAX = 65_536
"""Entries that one read looks at for their tags: about 2 ms."""

TESTED_MAX = 4_096
"""Records whose properties one read takes out of the log."""

SAMPLE = 64
"""Entries that tell how long the records of a part are."""

_FIELDS = {"names": ["place", "size", "tag"], "formats": [">i8", ">i4", ">i8"], "offsets": [0, 8, 12], "itemsize": ENTRY_BYTES}


class RangeReader:
    """Reads stretches of any queue of a store."""

    def __init__(self, log: CommitLog, queues: Queues, damaged: ReportEntry) -> None:
        """``damaged`` is told of an entry whose record is not whole."""
        self._log, self._queues, self._damaged = log, queues, damaged

    def read(self, topic: str, queue_id: int, offset: int, end: int, max_bytes: int, wanted: Wanted = None) -> ReadResult | None:
        """Return the records of a queue from an offset on, below ``end``, as many as ``max_bytes`` hold, but one at least.

        They have the offsets from ``offset`` to ``next_offset`` without a gap. An offset whose record is gone, or damaged, ends
        them; a read that begins there finds nothing and leads on to the next that is there. ``wanted`` leaves records out, all of
        them perhaps; the offsets that it has looked at are those to ``next_offset`` all the same. None: there is no numpy.
        """
        arrays.load()
        if arrays.np is None:
            return None
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return NO_QUEUE
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        room = min(end - offset, queue.per_file - offset % queue.per_file)
        if wanted is None:
            size = queue.entry(offset)[1]
            likely = RECORD_BYTES_MIN if size == FILLER_SIZE else max(size, RECORD_BYTES_MIN)
            room = min(room, ENTRIES_MAX, 2 * max_bytes // likely + 1)  # enough where the others are about as long as the first
        return self._taken(queue, offset, min(room, FILTERED_MAX), max_bytes, wanted)

    def _taken(self, queue: ConsumeQueue, offset: int, count: int, max_bytes: int, wanted: Wanted) -> ReadResult:
        np = arrays.np
        low, high = queue.min_offset, queue.max_offset
        view = queue.entries(offset, count)
        entries = np.frombuffer(view, np.dtype(_FIELDS))
        places, sizes = entries["place"].astype(np.int64), entries["size"].astype(np.int64)
        there = (sizes > 0) & (sizes != FILLER_SIZE) & (places >= self._log.first) & (places + sizes <= self._log.end)
        if not there[0]:
            gone = int(np.argmax(there)) or len(there)
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, offset + gone, low, high, [], 0, 0)
        reached = len(there) if there.all() else int(np.argmin(there))
        chosen = np.arange(reached)
        if wanted is not None:
            chosen, reached = self._chosen(entries["tag"], view, reached, wanted)
        fitting = int(np.searchsorted(np.cumsum(sizes[chosen]), max_bytes, "right"))
        taken = min(len(chosen), ENTRIES_MAX, max(1, fitting))
        if taken < len(chosen):
            reached, chosen = int(chosen[taken]), chosen[:taken]
        if taken and (whole := self._whole(queue, offset + chosen, places[chosen], sizes[chosen])) < taken:
            self._damaged(queue, offset + int(chosen[whole]))
            reached, chosen, taken = int(chosen[whole]), chosen[:whole], whole
            if reached == 0:
                return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, offset + 1, low, high, [], 0, 0)
        pieces = self._pieces(places[chosen], sizes[chosen]) if taken else []
        return ReadResult(ReadStatus.FOUND, offset + reached, low, high, pieces, taken, int(sizes[chosen].sum()))

    def _chosen(self, tags: Any, view: memoryview, count: int, wanted: frozenset[int] | PropertyTest) -> tuple[Any, int]:
        """Return which of the first entries a filter selects, all of whose records are there, and how many it has looked at."""
        np = arrays.np
        if isinstance(wanted, frozenset):
            return np.flatnonzero(np.isin(tags[:count], np.array(sorted(wanted), np.int64))), count
        indexes, looked, _ = by_properties(self._log, bytes(view[: min(count, TESTED_MAX) * ENTRY_BYTES]), ENTRIES_MAX, wanted)
        return np.array(indexes, np.int64), looked

    def weigh(self, topic: str, queue_id: int, begin: int, end: int) -> list[int]:
        """Return about how many bytes the records of offsets [begin, end) have, by parts: see `halfmoon.wire.headers.ranges.PARTS`.

        Looks at up to `SAMPLE` entries in the middle of each part. What is not there, or not any more, weighs nothing.
        """
        queue = self._queues.get((topic, queue_id))
        edges = [begin + (end - begin) * number // PARTS for number in range(PARTS + 1)]
        if queue is None:
            return [0] * PARTS
        low, high = queue.min_offset, queue.max_offset
        return [_weight(queue, max(a, low), min(b, high)) for a, b in pairwise(edges)]

    def _whole(self, queue: ConsumeQueue, offsets: Any, places: Any, sizes: Any) -> int:
        """Return how many of the records prove themselves, up to the first that does not."""
        first, all_sizes = 0, sizes.tolist()
        begins, stops, counts = _runs(places, sizes, offsets)
        for begin, run, after in zip(begins, self._slices(begins, stops), counts):
            run_sizes = all_sizes[first:after]
            whole = whole_records(run, run_sizes, queue.queue_id, int(offsets[first]), begin)
            if whole < len(run_sizes):
                return first + whole
            first = after
        return first

    def _pieces(self, places: Any, sizes: Any) -> list[memoryview]:
        """Return the records, neighbours of the log as one piece."""
        view = self._log.segments.view
        begins, stops, _ = _runs(places, sizes)
        if len(begins) <= PIECES_MAX:
            return [view(begin, stop - begin) for begin, stop in zip(begins, stops)]
        return [memoryview(b"".join(self._slices(begins, stops)))]

    def _slices(self, begins: list[int], stops: list[int]) -> list[memoryview]:
        """The same as single views, with the file of each looked up only when it changes."""
        segments, file_bytes = self._log.segments, self._log.segments.file_bytes
        slices: list[memoryview] = []
        base = limit = -1
        whole = memoryview(b"")
        for begin, stop in zip(begins, stops):
            if not base <= begin < limit:
                base = segments.base(begin)
                limit = base + file_bytes
                whole = segments.view(base, file_bytes)
            slices.append(whole[begin - base : stop - base])
        return slices


def _runs(places: Any, sizes: Any, offsets: Any = None) -> tuple[list[int], list[int], list[int]]:
    """Return where neighbours of the log begin and end, and how many records there are up to each end.

    Neighbours lie in one file, as 8 bytes part those of two. With ``offsets`` they are neighbours in their queue as well.
    """
    np = arrays.np
    ends = places + sizes
    parted = places[1:] != ends[:-1]
    if offsets is not None:
        parted |= offsets[1:] != offsets[:-1] + 1
    apart = np.flatnonzero(parted)
    firsts, lasts = np.append(0, apart + 1), np.append(apart, len(ends) - 1)
    return places[firsts].tolist(), ends[lasts].tolist(), (lasts + 1).tolist()


def _weight(queue: ConsumeQueue, begin: int, end: int) -> int:
    """Return about how many bytes the records of offsets that are in a queue have."""
    count = min(end - begin, SAMPLE)
    if count <= 0:
        return 0
    view = queue.entries(begin + (end - begin - count) // 2, count)
    looked = len(view) // ENTRY_BYTES
    sizes = [size for _, size, _ in ENTRY.iter_unpack(view) if 0 < size != FILLER_SIZE]
    return sum(sizes) * (end - begin) // looked if looked else 0
