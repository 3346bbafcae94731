"""Plan of a reading: the ranges between where it begins and where it ends, and their shares. Asks brokers; reads no messages."""

from __future__ import annotations

from collections.abc import Sequence

from halfmoon.client.ranges import Ranges
from halfmoon.data.offsets import available_bounds, creation_times, end_offsets, start_offsets
from halfmoon.data.options import ReadOptions
from halfmoon.data.partitions import Range, Sizes, plan_partitions


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


def _sizes(ranges: list[Range], client: Ranges, partitions_max: int, min_partitions: int) -> Sizes | None:
    """Ask for the bytes of the ranges; None where the plan does not depend on them."""
    if partitions_max < 2 or (len(ranges) < 2 and min_partitions < 2):
        return None
    sizes: dict[Range, Sequence[int]] = {}
    for topic in sorted({span.topic for span in ranges}):
        spans = {(span.broker, span.queue): span for span in ranges if span.topic == topic}
        weighed = client.weigh(topic, {key: (span.begin, span.end) for key, span in spans.items()})
        sizes |= {spans[key]: section_bytes for key, section_bytes in weighed.items()}
    return sizes
