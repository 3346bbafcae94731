"""The checkers of what operators do, of expiry and of log files bite: each planted fault is found by the one it concerns."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.ledger import Fault, Ledger
from simulation.transactions.history import STORE, simulate_transactions
from simulation.transactions.ledger import Decision, Shown, TxLedger
from simulation.transactions.log import HalfRecord, TxLog
from simulation.transactions.operator_checkers import shown_as_it_is
from simulation.transactions.producers import FATES
from tests.simulation.transactions.planted import lazy, lonely
from tests.simulation.transactions.planted_operators import (
    careless,
    clockwise,
    copying,
    generous,
    misnaming,
    nameless,
    obedient,
    promising,
    rash,
    stale,
    unheeding,
)
from tests.simulation.transactions.test_checkers import found

UNDECIDED = FATES | {"never": 4}
EXPIRING = {"transaction_check_max": 2}
CLEANED_OFTEN = {**STORE, "clean_interval_ms": 100}
"""Store settings with several looks at what may go between two syncs of the log: else few seeds have one just behind a decision."""


def test_a_commit_by_hand_of_what_was_rolled_back_is_found() -> None:
    assert found("leaked", flush="async", kinds=(), operators=2, make_broker=obedient)


def test_a_decision_by_hand_without_a_name_is_found() -> None:
    assert found("by hand", flush="async", kinds=(), operators=2, fates=UNDECIDED, make_broker=nameless)


def test_the_name_of_an_operator_in_a_decision_of_others_is_found() -> None:
    assert found("by hand", flush="async", kinds=(), operators=2, fates=UNDECIDED, make_broker=misnaming)


def test_decided_transactions_that_are_listed_as_pending_are_found() -> None:
    assert found("shown", flush="async", kinds=(), operators=2, make_broker=stale)


def test_a_decision_by_hand_that_was_agreed_to_before_it_was_durable_is_found() -> None:
    assert found("unexpected: Decision", flush="sync", kinds=("slow_disk",), operators=2, make_broker=unheeding)


def test_a_resume_that_was_agreed_to_before_it_was_durable_is_found() -> None:
    assert found(
        "unexpected: Resume", flush="sync", kinds=("slow_disk",), operators=2, fates=UNDECIDED, broker=EXPIRING,
        make_broker=unheeding,
    )  # fmt: skip


def test_a_copy_that_is_resumed_twice_is_found() -> None:
    assert found("resumed", flush="async", kinds=(), operators=2, fates=UNDECIDED, broker=EXPIRING, make_broker=generous)


def test_a_resume_that_was_agreed_to_and_not_carried_out_is_found() -> None:
    assert found("resumed", flush="async", kinds=(), operators=2, fates=UNDECIDED, broker=EXPIRING, make_broker=promising)


def test_a_second_copy_of_what_expired_is_found() -> None:
    assert found(
        "copied", flush="async", kinds=("behind_copy",), operators=0, fates=UNDECIDED, broker=EXPIRING, make_broker=copying
    )  # fmt: skip


def test_log_files_that_go_with_what_is_pending_in_them_are_found() -> None:
    assert found("gone", flush="async", kinds=("crowded",), operators=0, fates=UNDECIDED, make_broker=careless)


def test_log_files_that_go_before_the_decisions_are_durable_are_found() -> None:
    crowded: dict[str, Any] = {"flush": "async", "kinds": ("crowded",), "operators": 0, "fates": UNDECIDED, "store": CLEANED_OFTEN}
    assert found("gone", **crowded, make_broker=rash)
    assert not simulate_transactions(0, **crowded).problems


def test_expiry_all_at_once_because_the_clock_stepped_is_found() -> None:
    assert found("expired", flush="async", kinds=("ageing",), operators=0, fates=UNDECIDED, make_broker=clockwise)


def test_checks_that_come_too_late_are_found_at_a_broker_whose_clock_stepped() -> None:
    assert found("late", flush="async", kinds=("clock",), operators=0, make_broker=lazy)


def test_checks_that_count_though_nobody_was_there_are_found_at_a_broker_whose_clock_stepped() -> None:
    assert found("expired", flush="async", kinds=("nobody", "clock"), operators=0, steps=12, make_broker=lonely)


@pytest.mark.parametrize(
    ("flush", "faults", "fine"),
    [
        ("async", [("power", 2_000), ("start", 2_500)], True),
        ("async", [("power", 500), ("start", 800)], False),
        ("async", [("kill", 2_000), ("start", 2_500)], False),
        ("sync", [("power", 2_000), ("start", 2_500)], False),
        ("async", [], False),
    ],
)
def test_what_was_agreed_to_is_pending_again_only_if_power_took_it(flush: str, faults: list[tuple[str, int]], fine: bool) -> None:
    ledger = TxLedger(Ledger(flush), 15, 1_000, 1_000, 500)
    ledger.messages.faults += [Fault(at_ms, "broker-a", kind) for kind, at_ms in faults]
    ledger.decisions.append(Decision(1_900, 1_901, "broker-a", 7, "order", True, 0))
    ledger.shown.append(Shown(3_000, 3_001, "broker-a", 7, "order", "PREPARED"))
    log = TxLog(halves={7: HalfRecord(0, 100, 7, "order", "P_shop", "orders", 0, b"", 1_000, False)})

    assert (shown_as_it_is(ledger, {"broker-a": log}) == []) is fine
