"""Bloom bits beside the newest messages: which groups' expressions match, found once when a message becomes visible.

A reader skips what its group's bits rule out, without a look at the record; what they do not rule out is evaluated. So several
readers of one expression, a pull that waits, or a group that reads again evaluate little, and no result depends on the bits. Keeps
those of a bounded number of messages, in memory; what it does not know may match.

Follows CommitLogDispatcherCalcBitMap and ExpressionMessageFilter.isMatchedByConsumeQueue (RocketMQ 4.9.8).
Differs: the bits are not written to files, so nothing is to be repaired after a crash and queue entries stay as they are; and they
are taken only where they were made with the very expression that reads, instead of by comparing times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import NamedTuple

from halfmoon.hot import ENTRY_BYTES
from halfmoon.sql92 import Bloom, Filter, Marks
from halfmoon.sql92.bulk_filter import ALL_UNSURE
from halfmoon.store.store import Arrival, ReadStatus, Store

RUN_MESSAGES, RUNS_OF_QUEUE_MAX = 1_024, 16
"""Messages of one run, more only when they came at once; and runs of one queue: what is older may match."""
BITS_BYTES_MAX = 16 * 1024 * 1024
"""Bits of all queues together; the queue that was written longest ago is forgotten first."""
STEPS_OF_ARRIVALS = 10_000
"""What the tests of one turn's new messages may cost, in steps of 0.1 to 0.2 microseconds, since senders wait for them."""
_ONE_IF_SET = [bytes(byte >> bit & 1 for byte in range(256)) for bit in range(8)]
_WEIGHT, _WEIGHT_OF_SCAN = 3, 2
"""Steps for each 100 bytes of properties: to find the names in them, and to read a value from end to end."""

Wishes = Mapping[str, tuple[Marks, Filter]]
"""The expressions of the groups that read a topic, by group."""


_NOBODY: tuple[Marks | None, Filter | None] = (None, None)


class Run(NamedTuple):
    """Bits of neighbouring messages, made with the same expressions. ``bits`` has ``size_bytes`` of the filter a message."""

    first: int
    wishes: Wishes
    bits: bytearray


class BitMaps:
    """The bits of one broker."""

    def __init__(self, bloom: Bloom) -> None:
        self._size = bloom.size_bytes
        self._bloom = bloom
        self._queues: dict[tuple[str, int], deque[Run]] = {}
        self._bytes = 0
        self.room = STEPS_OF_ARRIVALS

    def arrived(self, store: Store, arrival: Arrival, wishes: Wishes) -> None:
        """Make the bits of the newest messages of a queue, as far as this turn's time goes."""
        if not wishes or self.room <= 0:
            return
        topic, queue_id, count = arrival.topic, arrival.queue_id, arrival.count
        first, making = arrival.max_offset - count, _Making(self._bloom, wishes, self.room, count)
        found = store.read(topic, queue_id, first, 1, making)
        self.room -= making.spent
        passed = found.next_offset - first
        if found.status is ReadStatus.NO_MATCHED_MESSAGE and passed * self._size == len(making.bits):
            self._add((topic, queue_id), first, wishes, making.bits)  # else an entry has no record, and nobody knows which

    def _add(self, key: tuple[str, int], first: int, wishes: Wishes, bits: bytearray) -> None:
        runs = self._queues.pop(key, None) or deque()
        self._queues[key] = runs  # the queues stand in the order in which they were written last
        last = runs[-1] if runs else None
        count = len(last.bits) // self._size if last else 0
        if last and last.wishes is wishes and last.first + count == first and count < RUN_MESSAGES:
            last.bits.extend(bits)
        else:
            runs.append(Run(first, wishes, bits))
        self._bytes += len(bits)
        if len(runs) > RUNS_OF_QUEUE_MAX:
            self._bytes -= len(runs.popleft().bits)
        while self._bytes > BITS_BYTES_MAX and len(self._queues) > 1:
            self._bytes -= sum(len(run.bits) for run in self._queues.pop(next(iter(self._queues))))

    def possible(self, key: tuple[str, int], offset: int, count: int, group: str, expression: str) -> list[int] | None:
        """Return the indexes, rising, of the messages from an offset on that an expression of a group may match; None: any may."""
        size, end, at = self._size, offset + count, offset
        found: list[int] = []
        for first, wishes, bits in self._queues.get(key, ()):
            start, stop = max(first, at), min(first + len(bits) // size, end)
            marks, known = wishes.get(group, _NOBODY)
            if start < stop and marks is not None and known is not None and known.expression == expression:
                found += range(at - offset, start - offset)
                found += [
                    start - offset + index for index in _set(bits[(start - first) * size : (stop - first) * size], marks, size)
                ]
                at = stop
        if at == offset:
            return None
        found += range(at - offset, count)
        return found

    def marks(self, group: str, topic: str) -> Marks:
        """Return the bits of a group that reads a topic."""
        return self._bloom.marks(group, topic)

    def forget(self, topic: str) -> None:
        """A topic is gone; one of its name begins anew."""
        for key in [key for key in self._queues if key[0] == topic]:
            self._bytes -= sum(len(run.bits) for run in self._queues.pop(key))


class _Making:
    """Makes bits of the properties that it is given to test; wants nothing. See `halfmoon.store.queues.matching.PropertyTest`."""

    def __init__(self, bloom: Bloom, wishes: Wishes, room: int, count: int) -> None:
        self._bloom, self._wishes, self._room, self._count = bloom, list(wishes.values()), room, count
        distinct = {each.expression: each for _, each in self._wishes}.values()
        self._steps = sum(each.steps for each in distinct)
        self._weight = _WEIGHT + _WEIGHT_OF_SCAN * sum(each.scans for each in distinct)
        self.bits = bytearray()
        self.spent = 0

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        """Any message may have bits."""

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Make the bits of messages until the room is used up or all that came are seen to."""
        room = self._room - self.spent
        _, _, blocks, looked, spent = ALL_UNSURE.records(
            area, base, entries[: self._count * ENTRY_BYTES], room, self._steps, self._weight, 1
        )
        for block in blocks:
            self.bits += self._bloom.bitmap(self._wishes, block)
        self.spent += spent
        self._count -= looked
        return [], looked, self.spent >= self._room or not self._count


def _set(bits: bytearray, marks: Marks, size: int) -> list[int]:
    """Return the indexes of messages that have all the bits of a group."""
    columns = (bits[position // 8 :: size].translate(_ONE_IF_SET[position % 8]) for position in marks.positions)
    both = reduce(and_, (int.from_bytes(column, "little") for column in columns))
    ones = both.to_bytes(len(bits) // size, "little")
    return [index for index, one in enumerate(ones) if one] if both else []
