"""Producers of a short history: what they learn is in the ledger, and in the broker's log."""

from __future__ import annotations

import pytest

from halfmoon.testing.cluster import Cluster
from simulation.ledger import Ledger
from simulation.transactions.ledger import TxLedger
from simulation.transactions.log import COMMITTED, PREPARED, ROLLED_BACK, read_log, table_differs
from simulation.transactions.operators import Operator
from simulation.transactions.producers import SimulatedProducer, TxPlan, key_of

SETTINGS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}


def lived(fates: dict[str, float], *, operators: int = 0, ms: int = 10_000) -> tuple[Cluster, TxLedger]:
    """A cluster, stopped, and the ledger of one producer of each of these fates, and of operators."""
    cluster = Cluster(1, broker=SETTINGS)
    cluster.create_topic("orders")
    cluster.run(ms=100)
    ledger = TxLedger(Ledger("async"), 15, 1000, 1000, 500)
    plan = TxPlan(ledger, ("orders",), lambda: cluster.timeline.now, fates)
    producer = SimulatedProducer(cluster, plan, "P_shop", "P_shop.1", lanes=2)
    for number in range(operators):
        Operator(cluster, plan, f"operator-{number}")
    cluster.run(ms=ms)
    plan.closing = True
    cluster.run(ms=10_000)
    producer.survives()
    cluster.stop(cluster.brokers[0])
    return cluster, ledger


def test_a_body_begins_with_the_key_of_its_transaction() -> None:
    assert key_of(b"P_shop.1-7|ab|cd") == "P_shop.1-7"


@pytest.mark.parametrize(("fate", "state"), [("commit", COMMITTED), ("rollback", ROLLED_BACK)])
def test_a_transaction_comes_to_what_its_fate_says(fate: str, state: int) -> None:
    cluster, ledger = lived({fate: 1})
    log = read_log(cluster.brokers[0].disk)
    databases = {key: outcome.committed for key, outcome in ledger.databases["P_shop"].outcomes.items()}
    assert len(log.halves) == len(ledger.halves) > 10
    assert all(log.states()[half.index] == (COMMITTED if databases[half.key] else ROLLED_BACK) for half in ledger.halves)
    assert state in log.states().values()
    assert table_differs(cluster.brokers[0].disk, log) == []


def test_who_lost_its_second_phase_is_asked() -> None:
    cluster, ledger = lived({"lost": 1})
    assert {check.key for check in ledger.checks} >= {half.key for half in ledger.halves}
    assert PREPARED not in read_log(cluster.brokers[0].disk).states().values()
