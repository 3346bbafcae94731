"""Damaged logs under transactions and delays: what is whole is kept and decided once; fsck names what is damaged, and only that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from halfmoon.store.check import fsck as checked
from halfmoon.store.check.fsck import Problem, fsck
from simulation.delays import Delays
from simulation.history import Workload, simulate
from simulation.messages import Messages
from simulation.transactions.transactions import Transactions
from tests.simulation.transactions.planted import eager, repeating

DAMAGE: dict[str, Any] = {"kinds": ("damage",), "steps": 8}


@pytest.mark.parametrize("seed", [1, 11, 13, 23, 30, 47])
def test_transactions_that_no_damage_concerns_keep_every_promise(seed: int) -> None:
    verdict = simulate(Transactions, seed, **DAMAGE)
    assert verdict.problems == [], verdict.summary()
    assert any("finds its log damaged" in line for line in verdict.lines)
    assert verdict["committed"] > 20


@pytest.mark.parametrize("seed", [1, 2, 18, 22, 26])
def test_delayed_messages_that_are_whole_come_in_time_and_recalled_ones_never(seed: int) -> None:
    verdict = simulate(Delays, seed, **DAMAGE)
    assert verdict.problems == [], verdict.summary()
    assert any("finds its log damaged" in line for line in verdict.lines)


def silent(*arguments: Any) -> Iterator[Problem]:
    """A check that says nothing of the log."""
    return (problem for problem in fsck(*arguments) if not problem.place.startswith("commitlog/"))


@pytest.mark.parametrize("workload", [Messages, Delays, Transactions])
def test_damage_that_fsck_does_not_name_is_found(monkeypatch: pytest.MonkeyPatch, workload: type[Workload]) -> None:
    monkeypatch.setattr("simulation.history.fsck", silent)
    assert any("nothing is said of bytes" in problem for problem in simulate(workload, 2, **DAMAGE).problems)


@pytest.mark.parametrize("workload", [Messages, Delays, Transactions])
def test_a_whole_record_that_fsck_calls_damaged_is_found(monkeypatch: pytest.MonkeyPatch, workload: type[Workload]) -> None:
    hashes = checked._hashes
    monkeypatch.setattr(checked, "_hashes", lambda record: {7} | hashes(record))
    assert any("is about a record that is whole" in problem for problem in simulate(workload, 2, **DAMAGE).problems)


def log_ends_at_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.store.log.commit_log.CommitLog._behind_damage", lambda *arguments: None)


def test_delayed_messages_that_a_start_gives_up_behind_damage_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    log_ends_at_damage(monkeypatch)
    assert any(problem.startswith("lost:") for problem in simulate(Delays, 3, **DAMAGE).problems)


def test_transactions_that_a_start_gives_up_behind_damage_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    log_ends_at_damage(monkeypatch)
    assert any(problem.startswith("ends:") for problem in simulate(Transactions, 7, **DAMAGE).problems)


@pytest.mark.parametrize(("planted", "checker"), [(eager, "leaked:"), (repeating, "twice:")])
def test_what_no_damage_excuses_is_found(planted: Any, checker: str) -> None:
    assert any(problem.startswith(checker) for problem in simulate(Transactions, 1, make_broker=planted, **DAMAGE).problems)
