"""What a broker's clock showed is known by the world's time, and a record's time by its place in the log."""

from __future__ import annotations

from halfmoon.testing.cluster import Cluster
from simulation.transactions.clocks import BrokerClock, Reading, read_clocks


def clock(*readings: tuple[int, int, int, int]) -> BrokerClock:
    made = BrokerClock()
    made.readings = [Reading(*reading) for reading in readings]
    return made


def test_a_record_was_stored_when_the_log_grew_over_its_place() -> None:
    known = clock((0, 100, 0, 1), (40, 140, 500, 1), (80, 180, 900, 2))
    assert known.stored_between(499) == (40, 40)
    assert known.stored_between(500) == (40, 80)  # another process wrote it, at any time in between


def test_a_clock_that_was_set_back_shows_a_time_twice() -> None:
    known = clock((0, 1000, 0, 1), (10, 1010, 0, 1), (20, 500, 0, 1), (600, 1005, 0, 1))
    assert known.spans(1006, 1007) == [(0, 20)]
    assert known.spans(600, 700) == [(10, 600)]
    assert known.shown_at(15) == 1010
    assert known.gained_ms(0, 15) == 0


def test_a_clock_that_is_set_forward_gains_that_much() -> None:
    cluster = Cluster(1)
    clocks = read_clocks(cluster)
    begun = cluster.timeline.now
    cluster.run(ms=500)
    cluster.brokers[0].host.step_clock(60_000)
    cluster.run(ms=12_000)  # a broker at rest looks for silent clients every 10 s
    known = clocks["broker-a"]
    assert known.gained_ms(begun, cluster.timeline.now) == 60_000
    last = known.readings[-1]
    assert last.shown_ms - last.at_ms == 60_000
