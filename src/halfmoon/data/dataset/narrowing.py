"""Narrowing of ranges to the limits of a filter, and of tags to those that brokers can be asked for."""

from __future__ import annotations

import re

from msgspec.structs import replace

from halfmoon.client.ranges import Ranges
from halfmoon.data.dataset.filters import HIGHEST, LOWEST, Limits
from halfmoon.data.offsets import offsets_at
from halfmoon.data.partitions import Range
from halfmoon.model import MessageQueue

SKEW_MS = 60_000
"""Messages of a queue are stored in the order of time, but for clocks that were set: so much earlier or later is read as well."""

TAGS_MAX = 32
"""More tags than this are filtered here alone: each makes the request longer."""

MS_MAX = 2**53
"""Times above are later than any clock."""

_TAG = re.compile(r"[A-Za-z0-9_%.:/-]{1,127}")


def narrowed(ranges: list[Range], limits: Limits, client: Ranges) -> list[Range]:
    """Return the parts of ranges in which rows within limits can be; a bound of time costs a few requests a queue."""
    low, high = limits.queues
    first, last = limits.offsets
    found = [
        replace(span, begin=max(span.begin, first), end=min(span.end, last + 1)) for span in ranges if low <= span.queue <= high
    ]
    found = [span for span in found if span.count > 0]
    since, until = limits.stored_us
    if since > LOWEST and found:
        begins = _at(client, found, since // 1000 - SKEW_MS)
        found = [replace(span, begin=min(max(span.begin, begins[_queue(span)]), span.end)) for span in found]
    if until < HIGHEST and found:
        ends = _at(client, found, until // 1000 + 1 + SKEW_MS)
        found = [replace(span, end=max(min(span.end, ends[_queue(span)]), span.begin)) for span in found]
    return [span for span in found if span.count > 0]


def _at(client: Ranges, ranges: list[Range], at_ms: int) -> dict[MessageQueue, int]:
    bounds = {_queue(span): (span.begin, span.end) for span in ranges}
    return offsets_at(client, bounds, min(max(at_ms, 0), MS_MAX))


def _queue(span: Range) -> MessageQueue:
    return MessageQueue(span.topic, span.broker, span.queue)


def tags_for_broker(limits: Limits) -> frozenset[str] | None:
    """Return the tags to ask brokers for; None: all. Tags that an expression of tags cannot say are not asked for."""
    tags = limits.tags
    if tags is None or not 0 < len(tags) <= TAGS_MAX or not all(_TAG.fullmatch(tag) for tag in tags):
        return None
    return tags
