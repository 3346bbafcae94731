"""Partitions: nothing lost or read twice, few, even, and bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.data.partitions import ONE_PER_QUEUE, Range, plan_partitions
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

sizes = st.lists(st.integers(0, 500), max_size=12)
bounds = st.integers(0, 30)


def ranges(counts: list[int]) -> list[Range]:
    return [Range("orders", "a", number, 7 * number, 7 * number + count) for number, count in enumerate(counts)]


@given(sizes, st.integers(1, 8), bounds, bounds, st.integers(0, 400))
def test_every_offset_is_read_once(counts: list[int], cores: int, low: int, high: int, records: int):
    shares = plan_partitions(ranges(counts), cores=cores, min_partitions=low, max_partitions=high, max_records=records)

    pieces = sorted(part for share in shares for part in share)
    joined: dict[int, list[int]] = {}
    for part in pieces:
        joined.setdefault(part.queue, []).extend(range(part.begin, part.end))
    assert joined == {part.queue: list(range(part.begin, part.end)) for part in ranges(counts) if part.count}
    assert all(share for share in shares)


@given(sizes, st.integers(1, 8), bounds, st.integers(1, 400))
def test_the_numbers_asked_for_are_kept(counts: list[int], cores: int, low: int, records: int):
    total = sum(counts)
    shares = plan_partitions(ranges(counts), cores=cores, min_partitions=low, max_records=records)

    assert all(sum(part.count for part in share) <= records for share in shares)
    assert len(shares) >= min(low, total)
    assert len(plan_partitions(ranges(counts), cores=cores, max_partitions=3)) <= 3
    assert len(plan_partitions(ranges(counts), cores=cores)) <= cores


def test_without_a_wish_there_are_as_many_as_cores_and_the_queues_are_shared_evenly():
    shares = plan_partitions(ranges([100, 50, 50, 90, 10]), cores=2)

    assert [sum(part.count for part in share) for share in shares] == [150, 150]


parts = st.lists(st.lists(st.integers(0, 10**9), min_size=4, max_size=4), min_size=12, max_size=12)


def test_where_nobody_knows_the_cores_there_is_one_for_each_queue_or_as_many_as_asked_for():
    found = ranges([100, 50, 50, 90, 10])

    assert [len(plan_partitions(found, cores=ONE_PER_QUEUE, min_partitions=low)) for low in (0, 7)] == [5, 7]


@given(sizes, parts, st.integers(1, 8), bounds)
def test_by_bytes_every_offset_is_read_once_too(counts: list[int], weights: list[list[int]], cores: int, low: int):
    found = ranges(counts)
    shares = plan_partitions(found, cores=cores, min_partitions=low, sizes=dict(zip(found, weights)))

    pieces = sorted(part for share in shares for part in share)
    joined: dict[int, list[int]] = {}
    for part in pieces:
        joined.setdefault(part.queue, []).extend(range(part.begin, part.end))
    assert joined == {part.queue: list(range(part.begin, part.end)) for part in found if part.count}
    assert all(part.count for part in pieces)
    assert min(low, sum(counts)) <= len(shares) <= max(cores, low)


def weight(share: tuple[Range, ...], sizes: dict[Range, list[int]]) -> float:
    """Return how many bytes a share has of ranges that are not cut."""
    return sum(sum(sizes[part]) for part in share)


def test_partitions_are_balanced_by_bytes_where_they_are_known():
    found = ranges([1_000, 1_000, 1_000, 10])
    sizes = dict(zip(found, ([100, 100], [100, 100], [100, 100], [300, 300])))

    shares = plan_partitions(found, cores=2, sizes=sizes)

    assert sorted(weight(share, sizes) for share in shares) == [600, 600]
    assert [len(share) for share in plan_partitions(found, cores=2)] == [2, 2]  # by messages the ten large ones count as nothing


def test_a_queue_is_cut_where_its_bytes_are():
    (found,) = ranges([1_000])
    sizes = {found: [0, 100, 100, 600]}  # 250 messages each

    shares = plan_partitions([found], cores=1, min_partitions=4, sizes=sizes)

    assert [[(part.begin, part.end) for part in share] for share in shares] == [
        [(0, 750)],
        [(750, 833)],
        [(833, 916)],
        [(916, 1_000)],
    ]


def test_a_bound_of_messages_is_kept_whatever_the_bytes():
    found = ranges([1_000, 10])
    shares = plan_partitions(found, cores=2, max_records=100, sizes=dict(zip(found, ([1], [10**9]))))

    assert max(sum(part.count for part in share) for share in shares) <= 100


def test_the_plan_depends_on_the_ranges_alone():
    found = ranges([10, 20, 30, 30])

    assert plan_partitions(found, cores=3) == plan_partitions(reversed(found), cores=3)


def test_a_year_of_backlog_is_planned_by_queues_and_a_silly_wish_is_refused():
    year = ranges([30_000_000_000] * 8)

    assert len(plan_partitions(year, cores=4)) == 4
    assert len(plan_partitions(year, cores=4, min_partitions=1_000)) == 1_000
    with pytest.raises(UsageError, match="maxRecordsPerPartition"):
        plan_partitions(year, cores=4, max_records=1)


def test_a_range_knows_its_queue():
    assert Range.of(MessageQueue("orders", "a", 3), 5, 9, {}) == Range("orders", "a", 3, 5, 9)
    assert Range.of(MessageQueue("orders", "a", 3), 5, 9, {("orders", "a"): 7}) == Range("orders", "a", 3, 5, 9, 7)
    assert str(Range("orders", "a", 3, 5, 9)) == "orders a queue 3 [5, 9)"
