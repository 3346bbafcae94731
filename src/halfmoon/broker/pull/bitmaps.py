"""Bloom filter bits of the newest messages: which groups' expressions match, evaluated once when a message becomes visible.

A reader skips messages that its group's bits rule out, without reading the record, and evaluates the others. So several readers of
one expression, a held pull, or a group that reads again evaluate little, and no result depends on the bits. Keeps the bits of a
bounded number of messages in memory; any other message may match.

Follows CommitLogDispatcherCalcBitMap and ExpressionMessageFilter.isMatchedByConsumeQueue (RocketMQ 4.9.8).
Differs: the bits are not written to files, so a crash leaves nothing to repair and queue entries stay as they are; and they count
only if they were made with the reader's own expression, instead of comparing times.
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

Expressions = Mapping[str, tuple[Marks, Filter]]
"""The expressions of the groups that read a topic, by group."""


_NOBODY: tuple[Marks | None, Filter | None] = (None, None)


class Run(NamedTuple):
    """Bits of neighbouring messages, made with the same expressions. ``bits`` has ``size_bytes`` of the filter a message."""

    first: int
    expressions: Expressions
    bits: bytearray


class BitMaps:
    """The bits of one broker."""

    def __init__(self, bloom: Bloom) -> None:
        self._size = bloom.size_bytes
        self._bloom = bloom
        self._queues: dict[tuple[str, int], deque[Run]] = {}
        self._bytes = 0
        self.room = STEPS_OF_ARRIVALS

    def arrived(self, store: Store, arrival: Arrival, expressions: Expressions) -> None:
        """Make the bits of the newest messages of a queue, as far as this turn's time goes."""
        if not expressions or self.room <= 0:
            return
        topic, queue_id, count = arrival.topic, arrival.queue_id, arrival.count
        first, builder = arrival.max_offset - count, _BitmapBuilder(self._bloom, expressions, self.room, count)
        result = store.read(topic, queue_id, first, 1, builder)
        self.room -= builder.spent
        passed = result.next_offset - first
        if result.status is ReadStatus.NO_MATCHED_MESSAGE and passed * self._size == len(builder.bits):
            self._add((topic, queue_id), first, expressions, builder.bits)  # else an entry has no record, and nobody knows which

    def _add(self, key: tuple[str, int], first: int, expressions: Expressions, bits: bytearray) -> None:
        runs = self._queues.pop(key, None) or deque()
        self._queues[key] = runs  # the queues stand in the order in which they were written last
        last = runs[-1] if runs else None
        count = len(last.bits) // self._size if last else 0
        if last and last.expressions is expressions and last.first + count == first and count < RUN_MESSAGES:
            last.bits.extend(bits)
        else:
            runs.append(Run(first, expressions, bits))
        self._bytes += len(bits)
        if len(runs) > RUNS_OF_QUEUE_MAX:
            self._bytes -= len(runs.popleft().bits)
        while self._bytes > BITS_BYTES_MAX and len(self._queues) > 1:
            self._bytes -= sum(len(run.bits) for run in self._queues.pop(next(iter(self._queues))))

    def possible(self, key: tuple[str, int], offset: int, count: int, group: str, expression: str) -> list[int] | None:
        """Return the indexes, rising, of the messages from an offset on that an expression of a group may match; None: any may."""
        size, end, at = self._size, offset + count, offset
        indexes: list[int] = []
        for first, expressions, bits in self._queues.get(key, ()):
            start, stop = max(first, at), min(first + len(bits) // size, end)
            marks, known = expressions.get(group, _NOBODY)
            if start < stop and marks is not None and known is not None and known.expression == expression:
                indexes += range(at - offset, start - offset)
                indexes += [
                    start - offset + index for index in _set(bits[(start - first) * size : (stop - first) * size], marks, size)
                ]
                at = stop
        if at == offset:
            return None
        indexes += range(at - offset, count)
        return indexes

    def marks(self, group: str, topic: str) -> Marks:
        """Return the bits of a group that reads a topic."""
        return self._bloom.marks(group, topic)

    def forget(self, topic: str) -> None:
        """A topic was deleted; a new one of its name starts without bits."""
        for key in [key for key in self._queues if key[0] == topic]:
            self._bytes -= sum(len(run.bits) for run in self._queues.pop(key))


class _BitmapBuilder:
    """Makes bits of the properties that it gets to test; selects nothing. See `halfmoon.store.queues.matching.PropertyTest`."""

    def __init__(self, bloom: Bloom, expressions: Expressions, room: int, count: int) -> None:
        self._bloom, self._expressions, self._room, self._count = bloom, list(expressions.values()), room, count
        distinct = {expression.expression: expression for _, expression in self._expressions}.values()
        self._steps = sum(expression.steps for expression in distinct)
        self._weight = _WEIGHT + _WEIGHT_OF_SCAN * sum(expression.scans for expression in distinct)
        self.bits = bytearray()
        self.spent = 0

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        """Any message may have bits."""

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Make the bits of messages until the budget is used up or all have theirs."""
        room = self._room - self.spent
        _, _, blocks, looked, spent = ALL_UNSURE.records(
            area, base, entries[: self._count * ENTRY_BYTES], room, self._steps, self._weight, 1
        )
        for block in blocks:
            self.bits += self._bloom.bitmap(self._expressions, block)
        self.spent += spent
        self._count -= looked
        return [], looked, self.spent >= self._room or not self._count


def _set(bits: bytearray, marks: Marks, size: int) -> list[int]:
    """Return the indexes of messages that have all the bits of a group."""
    columns = (bits[position // 8 :: size].translate(_ONE_IF_SET[position % 8]) for position in marks.positions)
    both = reduce(and_, (int.from_bytes(column, "little") for column in columns))
    ones = both.to_bytes(len(bits) // size, "little")
    return [index for index, is_set in enumerate(ones) if is_set] if both else []
