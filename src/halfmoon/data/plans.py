"""Plan of a reading: the ranges between where it begins and where it ends, and their shares. Asks brokers; reads no messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec.structs import replace

from halfmoon.client.ranges import Ranges
from halfmoon.data.offsets import available_bounds, creation_times, end_offsets, start_offsets
from halfmoon.data.options import ReadOptions
from halfmoon.data.partitions import Range, Sizes, plan_partitions

WEIGHED_MIN = 4_096
"""Ranges with fewer messages are read whole: nobody is asked how large they are."""


def planned_ranges(options: ReadOptions, client: Ranges) -> list[Range]:
    """Return the ranges of all queues that the options name, by queue; without options of an end, all that is there now.

    Raises as `halfmoon.data.offsets.available_bounds` and `start_offsets`.
    """
    bounds = available_bounds(options, client)
    begins = start_offsets(options, client, bounds, "earliest")
    ends = end_offsets(options, client, bounds)
    born = creation_times(client, bounds)
    return [Range.of(queue, begin, ends[queue], born) for queue, begin in sorted(begins.items())]


def shares_of(
    ranges: list[Range], client: Ranges, *, cores: int, min_partitions: int = 0, max_partitions: int = 0, max_records: int = 0
) -> list[tuple[Range, ...]]:
    """Return the ranges of each of the partitions, as `plan_partitions` says, balanced by the bytes that brokers report."""
    return plan_partitions(
        ranges,
        cores=cores,
        min_partitions=min_partitions,
        max_partitions=max_partitions,
        max_records=max_records,
        sizes=None if max_records else _sizes(ranges, client, max(max_partitions or cores, min_partitions), min_partitions),
    )


def chunks_of(ranges: list[Range], client: Ranges, chunk_bytes: int) -> Iterator[Range]:
    """Yield the parts of ranges that hold about ``chunk_bytes`` each, by the bytes that brokers report; in order.

    The sizes of all ranges are asked for before the first part; parts are made when they are taken.
    """
    sizes = _weighed([span for span in ranges if span.count >= WEIGHED_MIN], client)
    return (part for span in ranges for part in _parts(span, sizes.get(span, (0,)), chunk_bytes))


def _parts(span: Range, sections: Sequence[int], chunk_bytes: int) -> Iterator[Range]:
    edges = [span.begin + span.count * number // len(sections) for number in range(len(sections) + 1)]
    for (begin, end), size in zip(pairwise(edges), sections, strict=True):
        step = max(1, (end - begin) * chunk_bytes // size) if size > chunk_bytes else max(1, end - begin)
        for at in range(begin, end, step):
            yield replace(span, begin=at, end=min(end, at + step))


def _sizes(ranges: list[Range], client: Ranges, partitions_max: int, min_partitions: int) -> Sizes | None:
    """Ask for the bytes of the ranges; None where the plan does not depend on them."""
    if partitions_max < 2 or (len(ranges) < 2 and min_partitions < 2):
        return None
    return _weighed(ranges, client)


def _weighed(ranges: list[Range], client: Ranges) -> Sizes:
    sizes: dict[Range, Sequence[int]] = {}
    for topic in sorted({span.topic for span in ranges}):
        spans = {(span.broker, span.queue): span for span in ranges if span.topic == topic}
        weighed = client.weigh(topic, {key: (span.begin, span.end) for key, span in spans.items()})
        sizes |= {spans[key]: section_bytes for key, section_bytes in weighed.items()}
    return sizes
