"""The histograms of turns and of decisions: every length has its bucket, and the sum is exact."""

from __future__ import annotations

from halfmoon.metrics import DecisionTimes, TurnTimes

US, MS, S = 1_000, 1_000_000, 1_000_000_000


def test_each_turn_is_in_the_first_bucket_that_is_longer_and_in_all_after_it() -> None:
    times = TurnTimes()
    for ns in (0, 65_535, 65_536, 3 * MS, 2 * S, 3600 * S):
        times.took(ns)

    buckets = dict(times.buckets())
    assert [round(bound * 1e6) for bound in buckets][:3] == [66, 131, 262]
    assert list(buckets.values()) == [2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5]
    assert list(buckets) == sorted(buckets)
    assert times.total == 2 * 65_536 - 1 + 3 * MS + 3602 * S
    assert sum(times.counts) == 6


def test_a_turn_of_any_length_is_counted() -> None:
    times = TurnTimes()
    times.took(2**63 - 1)
    assert sum(times.counts) == 1
    assert dict(times.buckets())[2**31 / 1e9] == 0


def test_a_decision_of_any_age_is_counted_in_seconds() -> None:
    times = DecisionTimes()
    for age_s in (0, 1, 2, 3, 4, 2**18 - 1, 2**18, 2**31):
        times.took(age_s)

    buckets = dict(times.buckets())
    assert list(buckets) == [2.0**n for n in range(1, 19)]
    assert (buckets[2], buckets[4], buckets[8], buckets[2**18]) == (2, 4, 5, 6)
    assert (len(times.spans()), times.spans()[:3], times.spans()[-1], sum(times.spans())) == (19, [2, 2, 1], 2, 8)
    assert times.total == 10 + 2**19 - 1 + 2**31
