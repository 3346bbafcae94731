"""Ranges of offsets, and how they become partitions: a Python task costs about 25 ms of CPU, so few and even ones. Pure.

Partitions are balanced by the number of messages: how long each is stands in no answer of a broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import pairwise

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


def plan(
    ranges: Iterable[Range], *, cores: int, min_partitions: int = 0, max_partitions: int = 0, max_records: int = 0
) -> list[tuple[Range, ...]]:
    """Return the ranges shared out to partitions, each with at least one, in an order that depends on the ranges alone.

    There are as many as cores, or ``max_partitions``; fewer when the ranges are fewer. A range is split when ``min_partitions``
    asks for more partitions than there are ranges, and at ``max_records`` messages: then no partition has more, and there may be
    more of them than cores (with ``max_partitions`` that bound wins). Empty ranges are left out. It takes time by the pieces.

    Raises:
        UsageError: that would be more than 100,000 pieces.
    """
    left = sorted(part for part in ranges if part.count > 0)
    total = sum(part.count for part in left)
    if not left:
        return []
    piece = max_records or total
    if min_partitions > len(left):
        piece = min(piece, max(1, total // min_partitions))
    if (count := sum(-(-part.count // piece) for part in left)) > PIECES_MAX:
        raise UsageError(f"{total} messages would be read in {count} pieces; raise maxRecordsPerPartition or lower minPartitions")
    pieces = [cut for part in left for cut in _cut(part, piece)]
    most = min(max_partitions or max(cores, min_partitions, 1), count)
    shares = _packed(pieces, most)
    while max_records and not max_partitions and most < count and _largest(shares) > max_records:
        most = min(count, 2 * most)
        shares = _packed(pieces, most)
    return shares


def _largest(shares: list[tuple[Range, ...]]) -> int:
    return max(sum(part.count for part in share) for share in shares)


def _cut(part: Range, piece: int) -> list[Range]:
    """Cut a range into even pieces of at most so many messages."""
    count = -(-part.count // piece)
    edges = [part.begin + part.count * number // count for number in range(count + 1)]
    return [Range(part.topic, part.broker, part.queue, begin, end) for begin, end in pairwise(edges)]


def _packed(pieces: list[Range], count: int) -> list[tuple[Range, ...]]:
    """Give the largest piece left to the partition with the fewest messages, again and again."""
    loads = [(0, number) for number in range(count)]
    heapify(loads)
    shares: list[list[Range]] = [[] for _ in range(count)]
    for piece in sorted(pieces, key=lambda part: (-part.count, part)):
        load, number = loads[0]
        shares[number].append(piece)
        heapreplace(loads, (load + piece.count, number))
    return [tuple(sorted(share)) for share in shares if share]
