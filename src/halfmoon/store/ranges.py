"""Reading much of one queue at once: whole stretches of entries, and the records that they point at. Answers no consumer's pull.

`halfmoon.store.reading` has the rules of those. Nothing here looks at what records say. Needs numpy (`halfmoon.store.arrays`).
"""

from __future__ import annotations

from typing import Any

from halfmoon.store import arrays
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.layout import ENTRY_BYTES, FILLER_SIZE
from halfmoon.store.reading import NO_QUEUE, Found, FoundStatus, outside
from halfmoon.store.recovery import Queues
from halfmoon.wire.record import RECORD_BYTES_MIN

ENTRIES_MAX = 16_384
"""Entries that one read looks at: some 3 ms of work where every record lies apart from the one before."""

PIECES_MAX = 64
"""More pieces than this are joined: they would cost the socket more than a copy does."""

_FIELDS = {"names": ["place", "size"], "formats": [">i8", ">i4"], "offsets": [0, 8], "itemsize": ENTRY_BYTES}


class RangeReader:
    """Reads stretches of any queue of a store."""

    def __init__(self, log: CommitLog, queues: Queues) -> None:
        self._log, self._queues = log, queues

    def read(self, topic: str, queue_id: int, offset: int, end: int, max_bytes: int) -> Found | None:
        """Return the records of a queue from an offset on, below ``end``, as many as ``max_bytes`` hold, but one at least.

        They have the offsets from ``offset`` to ``next_offset`` without a gap. An offset whose record is gone ends them; a read
        that begins there finds nothing and leads on to the next that is there. None: there is no numpy.
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
        size = queue.entry(offset)[1]
        likely = RECORD_BYTES_MIN if size == FILLER_SIZE else max(size, RECORD_BYTES_MIN)
        fitting = 2 * max_bytes // likely + 1  # where the others are about as long as the first
        count = min(end - offset, ENTRIES_MAX, fitting, queue.per_file - offset % queue.per_file)
        return self._taken(queue, offset, count, max_bytes)

    def _taken(self, queue: ConsumeQueue, offset: int, count: int, max_bytes: int) -> Found:
        np = arrays.np
        low, high = queue.min_offset, queue.max_offset
        entries = np.frombuffer(queue.entries(offset, count), np.dtype(_FIELDS))
        places, sizes = entries["place"].astype(np.int64), entries["size"].astype(np.int64)
        there = (sizes > 0) & (sizes != FILLER_SIZE) & (places >= self._log.first) & (places + sizes <= self._log.end)
        if not there[0]:
            gone = int(np.argmax(there)) or len(there)
            return Found(FoundStatus.MESSAGE_WAS_REMOVING, offset + gone, low, high, [], 0, 0)
        whole = len(there) if there.all() else int(np.argmin(there))
        fitting = int(np.searchsorted(np.cumsum(sizes[:whole]), max_bytes, "right"))
        taken = max(1, min(whole, fitting))
        pieces = self._pieces(places[:taken], sizes[:taken])
        return Found(FoundStatus.FOUND, offset + taken, low, high, pieces, taken, int(sizes[:taken].sum()))

    def _pieces(self, places: Any, sizes: Any) -> list[memoryview]:
        """Return the records, neighbours of the log as one piece; neighbours lie in one file, as 8 bytes part those of two."""
        np, view = arrays.np, self._log.segments.view
        ends = places + sizes
        apart = np.flatnonzero(places[1:] != ends[:-1])
        begins, stops = places[np.append(0, apart + 1)].tolist(), ends[np.append(apart, len(ends) - 1)].tolist()
        if len(begins) <= PIECES_MAX:
            return [view(begin, stop - begin) for begin, stop in zip(begins, stops)]
        return [memoryview(b"".join(self._slices(begins, stops)))]

    def _slices(self, begins: list[int], stops: list[int]) -> list[memoryview]:
        """The same as single views, with the file of each looked up only when it changes."""
        segments, file_bytes = self._log.segments, self._log.segments.file_bytes
        found: list[memoryview] = []
        base = limit = -1
        whole = memoryview(b"")
        for begin, stop in zip(begins, stops):
            if not base <= begin < limit:
                base = segments.base(begin)
                limit = base + file_bytes
                whole = segments.view(base, file_bytes)
            found.append(whole[begin - base : stop - base])
        return found
