"""`TimerIndex`: when each parked message of the timer topic is due, sorted, in memory: 16 to 24 bytes a message. Reads no log.

Derived: the queue entries of the timer topic hold everything, and `rebuild` reads them. Two arrays a block, of due times and of
queue offsets; a block that is full is split. What is due at the same time comes in the order in which it was parked.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from struct import Struct

from halfmoon.hot import ENTRY_BYTES, FILLER_SIZE
from halfmoon.store.entries import entries_at
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.store import Store
from halfmoon.store.timer.marks import Mark
from halfmoon.store.timer.messages import TIMER_TOPIC

_SIZE_AND_CODE = Struct(">8xiq")  # of a queue entry
_BLOCK_MAX = 2048
_LOOKED_AT = 64
"""Blocks that one call of `lowest` looks through."""
_PAGE = 8192
_SORTED_AT_ONCE, _PARTS = 16_384, 256


class _Block:
    """``low`` is at or below the lowest offset; ``exact`` says that it is the lowest."""

    __slots__ = ("dues", "exact", "low", "offsets")

    def __init__(self, dues: array[int], offsets: array[int]) -> None:
        self.dues, self.offsets = dues, offsets
        self.low = min(offsets)
        self.exact = True


class TimerIndex:
    """Parked messages by (due, queue offset)."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []
        """The first due time of each block."""
        self.count = 0

    def insert(self, due: int, offset: int) -> None:
        """Enter a message whose offset is above all others that are due at that time."""
        self.count += 1
        place = max(0, bisect_right(self._firsts, due) - 1)
        if not self._blocks:
            self._blocks.append(_Block(array("q", [due]), array("q", [offset])))
            self._firsts.append(due)
            return
        block = self._blocks[place]
        at = bisect_right(block.dues, due)
        block.dues.insert(at, due)
        block.offsets.insert(at, offset)
        if offset < block.low:
            block.low = offset
        if at == 0:
            self._firsts[place] = due
        if len(block.dues) > _BLOCK_MAX:
            half = len(block.dues) // 2
            self._blocks[place : place + 1] = [
                _Block(block.dues[:half], block.offsets[:half]), _Block(block.dues[half:], block.offsets[half:]),
            ]  # fmt: skip
            self._firsts[place : place + 1] = [block.dues[0], block.dues[half]]

    def first_due(self) -> int | None:
        """Return when the next message is due; None: there is none."""
        return self._firsts[0] if self._firsts else None

    def due_count(self, now: int) -> int:
        """Return how many messages are due."""
        place = bisect_right(self._firsts, now)  # the block before it may have some that are not
        whole = sum(len(block.dues) for block in self._blocks[: max(0, place - 1)])
        return whole + (bisect_right(self._blocks[place - 1].dues, now) if place else 0)

    def ripe(self, now: int, count_max: int) -> list[tuple[int, int]]:
        """Return the first messages that are due, as (due, offset); they stay."""
        due_pairs: list[tuple[int, int]] = []
        for due, offset in self.walk((-1, -1)):
            if due > now or len(due_pairs) >= count_max:
                break
            due_pairs.append((due, offset))
        return due_pairs

    def walk(self, behind: tuple[int, int]) -> Iterator[tuple[int, int]]:
        """Yield (due, offset) of everything behind a pair, in order. Nothing may change meanwhile."""
        place = max(0, bisect_left(self._firsts, behind[0]) - 1)
        for block in self._blocks[place:]:
            if (block.dues[-1], block.offsets[-1]) <= behind:
                continue
            for at in range(bisect_left(block.dues, behind[0]), len(block.dues)):
                pair = (block.dues[at], block.offsets[at])
                if pair > behind:
                    yield pair

    def has(self, due: int, offset: int) -> bool:
        """Whether a message is parked."""
        return self._find(due, offset) is not None

    def remove(self, due: int, offset: int) -> bool:
        """Forget a message; return whether it was there."""
        position = self._find(due, offset)
        if position is None:
            return False
        place, at = position
        block = self._blocks[place]
        del block.dues[at], block.offsets[at]
        self.count -= 1
        if not block.dues:
            del self._blocks[place], self._firsts[place]
            return True
        if at == 0:
            self._firsts[place] = block.dues[0]
        if offset == block.low:
            block.exact = False
        return True

    def remove_first(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Forget messages that `ripe` returned; a run of the very first ones goes in one step a block."""
        at = 0
        while at < len(pairs) and self._blocks:
            block = self._blocks[0]
            count = 0
            for (due, offset), here_due, here_offset in zip(pairs[at:], block.dues, block.offsets):
                if due != here_due or offset != here_offset:
                    break
                count += 1
            if not count:
                break
            at += count
            self.count -= count
            del block.dues[:count], block.offsets[:count]
            block.exact = False
            if block.dues:
                self._firsts[0] = block.dues[0]
            else:
                del self._blocks[0], self._firsts[0]
        for due, offset in pairs[at:]:
            self.remove(due, offset)

    def _find(self, due: int, offset: int) -> tuple[int, int] | None:
        for place in range(max(0, bisect_left(self._firsts, due) - 1), len(self._blocks)):
            block = self._blocks[place]
            if block.dues[0] > due:
                return None
            start, stop = bisect_left(block.dues, due), bisect_right(block.dues, due)
            if start < stop:
                at = bisect_left(block.offsets, offset, start, stop)
                if at < stop and block.offsets[at] == offset:
                    return place, at
        return None

    def lowest(self, end: int) -> int:
        """Return an offset that is at or below every one here, and most often the lowest; ``end`` when nothing is parked."""
        looked = 0
        for block in self._blocks:
            if not block.exact and looked < _LOOKED_AT:
                block.low, block.exact = min(block.offsets), True
                looked += 1
        return min((block.low for block in self._blocks), default=end)

    # ------------------------------------------------------------ start

    def rebuild(self, store: Store, low: int, marks: Sequence[Mark]) -> None:
        """Take in the queue entries from an offset on, without those that were delivered. For an empty index."""
        queue = store.queues.get((TIMER_TOPIC, 0))
        if queue is None:
            return
        at = max(low, queue.min_offset)
        dues, offsets, cancelled = array("q"), array("q"), array("q")
        for mark in (*marks, Mark(queue.max_offset, -1, -1)):
            at = _take_in(queue, at, min(mark.end, queue.max_offset), (mark.due, mark.offset), dues, offsets, cancelled)
        self._fill(dues, offsets)
        for offset in cancelled:
            for entry in entries_at(store, TIMER_TOPIC, 0, offset, 1):
                self.remove(entry.tag_code, offset)

    def _fill(self, dues: array[int], offsets: array[int]) -> None:
        """Enter messages in any order, those of the same time by offset; nothing here is due later than any of them is."""
        first, last = min(dues, default=0), max(dues, default=0)
        if len(dues) <= _SORTED_AT_ONCE or first == last:
            if first != last:
                places = sorted(range(len(dues)), key=dues.__getitem__)
                dues, offsets = array("q", map(dues.__getitem__, places)), array("q", map(offsets.__getitem__, places))
            for start in range(0, len(dues), _BLOCK_MAX // 2):
                stop = start + _BLOCK_MAX // 2
                self._blocks.append(_Block(dues[start:stop], offsets[start:stop]))
                self._firsts.append(dues[start])
            self.count += len(dues)
            return
        width = (last - first) // _PARTS + 1
        parts = [(array("q"), array("q")) for _ in range(_PARTS)]
        for due, offset in zip(dues, offsets):
            part_dues, part_offsets = parts[(due - first) // width]
            part_dues.append(due)
            part_offsets.append(offset)
        for part_dues, part_offsets in parts:
            if part_dues:
                self._fill(part_dues, part_offsets)


def _take_in(
    queue: ConsumeQueue, at: int, end: int, behind: tuple[int, int], dues: array[int], offsets: array[int], cancelled: array[int]
) -> int:
    """Append the entries from ``at`` to ``end`` that are due behind a pair; return where the next ones begin."""
    behind_due, behind_offset = behind
    enter_due, enter_offset = dues.append, offsets.append
    while at < end:
        view = queue.entries(at, min(_PAGE, queue.per_file - at % queue.per_file, end - at))
        if not view:
            break
        for offset, (size, code) in enumerate(_SIZE_AND_CODE.iter_unpack(view), at):
            if code > behind_due and size != FILLER_SIZE:
                enter_due(code)
                enter_offset(offset)
            elif code < 0:
                cancelled.append(-1 - code)
            elif code == behind_due and offset > behind_offset and size != FILLER_SIZE:
                enter_due(code)
                enter_offset(offset)
        at += len(view) // ENTRY_BYTES
    return at
