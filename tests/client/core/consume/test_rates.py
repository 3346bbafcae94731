"""How fast a topic is pulled and consumed, and that operators are told."""

from __future__ import annotations

from halfmoon.client.core.consume.rates import ConsumeRates
from halfmoon.model import ConsumeFrom

FIRST = ConsumeFrom.FIRST_OFFSET


def test_the_figures_of_a_minute_are_those_of_its_samples():
    rates = ConsumeRates(0)
    for second in range(1, 61):
        rates.pulled(10, 4)
        rates.called(20, 9, 1)
        if second % 10 == 0:
            rates.sample(second * 1000)

    snapshot = rates.snapshot()

    assert (snapshot.pull_rt, snapshot.pull_tps, snapshot.consume_rt) == (4.0, 10.0, 20.0)
    assert (snapshot.consume_ok_tps, snapshot.consume_failed_tps, snapshot.consume_failed_msgs) == (9.0, 1.0, 60)


def test_a_minute_without_calls_tells_their_time_of_the_hour_and_failures_are_counted_for_an_hour():
    rates = ConsumeRates(0)
    rates.called(50, 0, 3)
    for sample in range(1, 8):
        rates.sample(sample * 10_000)
    quiet = rates.snapshot()
    for sample in range(8, 440):
        rates.sample(sample * 10_000)

    assert (quiet.consume_rt, quiet.consume_failed_tps, quiet.consume_failed_msgs) == (50.0, 0.0, 3)
    assert (rates.snapshot().consume_rt, rates.snapshot().consume_failed_msgs) == (0.0, 0)
