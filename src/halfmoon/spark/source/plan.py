"""Ranges of offsets, and how they become partitions: a Python task costs about 25 ms of CPU, so few and even ones. Pure.

Partitions are balanced by bytes where brokers told how many there are (`halfmoon.client.core.consume.weighing`), else by messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

PIECES_MAX = 100_000
"""More tasks than this are a mistake, and would fill the driver's memory."""


@dataclass(frozen=True, order=True)
class Range:
    """Messages of one queue with offsets of [begin, end)."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets it has."""
        return self.end - self.begin

    @property
    def of(self) -> MessageQueue:
        """The queue it belongs to."""
        return MessageQueue(self.topic, self.broker, self.queue)

    def __str__(self) -> str:
        return f"{self.topic} {self.broker} queue {self.queue} [{self.begin}, {self.end})"


Sizes = Mapping[Range, Sequence[int]]
"""Of ranges, about how many bytes each of a few parts has; the parts of a range have equal numbers of offsets."""


def plan(
    ranges: Iterable[Range],
    *,
    cores: int,
    min_partitions: int = 0,
    max_partitions: int = 0,
    max_records: int = 0,
    sizes: Sizes | None = None,
) -> list[tuple[Range, ...]]:
    """Return the ranges shared out to partitions, each with at least one, in an order that depends on the arguments alone.

    There are as many as cores, or ``max_partitions``; fewer when the ranges are fewer. A range is split when ``min_partitions``
    asks for more partitions than there are ranges, and at ``max_records`` messages: then no partition has more, and there may be
    more of them than cores (with ``max_partitions`` that bound wins). Partitions are balanced by bytes where ``sizes`` tells them
    of every range and there is no ``max_records``; else by messages. Empty ranges are left out. It takes time by the pieces.

    Raises:
        UsageError: that would be more than 100,000 pieces.
    """
    left = sorted(part for part in ranges if part.count > 0)
    if not left:
        return []
    known = sizes is not None and not max_records and all(sum(sizes.get(part, ())) > 0 for part in left)
    weights = {part: list(sizes[part]) if sizes is not None and known else [part.count] for part in left}
    counts = _counts(left, weights, min_partitions, max_records)
    if (count := sum(counts.values())) > PIECES_MAX:
        total = sum(part.count for part in left)
        raise UsageError(f"{total} messages would be read in {count} pieces; raise maxRecordsPerPartition or lower minPartitions")
    pieces = [cut for part in left for cut in _cut(part, counts[part], weights[part])]
    most = min(max_partitions or max(cores, min_partitions, 1), count)
    shares = _packed(pieces, most)
    while max_records and not max_partitions and most < count and _largest(shares) > max_records:
        most = min(count, 2 * most)
        shares = _packed(pieces, most)
    return shares


def _counts(left: list[Range], weights: Mapping[Range, list[int]], min_partitions: int, max_records: int) -> dict[Range, int]:
    """Return in how many pieces each range is cut: one, unless more partitions are wanted than there are ranges."""
    found = {part: -(-part.count // max_records) if max_records else 1 for part in left}
    if min_partitions <= len(left):
        return found
    wanted = min(min_partitions, sum(part.count for part in left))
    for weight in ({part: sum(weights[part]) for part in left}, {part: part.count for part in left}):
        each = max(1, sum(weight.values()) // wanted)
        more = {part: max(found[part], min(part.count, -(-weight[part] // each))) for part in left}
        if sum(more.values()) >= wanted:
            break  # by bytes there may be too few, where much of them is in few messages
    return more


def _largest(shares: list[tuple[Range, ...]]) -> int:
    return max(sum(part.count for part in share) for share in shares)


def _cut(part: Range, count: int, weights: list[int]) -> list[tuple[int, Range]]:
    """Cut a range into pieces of about the same weight, with one message at least; each comes with its weight."""
    total, last = sum(weights), len(weights)
    heights = [0, *accumulate(weights)]
    edges = [part.begin]
    for number in range(1, count):
        want = total * number // count
        index = min(bisect_right(heights, want), last) - 1  # the part in which so much is reached
        inside, whole = want - heights[index], weights[index]
        at = part.begin + (part.count * (index * whole + inside)) // (last * whole) if whole else part.begin
        edges.append(max(edges[-1] + 1, min(at, part.end - (count - number))))
    edges.append(part.end)
    each = max(1, total // count)
    return [(each, Range(part.topic, part.broker, part.queue, begin, end)) for begin, end in pairwise(edges)]


def _packed(pieces: list[tuple[int, Range]], count: int) -> list[tuple[Range, ...]]:
    """Give the heaviest piece left to the partition with the least, again and again."""
    loads = [(0, number) for number in range(count)]
    heapify(loads)
    shares: list[list[Range]] = [[] for _ in range(count)]
    for weight, piece in sorted(pieces, key=lambda pair: (-pair[0], pair[1])):
        load, number = loads[0]
        shares[number].append(piece)
        heapreplace(loads, (load + weight, number))
    return [tuple(sorted(share)) for share in shares if share]
