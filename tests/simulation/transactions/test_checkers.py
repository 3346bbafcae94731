"""The checkers of transactions bite: each fault that is planted into a broker or disk is found by the checker that it concerns.

A fault needs its chance: each test runs a few seeds until the checker has found it.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulation.transactions.history import simulate_transactions
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
