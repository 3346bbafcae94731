"""Clocks that are set an hour forward and back: what lasts so long lasts so long, nobody is called silent, and checkers bite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.consumers.locks import Locks
from halfmoon.broker.consumers.membership import Membership
from halfmoon.broker.pull.pulls import Pulls
from halfmoon.nameserver.nameserver import NameServer
from simulation.batches.history import simulate_batches
from simulation.delays.history import simulate_delays
from simulation.messages.history import simulate
from simulation.order import history as orderhistory
from simulation.order.history import simulate_order
from simulation.redelivery.history import simulate_redelivery
from simulation.transactions.history import simulate_transactions
from simulation.transactions.producers import FATES
from tests.simulation.planted_times import plant
from tests.simulation.transactions.planted_clocks import clockwise_rounds, dated, oblivious

BITE = range(1, 9)


@pytest.mark.parametrize("kinds", [("clock_set",), ("clock_set", "kill", "stop"), ("clock_set", "lose", "nameserver")])
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_promise_holds_while_clocks_are_set(seed: int, kinds: tuple[str, ...]) -> None:
    verdict = simulate(seed, kinds=kinds)
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("history", [simulate_redelivery, simulate_delays, simulate_batches])
def test_redelivery_delays_and_batches_keep_their_promises_while_clocks_are_set(history: Callable[..., Any], seed: int) -> None:
    verdict = history(seed, kinds=("clock_set",))
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize("seed", range(1, 5))
def test_order_is_kept_and_locks_hold_while_clocks_of_brokers_and_consumers_are_set(seed: int) -> None:
    verdict = simulate_order(seed, kinds=("join", "clock_set", "clock_set"))
    assert verdict.problems == [], verdict.summary()


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (1, ("clock_set",)), (4, ("clock_set",)), (2, ("clock_set", "kill")), (3, ("clock_set", "stop", "power")),
        (1, ("clock_set", "producer", "nobody")), (5, ("clock_set", "between", "torn", "behind_copy", "recovery")),
    ],
)  # fmt: skip
def test_transactions_keep_their_promises_while_clocks_are_set(seed: int, kinds: tuple[str, ...]) -> None:
    verdict = simulate_transactions(seed, kinds=kinds, steps=8)
    assert verdict.problems == [], verdict.summary()
    assert any("clock is set" in line for line in verdict.lines)


@pytest.mark.parametrize(
    ("planted", "problem", "history"),
    [
        (clockwise_rounds, "early:", {"kinds": ("clock_set",), "operators": 0}),
        (dated, "resumed:", {"kinds": ("clock_set", "stop", "power"), "operators": 2}),
        (oblivious, "expired:", {"kinds": ("clock_set",), "operators": 0, "fates": FATES | {"never": 3}}),
    ],
)
def test_transactions_that_mistake_a_step_for_time_are_found(planted: Any, problem: str, history: dict[str, Any]) -> None:
    def run(seed: int) -> Any:
        verdict = simulate_transactions(seed, steps=8, **history)
        assert verdict.problems == [], verdict.summary()
        return simulate_transactions(seed, steps=8, make_broker=planted, **history)

    assert found(problem, run)


CORE = ("__init__", "start", "connected", "commit", "tick", "due")


@pytest.mark.parametrize(
    ("part", "methods", "problem"),
    [
        (Broker, CORE, "silence: broker-"),
        (NameServer, CORE, "silence: nameserver-"),
        (Pulls, ("pull", "turn", "tick", "due"), "waits: a pull of"),
    ],
)
def test_a_part_that_takes_the_date_for_a_steady_time_is_found(
    part: type, methods: tuple[str, ...], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, part, *methods)
    assert found(problem, lambda seed: simulate(seed, kinds=("clock_set",)))


def test_a_broker_whose_locks_end_by_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Locks, "lock", "tick", "due")
    assert found("owner:", lambda seed: simulate_order(seed, kinds=("join", "clock_set", "clock_set")))


def test_a_broker_that_takes_a_step_for_missed_heartbeats_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(orderhistory.CLIENT, "heartbeat_ms", 9_000)  # seldom, as a broker looks for silent clients each 10 s
    assert simulate_order(1, kinds=("join", "clock_set", "clock_set")).problems == []
    plant(monkeypatch, Membership, "heartbeat", "tick", "due")
    assert found("silence: broker-", lambda seed: simulate_order(seed, kinds=("join", "clock_set", "clock_set")))


def found(problem: str, history: Callable[[int], Any]) -> bool:
    """Whether any of some seeds finds a problem that begins so."""
    return any(one.startswith(problem) for seed in BITE for one in history(seed).problems)
