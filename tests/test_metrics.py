"""The histogram of turns: every length has its bucket, and the sum is exact."""

from __future__ import annotations

from halfmoon.metrics import TurnTimes

US, MS, S = 1_000, 1_000_000, 1_000_000_000


def test_each_turn_is_in_the_first_bucket_that_is_longer_and_in_all_after_it() -> None:
    times = TurnTimes()
    for ns in (0, 65_535, 65_536, 3 * MS, 2 * S, 3600 * S):
        times.took(ns)

    buckets = dict(times.buckets())
    assert [round(bound * 1e6) for bound in buckets][:3] == [66, 131, 262]
    assert list(buckets.values()) == [2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    assert list(buckets) == sorted(buckets)
    assert times.sum_ns == 2 * 65_536 - 1 + 3 * MS + 3602 * S
    assert sum(times.counts) == 6


def test_a_turn_of_any_length_is_counted() -> None:
    times = TurnTimes()
    times.took(2**63 - 1)
    assert sum(times.counts) == 1
    assert dict(times.buckets())[2**31 / 1e9] == 0
