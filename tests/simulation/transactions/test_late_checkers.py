"""The checkers of long transactions and of late decisions bite: each planted fault is found by the one it concerns."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.transactions.history import simulate_transactions
from simulation.transactions.producers import LONG
from tests.simulation.transactions.planted_late import (
    complaisant,
    counting,
    deaf,
    obliging,
    parallel,
    redelivering,
    relenting,
    unforgiving,
)
from tests.simulation.transactions.test_checkers import found

EXPIRING: dict[str, Any] = {
    "flush": "async", "kinds": (), "operators": 0, "fates": LONG, "broker": {"transaction_check_max": 2}
}  # fmt: skip
RESUMED = {**EXPIRING, "operators": 2}


def test_an_answer_that_a_transaction_is_open_and_is_not_heard_is_found() -> None:
    assert found("open", **EXPIRING, make_broker=deaf)


def test_checks_that_count_though_the_transaction_is_open_are_found() -> None:
    assert found("expired", **EXPIRING, make_broker=counting)


def test_a_decision_after_expiry_that_is_refused_is_found() -> None:
    assert found("honoured", **EXPIRING, make_broker=unforgiving)


def test_a_commit_after_expiry_that_is_delivered_with_each_repeat_is_found() -> None:
    assert found("twice", **EXPIRING, make_broker=redelivering)
    assert found("delivered", **EXPIRING, make_broker=redelivering)


@pytest.mark.parametrize("checker", ["leaked", "reversed"])
def test_a_rollback_after_expiry_that_is_not_final_is_found(checker: str) -> None:
    assert found(checker, **EXPIRING, make_broker=relenting)


def test_what_is_delivered_once_for_the_first_and_once_for_the_resumed_half_message_is_found() -> None:
    assert found("delivered", **RESUMED, make_broker=parallel)


def test_a_late_commit_that_was_agreed_to_and_not_carried_out_is_found() -> None:
    assert found("decisions", **EXPIRING, make_broker=obliging)


def test_a_rollback_by_hand_of_what_was_committed_after_expiry_is_found() -> None:
    assert found("reversed", **RESUMED, make_broker=complaisant)


def test_without_a_fault_the_same_seeds_hold() -> None:
    for seed in range(3):
        assert simulate_transactions(seed, **EXPIRING).problems == []
        assert simulate_transactions(seed, **RESUMED).problems == []
