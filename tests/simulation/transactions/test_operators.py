"""Operators of a short history: what they are shown and decide is in the ledger, and in the broker's log."""

from __future__ import annotations

from simulation.transactions.log import read_log
from tests.simulation.transactions.test_producers import lived


def test_operators_write_down_what_they_were_shown_and_decided() -> None:
    cluster, ledger = lived({"never": 1}, operators=2, ms=30_000)
    log = read_log(cluster.brokers[0].disk)
    agreed = {decision.index: decision.operator for decision in ledger.by_hand if decision.code == 0}
    assert ledger.shown
    assert agreed.keys() >= log.deciders.keys() > set()
    assert ledger.messages.unexpected == []
