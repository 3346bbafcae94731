"""Histogram of latencies: near percentiles and bounded memory, and rows that count every time once."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.cli.bench.histogram import BAR, Histogram, lines_of


def histogram(times: list[int]) -> Histogram:
    made = Histogram()
    for ns in times:
        made.add(ns)
    return made


@given(st.lists(st.integers(0, 10**13), min_size=1, max_size=200), st.sampled_from([50.0, 90.0, 99.0, 99.9, 100.0]))
def test_a_percentile_is_never_too_low_and_at_most_a_hundredth_too_high(times, percent):
    exact = sorted(times)[max(0, ceil(len(times) * percent / 100) - 1)]

    assert exact <= histogram(times).percentile(percent) <= exact * 1.01


@given(st.lists(st.integers(0, 10**13), max_size=200))
def test_every_time_is_counted_in_one_row(times):
    assert sum(count for _, count in histogram(times).rows()) == len(times)


def test_the_number_of_counters_is_bounded_for_times_up_to_hours():
    made = histogram([step * 10**power // 1000 for power in range(3, 14) for step in range(1000, 10_000)])

    assert len(made._counts) < 7_000


def test_rows_for_people_have_bars():
    lines = lines_of(histogram([900_000] * 10 + [1_900_000] * 5 + [9_000_000]).rows())

    assert [line.split()[1:4] for line in lines] == [["1,000", "µs", "10"], ["2,000", "µs", "5"], ["5,000", "µs", "0"],
                                                     ["10,000", "µs", "1"]]  # fmt: skip
    assert lines[0].endswith("█" * BAR)
    assert lines_of([]) == []
