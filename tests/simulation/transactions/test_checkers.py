"""The checkers of transactions bite: each fault that is planted into a broker or disk is found by the checker that it concerns.

A fault needs its chance: each test runs a few seeds until the checker has found it.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulation.ledger import Fault, Ledger, Place, Seen
from simulation.transactions.checkers import never_reversed
from simulation.transactions.history import simulate_transactions
from simulation.transactions.ledger import Decision, TxLedger
from simulation.transactions.log import HalfRecord, TxLog
from simulation.transactions.producers import FATES
from tests.simulation.finding import some_seed_finds
from tests.simulation.messages.planted import LyingDisk
from tests.simulation.transactions.planted import (
    ForgettingUnitsDisk,
    WrongGroupsDisk,
    doubling,
    eager,
    forgetful,
    hasty,
    hurried,
    impatient,
    incurious,
    lazy,
    lonely,
    opfirst,
    opless,
    polite,
    repeating,
    silent,
    turning,
)

found = partial(some_seed_finds, simulate_transactions, range(12))


def test_an_undecided_message_that_becomes_visible_is_found() -> None:
    assert found("leaked", flush="async", kinds=(), make_broker=eager)


def test_a_message_that_becomes_visible_after_its_rollback_is_found() -> None:
    assert found("leaked", flush="async", kinds=(), make_broker=turning)


def test_a_second_visible_record_is_found() -> None:
    assert found("twice", flush="async", kinds=(), make_broker=repeating)


def test_a_decision_that_was_agreed_to_and_not_carried_out_is_found() -> None:
    assert found("decisions", flush="async", kinds=(), make_broker=polite)


def test_two_different_decisions_that_were_both_agreed_to_are_found() -> None:
    assert found("reversed", flush="async", kinds=(), make_broker=polite)


def reversed_by(flush: str, *what: tuple[int, str]) -> list[str]:
    """Return what is said of one half message after these, at their times: faults, decisions agreed to, and that it was read."""
    ledger = TxLedger(Ledger(flush), 15, 1_000, 1_000, 500)
    for at_ms, kind in what:
        if kind == "read":
            ledger.messages.seen.append(Seen(at_ms, Place("broker-a", "orders", 0), 3, 5_000, b"P_shop.1-6|text", b""))
        elif kind in ("commit", "rollback"):
            ledger.decisions.append(Decision(at_ms - 1, at_ms, "broker-a", 9, "P_shop.1-6", kind == "commit", 0))
        else:
            ledger.messages.faults.append(Fault(at_ms, "broker-a", kind))
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


def test_a_decision_that_was_agreed_to_before_it_was_durable_is_found() -> None:
    assert found("unexpected: Decision", flush="sync", kinds=("slow_disk",), make_broker=hasty)


def test_half_messages_that_were_acknowledged_and_not_stored_are_found() -> None:
    assert found("ends", flush="async", kinds=(), make_broker=forgetful)


def test_half_messages_that_a_disk_only_says_to_have_synced_are_found() -> None:
    assert found("ends", flush="sync", kinds=("power",), wrap_disk=LyingDisk)


def test_half_messages_that_nobody_is_asked_about_are_found() -> None:
    assert found("ends", flush="async", kinds=(), make_broker=incurious)


def test_half_messages_that_expire_while_they_are_not_durable_yet_are_found() -> None:
    assert found("ends", flush="sync", kinds=("stuck_disk",), make_broker=hurried)


def test_a_message_that_is_lost_between_its_op_record_and_its_visible_record_is_found() -> None:
    assert found("ends", flush="async", kinds=("torn", "between"), steps=12, make_broker=opfirst)


def test_an_op_record_before_its_visible_record_is_found() -> None:
    assert found("ops", flush="async", kinds=(), make_broker=opfirst)


def test_checks_that_count_though_nobody_was_there_are_found() -> None:
    assert found("expired", flush="async", kinds=("nobody",), make_broker=lonely)


def test_expiry_before_the_checks_are_spent_is_found() -> None:
    assert found("expired", flush="async", kinds=(), make_broker=impatient, fates=FATES | {"never": 3})


def test_expiry_without_a_copy_is_found() -> None:
    assert found("ends", flush="async", kinds=(), make_broker=silent, fates=FATES | {"never": 3})


def test_checks_that_come_too_late_are_found() -> None:
    assert found("late", flush="async", kinds=(), make_broker=lazy)


def test_two_op_records_of_one_half_message_are_found() -> None:
    assert found("ops", flush="async", kinds=(), make_broker=doubling)


def test_a_commit_without_its_op_record_is_found() -> None:
    assert found("ops", flush="async", kinds=(), make_broker=opless)


@pytest.mark.parametrize("checker", ["index", "fsck"])
def test_a_state_table_that_differs_from_the_log_is_found(checker: str) -> None:
    assert found(f"{checker}:", flush="async", kinds=(), wrap_disk=WrongGroupsDisk)


def test_a_redo_log_that_differs_from_the_log_is_found() -> None:
    assert found("fsck:", flush="async", kinds=(), wrap_disk=ForgettingUnitsDisk)


def test_without_a_fault_the_same_seeds_hold() -> None:
    for seed in range(3):
        assert simulate_transactions(seed, kinds=()).problems == []
