"""Decisions that turn round are found, but for those that a loss of power may have taken."""

from __future__ import annotations

import pytest

from simulation.ledger import FoundFault, Ledger, Place, Seen
from simulation.transactions.checkers import never_reversed
from simulation.transactions.ledger import DecisionRecord, TxLedger
from simulation.transactions.log import HalfRecord, TxLog


def reversed_by(flush: str, *what: tuple[int, str]) -> list[str]:
    """Return what is said of one half message after these, at their times: faults, decisions agreed to, and that it was read."""
    ledger = TxLedger(Ledger(flush), 15, 1_000, 1_000, 500)
    for at_ms, kind in what:
        if kind == "read":
            ledger.messages.seen.append(Seen(at_ms, Place("broker-a", "orders", 0), 3, 5_000, b"P_shop.1-6|text", b""))
        elif kind in ("commit", "rollback"):
            ledger.decisions.append(DecisionRecord(at_ms - 1, at_ms, "broker-a", 9, "P_shop.1-6", kind == "commit", 0))
        else:
            ledger.messages.faults.append(FoundFault(at_ms, "broker-a", kind))
    log = TxLog(halves={9: HalfRecord(0, 100, 9, "P_shop.1-6", "P_shop", "orders", 0, b"", 400, False)})
    return never_reversed(ledger, {"broker-a": log})


COMMITTED_AND_READ = (2_000, "commit"), (2_001, "read")
LOST = (2_020, "power"), (2_700, "start")


def test_power_may_take_with_async_flush_a_commit_that_was_read_so_that_its_rollback_is_agreed_to() -> None:
    """The rollback comes so late that nothing may take that."""
    assert reversed_by("async", *COMMITTED_AND_READ, *LOST, (90_000, "rollback")) == []


@pytest.mark.parametrize(
    ("flush", "between"),
    [
        ("sync", LOST),
        ("async", ()),
        ("async", [(2_020, "kill"), (2_700, "start")]),
        ("async", [(20_000, "power"), (20_700, "start")]),
    ],
)
def test_a_rollback_that_is_agreed_to_after_the_commit_was_read_is_found_where_power_cannot_have_taken_it(
    flush: str, between: list[tuple[int, str]]
) -> None:
    problems = reversed_by(flush, *COMMITTED_AND_READ, *between, (90_000, "rollback"))
    assert ["both agreed to" in problem for problem in problems] == [True, False]
    assert "was read at 2001 and its rollback was agreed to" in problems[1]


def test_power_that_fails_after_both_excuses_neither() -> None:
    """It takes the rollback, too: that was wrong nevertheless."""
    assert len(reversed_by("async", *COMMITTED_AND_READ, (2_010, "rollback"), *LOST)) == 2
    assert len(reversed_by("async", (2_000, "rollback"), (2_010, "read"), *LOST)) == 1


def test_what_is_read_after_power_took_its_rollback_is_no_reversal_and_after_any_other_rollback_is() -> None:
    assert reversed_by("async", (2_000, "rollback"), *LOST, (90_000, "read")) == []
    assert len(reversed_by("async", (2_000, "rollback"), *LOST, (4_000, "rollback"), (90_000, "read"))) == 1
