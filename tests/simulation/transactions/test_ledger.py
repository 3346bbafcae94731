"""A database says of a transaction for ever what it said first."""

from __future__ import annotations

from simulation.ledger import Ledger
from simulation.transactions.ledger import DecisionRecord, LedgerDatabase, TxLedger


def test_the_first_outcome_stays() -> None:
    database = LedgerDatabase()
    assert database.decide("a", committed=True, now=1)
    assert database.decide("a", committed=False, now=2)
    assert database.ask("a", 3) is True


def test_what_is_under_way_has_no_outcome_and_what_never_ends_is_rolled_back() -> None:
    database = LedgerDatabase()
    database.begin("a", until_ms=100)
    assert database.ask("a", 99) is None
    assert database.ask("a", 100) is False
    assert not database.decide("a", committed=True, now=101)


def test_a_ledger_knows_what_brokers_agreed_to_and_what_is_open() -> None:
    ledger = TxLedger(Ledger("sync"), 15, 1000, 1000, 500)
    ledger.decisions = [DecisionRecord(0, 1, "broker-a", 0, "a", True, 0), DecisionRecord(2, 3, "broker-a", 0, "a", False, 1)]
    assert ledger.agreed() == ledger.decisions[:1]
    ledger.databases["P"], ledger.begun["a"], ledger.opened["a"] = LedgerDatabase(), "P", (10, 100)
    assert ledger.is_open("a", 10, 99)
    ledger.databases["P"].decide("a", committed=True, now=50)
    assert ledger.is_open("a", 10, 49)
    assert not ledger.is_open("a", 10, 50)
