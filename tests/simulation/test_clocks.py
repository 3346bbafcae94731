"""Clocks that are set an hour forward and back: what lasts so long lasts so long, nobody is called silent, and checkers bite."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.broker.consumers.locks import Locks
from halfmoon.broker.consumers.membership import Membership
from halfmoon.broker.pull.pulls import Pulls
from halfmoon.nameserver.nameserver import NameServer
from simulation.batches.batches import Batches
from simulation.delays import Delays
from simulation.history import CLIENT, Workload, simulate
from simulation.messages import Messages
from simulation.order import Order
from simulation.redelivery import Redelivery
from simulation.transactions.producers import FATES
from simulation.transactions.transactions import Transactions
from tests.simulation.faulty import finds, planted
from tests.simulation.planted_times import plant
from tests.simulation.transactions.planted_clocks import clockwise_rounds, dated, oblivious

BITE = range(1, 9)
SET = ("join", "clock_set", "clock_set")


@pytest.mark.parametrize("kinds", [("clock_set",), ("clock_set", "kill", "stop"), ("clock_set", "lose", "nameserver")])
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_promise_holds_while_clocks_are_set(seed: int, kinds: tuple[str, ...]) -> None:
    assert simulate(Messages, seed, kinds=kinds).problems == []


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("workload", [Redelivery, Delays, Batches])
def test_redelivery_delays_and_batches_keep_their_promises_while_clocks_are_set(workload: type[Workload], seed: int) -> None:
    assert simulate(workload, seed, kinds=("clock_set",)).problems == []


@pytest.mark.parametrize("seed", range(1, 5))
def test_order_is_kept_and_locks_hold_while_clocks_of_brokers_and_consumers_are_set(seed: int) -> None:
    assert simulate(Order, seed, kinds=SET).problems == []


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        (1, ("clock_set",)), (4, ("clock_set",)), (2, ("clock_set", "kill")), (3, ("clock_set", "stop", "power")),
        (1, ("clock_set", "producer", "nobody")), (5, ("clock_set", "between", "torn", "behind_copy", "recovery")),
    ],
)  # fmt: skip
def test_transactions_keep_their_promises_while_clocks_are_set(seed: int, kinds: tuple[str, ...]) -> None:
    verdict = simulate(Transactions, seed, kinds=kinds, steps=8)
    assert verdict.problems == [], verdict.summary()
    assert any("clock is set" in line for line in verdict.lines)


PLANTED = [
    planted("early:", make_broker=clockwise_rounds, kinds=("clock_set",), operators=0),
    planted("resumed:", make_broker=dated, kinds=("clock_set", "stop", "power"), operators=2),
    planted("expired:", make_broker=oblivious, kinds=("clock_set",), operators=0, fates=FATES | {"never": 3}),
]


@pytest.mark.parametrize(("checker", "options"), PLANTED)
def test_transactions_that_mistake_a_step_for_time_are_found(checker: str, options: dict[str, Any]) -> None:
    assert finds(Transactions, BITE, checker, steps=8, **options)
    fault = options.pop("make_broker")
    assert simulate(Transactions, BITE[0], steps=8, **options).problems == [], fault


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
    assert finds(Messages, BITE, problem, kinds=("clock_set",))


def test_a_broker_whose_locks_end_by_a_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Locks, "lock", "tick", "due")
    assert finds(Order, BITE, "owner:", kinds=SET)


def test_a_broker_that_takes_a_step_for_missed_heartbeats_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLIENT, "heartbeat_ms", 9_000)  # seldom, as a broker looks for silent clients each 10 s
    assert simulate(Order, 1, kinds=SET).problems == []
    plant(monkeypatch, Membership, "heartbeat", "tick", "due")
    assert finds(Order, BITE, "silence: broker-", kinds=SET)
