"""Ranges of offsets, and how they become partitions: a Python task costs about 25 ms of CPU, so few and even ones. Pure.

Partitions are balanced by bytes where brokers reported them (`halfmoon.client.core.weighing`), else by messages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heapreplace
from itertools import accumulate, pairwise

import msgspec
from msgspec.structs import replace

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

ONE_PER_QUEUE = 100_000
"""Tasks side by side where the size of the cluster is not known: a partition for each range."""

RANGES_MAX = 100_000
"""More than this are a mistake, and would fill the driver's memory."""


class Range(msgspec.Struct, frozen=True, order=True):
    """Offsets [begin, end) of one queue. ``born`` is the creation time of its topic there, in ms; 0: unknown."""

    topic: str
    broker: str
    queue: int
    begin: int
    end: int
    born: int = 0

    @classmethod
    def of(cls, queue: MessageQueue, begin: int, end: int, born: Mapping[tuple[str, str], int]) -> Range:
        """Return a range of a queue; ``born`` are births by topic and broker."""
        return cls(queue.topic, queue.broker_name, queue.queue_id, begin, end, born.get((queue.topic, queue.broker_name), 0))

    @property
    def count(self) -> int:
        """Number of offsets."""
        return self.end - self.begin

    def __str__(self) -> str:
        return f"{self.topic} {self.broker} queue {self.queue} [{self.begin}, {self.end})"


Sizes = Mapping[Range, Sequence[int]]
"""Bytes of each range, about, section by section; the sections of a range have equal numbers of offsets."""


def plan_partitions(
    ranges: Iterable[Range],
    *,
    cores: int,
    min_partitions: int = 0,
    max_partitions: int = 0,
    max_records: int = 0,
    sizes: Sizes | None = None,
) -> list[tuple[Range, ...]]:
    """Return the ranges of each partition, at least one each, in an order that depends on the arguments alone.

    There are as many partitions as cores (`ONE_PER_QUEUE`: as ranges), or ``max_partitions``; fewer when the ranges are fewer.
    A range is split when ``min_partitions`` asks for more partitions than there are ranges, and at ``max_records`` messages:
    then no partition has more, and there may be more of them than cores (with ``max_partitions`` that bound wins). Partitions
    are balanced by bytes where ``sizes`` has them of every range and there is no ``max_records``; else by messages. Empty
    ranges are left out. It takes time by the ranges after splitting.

    Raises:
        UsageError: that would be more than 100,000 ranges.
    """
    filled = sorted(span for span in ranges if span.count > 0)
    if not filled:
        return []
    weights = _weights(filled, {} if sizes is None or max_records else sizes)
    counts = _split_counts(filled, weights, min_partitions, max_records)
    if (count := sum(counts.values())) > RANGES_MAX:
        total = sum(span.count for span in filled)
        raise UsageError(
            f"{total} messages would be split into {count} ranges; raise maxRecordsPerPartition or lower minPartitions"
        )
    weighted = [(weight, span) for whole in filled for weight, span in _split(whole, counts[whole], weights[whole])]
    side_by_side = len(filled) if cores == ONE_PER_QUEUE else cores
    partition_count = min(max_partitions or max(side_by_side, min_partitions, 1), count)
    partitions = _packed(weighted, partition_count)
    if max_records and not max_partitions:
        # packing by weight may leave a partition over the bound although one of its ranges would fit elsewhere: spread them wider
        while partition_count < count and _largest(partitions) > max_records:
            partition_count = min(count, 2 * partition_count)
            partitions = _packed(weighted, partition_count)
    return partitions


def _weights(ranges: list[Range], sizes: Sizes) -> dict[Range, list[int]]:
    """Return the bytes of each range, section by section; where they are not known of all, the number of messages."""
    if all(sum(sizes.get(span, ())) > 0 for span in ranges):
        return {span: list(sizes[span]) for span in ranges}
    return {span: [span.count] for span in ranges}


def _split_counts(
    ranges: list[Range], weights: Mapping[Range, list[int]], min_partitions: int, max_records: int
) -> dict[Range, int]:
    """Return into how many each range is split: one, unless more partitions are wanted than there are ranges."""
    counts = {span: -(-span.count // max_records) if max_records else 1 for span in ranges}
    if min_partitions <= len(ranges):
        return counts
    wanted = min(min_partitions, sum(span.count for span in ranges))
    # by bytes there may be too few, where much of them is in few messages: then by messages
    for weight in ({span: sum(weights[span]) for span in ranges}, {span: span.count for span in ranges}):
        share = max(1, sum(weight.values()) // wanted)
        more = {span: max(counts[span], min(span.count, -(-weight[span] // share))) for span in ranges}
        if sum(more.values()) >= wanted:
            break
    return more


def _largest(partitions: list[tuple[Range, ...]]) -> int:
    return max(sum(span.count for span in partition) for partition in partitions)


def _split(whole: Range, count: int, weights: list[int]) -> list[tuple[int, Range]]:
    """Split a range into ``count`` of about the same weight, with one message at least; each comes with its weight."""
    total, section_count = sum(weights), len(weights)
    heights = [0, *accumulate(weights)]
    edges = [whole.begin]
    for number in range(1, count):
        target = total * number // count
        section = min(bisect_right(heights, target), section_count) - 1  # where the running sum reaches the target
        inside, weight = target - heights[section], weights[section]
        # within a section, weight is taken to be spread evenly over its offsets
        reached = (whole.count * (section * weight + inside)) // (section_count * weight) if weight else 0
        # one message at least on either side of an edge
        edges.append(max(edges[-1] + 1, min(whole.begin + reached, whole.end - (count - number))))
    edges.append(whole.end)
    share = max(1, total // count)
    return [(share, replace(whole, begin=begin, end=end)) for begin, end in pairwise(edges)]


def _packed(weighted: list[tuple[int, Range]], count: int) -> list[tuple[Range, ...]]:
    """Give the heaviest range left to the partition with the least, again and again."""
    loads = [(0, number) for number in range(count)]
    heapify(loads)
    partitions: list[list[Range]] = [[] for _ in range(count)]
    for weight, span in sorted(weighted, key=lambda pair: (-pair[0], pair[1])):
        load, number = loads[0]
        partitions[number].append(span)
        heapreplace(loads, (load + weight, number))
    return [tuple(sorted(partition)) for partition in partitions if partition]
