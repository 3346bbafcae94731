"""Batch transactions under random faults: every input is visible once, in whole batches and in order, for many seeds."""

from __future__ import annotations

from functools import partial

import pytest

from halfmoon.testing.cluster import Cluster
from simulation.batches.batches import Batches
from simulation.batches.queries import SENDS
from simulation.history import simulate
from tests.simulation.faulty import verdict_on

SEEDS = range(1, 31)
MORE_SEEDS = range(31, 48)


history = partial(verdict_on, Batches)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_input_appears_once_in_whole_batches_and_in_order(seed: int) -> None:
    assert history(seed).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("begin", range(MORE_SEEDS.start, MORE_SEEDS.stop, 17))
def test_more_histories_of_batches_hold(begin: int) -> None:
    for seed in range(begin, min(begin + 17, MORE_SEEDS.stop)):
        verdict = simulate(Batches, seed)
        assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("kinds", [("driver", "second"), ("torn", "driver"), ("power", "driver"), ("cut", "lose", "half_open")])
def test_one_kind_of_trouble_at_a_time_breaks_nothing(flush: str, kinds: tuple[str, ...]) -> None:
    for seed in (1, 2, 3):
        verdict = simulate(Batches, seed, flush=flush, kinds=kinds)
        assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(1, 7))
def test_each_queue_shows_a_batch_whole_or_not_at_all_also_when_brokers_are_killed_midway(seed: int) -> None:
    verdict = simulate(Batches, seed, kinds=("midway", "torn", "power"), messages_a_turn=1)
    assert verdict.problems == [], verdict.summary()
    assert verdict["looks"] > 10


@pytest.mark.parametrize("seed", range(1, 9))
def test_brokers_that_join_and_leave_stop_no_query_and_repeat_nothing(seed: int) -> None:
    assert simulate(Batches, seed, kinds=("join", "leave", "driver")).problems == []


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "flush", "sends", "broker"), [(6, "sync", (), 1), (11, "async", SENDS, 0)])
def test_a_broker_killed_in_any_of_its_writes_loses_and_repeats_nothing(
    seed: int, flush: str, sends: tuple[str, ...], broker: int
) -> None:
    stopped: list[str] = []
    for writes in range(1, 200):
        verdict = simulate(Batches, 
            seed, flush=flush, kinds=(), queries=1, target=2, steps=4, brokers=2, sends=sends,
            prepare=partial(_stop, broker=broker, writes=writes),
        )  # fmt: skip
        assert verdict.problems == [], f"write {writes}: {verdict.summary()}"
        stops = [line for line in verdict.lines if "is stopped in a write" in line]
        if not stops:
            break
        stopped += stops
    written = [line for line in stopped if "commitlog" in line]
    assert len(stopped) > 40
    assert len(written) > 10


def _stop(cluster: Cluster, *, broker: int, writes: int) -> None:
    """Stop a broker's process in the middle of a write."""
    cluster.brokers[broker].disk.stop_after_writes = writes


def test_histories_of_batches_are_worth_judging() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert sum(verdict["messages"] for verdict in verdicts) > 3000
    assert sum(verdict["of them delayed"] for verdict in verdicts) > 1000
    assert sum(verdict["compressed"] for verdict in verdicts) > 1000
    assert sum(verdict["drivers"] for verdict in verdicts) > 80
    assert sum(verdict["decided already"] for verdict in verdicts) > 15
    assert sum(verdict["refused"] for verdict in verdicts) > 3
    assert sum(verdict["looks"] for verdict in verdicts) > 1000


def test_a_connection_that_dies_before_it_is_handed_over_is_made_anew() -> None:
    assert simulate(Batches, 1087).problems == []
