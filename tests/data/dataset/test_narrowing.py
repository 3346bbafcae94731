"""Narrowing: only parts in which rows can be are left, with a margin for clocks, and only plain tags are asked for."""

from __future__ import annotations

from typing import Any, cast

import pytest

from halfmoon.client.ranges import Ranges
from halfmoon.data.dataset.filters import NOTHING, Interval, Limits
from halfmoon.data.dataset.narrowing import SKEW_MS, TAGS_MAX, narrowed, tags_for_broker
from halfmoon.data.partitions import Range

RANGES = [Range("orders", "a", 0, 0, 100), Range("orders", "a", 1, 50, 60)]


class Brokers:
    """One message a second in each queue: the offset is the second."""

    def offsets_at(self, topic: str, at_ms: int, bounds: dict[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], int]:
        return {queue: max(low, min(high, -(-at_ms // 1000))) for queue, (low, high) in bounds.items()}


def left(limits: Limits) -> list[tuple[int, int, int]]:
    return [(span.queue, span.begin, span.end) for span in narrowed(RANGES, limits, cast(Ranges, Brokers()))]


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        (Limits(), [(0, 0, 100), (1, 50, 60)]),
        (Limits(queues=Interval(low=1)), [(1, 50, 60)]),
        (Limits(offsets=Interval(55, 70)), [(0, 55, 71), (1, 55, 60)]),
        (Limits(offsets=Interval(low=100)), []),
        (Limits(stored_us=Interval(low=90_000_000)), [(0, 30, 100), (1, 50, 60)]),
        (Limits(stored_us=Interval(low=90_000_000, high=9_000_000_000_000)), [(0, 30, 100), (1, 50, 60)]),
        (Limits(stored_us=Interval(high=0)), [(0, 0, 61), (1, 50, 60)]),
        (Limits(stored_us=Interval(high=999)), [(0, 0, 61), (1, 50, 60)]),
        (Limits(stored_us=Interval(low=10**18)), []),
        (NOTHING, []),
    ],
)
def test_the_parts_that_are_left_hold_all_rows_within_the_limits(limits: Limits, found: Any):
    assert SKEW_MS == 60_000
    assert left(limits) == found


@pytest.mark.parametrize(
    ("tags", "asked"),
    [
        (None, None), (frozenset({"a", "b-1"}), frozenset({"a", "b-1"})), (frozenset({"a||b"}), None), (frozenset({"a", ""}), None),
        (frozenset({"*"}), None), (frozenset({" a"}), None), (frozenset(), None), (frozenset(map(str, range(TAGS_MAX + 1))), None),
    ],
)  # fmt: skip
def test_brokers_are_asked_for_plain_tags_alone(tags: frozenset[str] | None, asked: frozenset[str] | None):
    assert tags_for_broker(Limits(tags=tags)) == asked
