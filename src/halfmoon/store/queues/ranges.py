"""Reading much of one queue at once: whole stretches of entries, and the records that they point at. Answers no consumer's pull.

`store.queues.reading` has the rules of those. Lengths and places of records are proved; only filters look at what is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, gather, tag_matches
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

TESTED_MAX = 4_096
"""Records whose properties one read takes out of the log."""

SAMPLE = 64
"""Entries that tell how long the records of a part are."""

PLACES = 4
"""Places of a queue at which `RangeReader.size_bytes` looks, `SAMPLE` entries at each."""


class RangeReader:
    """Reads stretches of any queue of a store."""

    def __init__(self, log: CommitLog, queues: Queues, damaged: ReportEntry, floor: Callable[[str, int], int]) -> None:
        """``damaged`` is told of an entry whose record is not whole; ``floor`` is that of `halfmoon.store.queues.reservations`."""
        self._log, self._queues, self._damaged, self._floor = log, queues, damaged, floor

    def read(self, topic: str, queue_id: int, offset: int, end: int, max_bytes: int, wanted: Wanted = None) -> ReadResult:
        """Return the records of a queue from an offset on, below ``end``, as many as ``max_bytes`` hold, but one at least.

        They have the offsets from ``offset`` to ``next_offset`` without a gap. An offset whose record is gone, or damaged, ends
        them; a read that begins there finds nothing and leads on to the next that is there. ``wanted`` leaves records out, all of
        them perhaps; the offsets that it has looked at are those to ``next_offset`` all the same.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return NO_QUEUE
        low, high = queue.min_offset, queue.max_offset
        if not low <= offset < high:
            return outside(offset, low, high)
        entries = bytes(queue.entries(offset, min(end - offset, queue.per_file - offset % queue.per_file, ENTRIES_MAX)))
        count = len(entries) // ENTRY_BYTES
        if not self._is_there(entries, 0):
            gone = next((index for index in range(1, count) if self._is_there(entries, index)), count)
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, offset + gone, low, high, [], 0, 0)
        chosen = None
        if wanted is not None:
            count = next((index for index in range(1, count) if not self._is_there(entries, index)), count)
            chosen, count = self._chosen(entries[: count * ENTRY_BYTES], wanted)
        return self._taken(queue, offset, entries[: count * ENTRY_BYTES], chosen, max_bytes)

    def _is_there(self, entries: bytes, index: int) -> bool:
        """Whether the log has the bytes that an entry points at."""
        place, size, _ = ENTRY.unpack_from(entries, index * ENTRY_BYTES)
        return bool(0 < size != FILLER_SIZE and self._log.first <= place <= self._log.end - size)

    def _chosen(self, entries: bytes, wanted: frozenset[int] | PropertyTest) -> tuple[list[int], int]:
        """Return the indexes of the entries that a filter selects, and how many it has looked at."""
        if isinstance(wanted, frozenset):
            return tag_matches(entries, sorted(wanted), ENTRIES_MAX), len(entries) // ENTRY_BYTES
        return by_properties(self._log, entries[: TESTED_MAX * ENTRY_BYTES], ENTRIES_MAX, wanted)[:2]

    def _taken(self, queue: ConsumeQueue, offset: int, entries: bytes, chosen: list[int] | None, max_bytes: int) -> ReadResult:
        """Return the chosen records (None: all) of entries, file by file of the log."""
        end, done, size_bytes, pieces = len(entries) // ENTRY_BYTES, 0, 0, list[memoryview]()
        reached, count = 0, end if chosen is None else len(chosen)
        while done < count:
            reached = done if chosen is None else chosen[done]
            place, size, _ = ENTRY.unpack_from(entries, reached * ENTRY_BYTES)
            if (done and size_bytes + size > max_bytes) or not self._is_there(entries, reached):
                break
            base = self._log.segments.base(place)
            area = self._log.segments.view(base, min(self._log.file_bytes, self._log.end - base))
            some = entries if chosen is not None else entries[done * ENTRY_BYTES :]
            first, which = (offset, chosen[done:]) if chosen is not None else (offset + done, None)
            taken, taken_bytes, more = gather(
                area, base, some, which, queue.queue_id, first, max(max_bytes - size_bytes, size), False
            )
            done, size_bytes = done + taken, size_bytes + taken_bytes
            pieces += more
            if not taken:
                self._damaged(queue, offset + reached)
                break
        else:
            reached = end
        low, high = queue.min_offset, queue.max_offset
        if not reached:
            return ReadResult(ReadStatus.MESSAGE_WAS_REMOVING, offset + 1, low, high, [], 0, 0)
        if len(pieces) > PIECES_MAX:
            pieces = [memoryview(b"".join(pieces))]
        return ReadResult(ReadStatus.FOUND, offset + reached, low, high, pieces, done, size_bytes)

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

    def message_count(self, topic: str, queue_id: int) -> int:
        """Return how many messages a queue has: its offsets without those that the last power loss used up.

        Those of an earlier loss count until they expire.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        low, high, floor = queue.min_offset, queue.max_offset, self._floor(topic, queue_id)
        return high - low - (floor - 1 - queue.real_before(floor, low) if low < floor <= high else 0)

    def size_bytes(self, topic: str, queue_id: int) -> int:
        """Return the bytes of a queue's records: exact up to `PLACES` times `SAMPLE`, otherwise from a sample of as many.

        Reads without mapping files, for callers that ask about very many queues; some 30 us a queue.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0
        low, count = queue.min_offset, queue.max_offset - queue.min_offset
        if count <= PLACES * SAMPLE:
            return sum(_sizes(queue.peek(low, count)))
        starts = [low + (count - SAMPLE) * number // (PLACES - 1) for number in range(PLACES)]
        sizes = [size for start in starts for size in _sizes(queue.peek(start, SAMPLE))]
        return sum(sizes) * count // len(sizes)


def _sizes(entries: bytes) -> list[int]:
    """Return the sizes of records; a filler has none."""
    return [size if size != FILLER_SIZE else 0 for _, size, _ in ENTRY.iter_unpack(entries)]


def _weight(queue: ConsumeQueue, begin: int, end: int) -> int:
    """Return about how many bytes the records of offsets that are in a queue have."""
    count = min(end - begin, SAMPLE)
    if count <= 0:
        return 0
    view = queue.entries(begin + (end - begin - count) // 2, count)
    looked = len(view) // ENTRY_BYTES
    sizes = [size for _, size, _ in ENTRY.iter_unpack(view) if 0 < size != FILLER_SIZE]
    return sum(sizes) * (end - begin) // looked if looked else 0
