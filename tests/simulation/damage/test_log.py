"""Brokers whose files vanish or are damaged between runs, and that cannot save tables: they lose nothing; the checkers bite."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.columns import record
from halfmoon.store.queues.missing import Rebuild
from simulation.history import simulate
from simulation.messages import Messages


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        *[(1, "vanish"), (6, "vanish,power"), (3, "flip"), (5, "flip,power"), (1, "unwritable")],
        *[(2, "damage"), (6, "damage"), (8, "damage"), (15, "damage")],
    ],
)
def test_every_promise_holds_when_files_are_removed_or_damaged_between_runs(seed: int, kinds: str) -> None:
    assert simulate(Messages, seed, kinds=tuple(kinds.split(","))).problems == []


@pytest.mark.parametrize(
    ("seed", "flush", "kinds"),
    [
        *[(6, "sync", "damage,power"), (35, "sync", "damage,power"), (12, "async", "damage,power"), (53, "async", "damage,power")],
        (23, "async", "damage,power"),
        *[(13, "sync", "vanish,power"), (5, "async", "damage,power,vanish"), (11, "sync", "damage,vanish,torn,stop")],
        *[(8, "sync", "flip,damage"), (20, "async", "flip,power"), (61, "async", "flip,power")],
    ],
)
def test_no_offset_is_given_out_again_when_several_things_go_wrong_at_once(seed: int, flush: str, kinds: str) -> None:
    assert simulate(Messages, seed, flush=flush, kinds=tuple(kinds.split(","))).problems == []


def unnoticed(*arguments: Any, **options: Any) -> Rebuild:
    """Nothing is missing."""
    return Rebuild({})


def nothing(*arguments: Any, **options: Any) -> None:
    """Do, or find, nothing."""


def found(seed: int, kind: str, checker: str) -> bool:
    """Whether a seed's history makes a checker speak."""
    return any(problem.startswith(checker) for problem in simulate(Messages, seed, steps=8, kinds=(kind,)).problems)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("fault", "planted"),
    [("halfmoon.store.opening.missing", unnoticed), ("halfmoon.store.queues.inventory.Inventory._note", nothing)],
)
def test_queues_that_are_gone_and_not_noticed_are_found_in_every_seed(
    monkeypatch: pytest.MonkeyPatch, fault: str, planted: Any, seed: int
) -> None:
    monkeypatch.setattr(fault, planted)
    assert found(seed, "vanish", "lost")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_key_index_that_is_gone_and_not_noticed_is_found_in_every_seed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("halfmoon.store.keyindex.indexing.Indexing._missing", nothing)
    assert found(seed, "vanish", "indexes")


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_a_pull_that_looks_at_no_record_is_found_in_every_seed(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("halfmoon.store.queues.reading.gather", record.gather)
    monkeypatch.setattr("halfmoon.columns.record._is_whole", lambda data, at, size, *place: 0 < size <= len(data) - at)
    assert any("brought what is no message" in problem for problem in simulate(Messages, seed, steps=8, kinds=("damage",)).problems)


@pytest.mark.parametrize(
    ("fault", "planted"),
    [
        ("halfmoon.store.store.offset_at", lambda *asked: 0),
        ("halfmoon.store.store.bound_at", lambda *asked, upper: 1),
        ("halfmoon.store.log.commit_log.CommitLog.record", nothing),
    ],
    ids=["by time", "the earliest", "by id"],
)
def test_a_search_that_answers_something_else_is_found(monkeypatch: pytest.MonkeyPatch, fault: str, planted: Any) -> None:
    monkeypatch.setattr(fault, planted)
    assert found(1, "kill", "searches")


def test_a_row_that_is_believed_though_it_is_damaged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.store.journal.crc32", lambda data, crc=0: 7)
    assert any(found(seed, "flip", "") for seed in range(1, 13)), "a flipped bit may also hit what no start uses"


@pytest.mark.parametrize("seed", [1, 2])
def test_progress_that_is_acknowledged_and_cannot_be_saved_is_found_in_every_seed(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("halfmoon.broker.consumers.offsets.Offsets.check", nothing)
    assert found(seed, "unwritable", "consumer offsets")


@pytest.mark.parametrize(
    ("fault", "problem", "seed"),
    [
        ("queues.reservations.Reservations.raise_floors", "offsets", 6),  # an offset is given out again
        ("queues.reservations.Reservations.raise_floors", "offsets", 7),
        ("log.commit_log.CommitLog._behind_damage", "lost", 11),  # the log ends at the first damage
        ("log.commit_log.CommitLog._behind_damage", "lost", 2),
        ("log.quarantine.Quarantine.rest", "kept nowhere", 2),
        ("log.quarantine.Quarantine.rest", "kept nowhere", 11),
        ("log.recovery.Recovery._report", "nothing is said", 6),
        ("log.recovery.Recovery._report", "nothing is said", 1),
    ],
)
def test_a_start_on_a_damaged_log_that_breaks_a_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: str, problem: str, seed: int
) -> None:
    monkeypatch.setattr(f"halfmoon.store.{fault}", nothing)
    assert any(problem in found for found in simulate(Messages, seed, steps=8, kinds=("damage",)).problems)


@pytest.mark.parametrize(
    ("fault", "kinds", "problem", "seed"),
    [
        ("queues.reservations.Reservations.raise_all_floors", "damage,power", "offsets", 11),  # sync flush without reservations
        ("queues.reservations.Reservations.raise_all_floors", "damage,power", "offsets", 7),
        ("queues.inventory.Inventory.note_durable", "vanish,power", "lost", 28),
        ("queues.inventory.Inventory.note_durable", "vanish,power", "lost", 24),
    ],
)
def test_a_start_after_a_loss_of_power_that_breaks_a_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, fault: str, kinds: str, problem: str, seed: int
) -> None:
    monkeypatch.setattr(f"halfmoon.store.{fault}", nothing)
    assert any(
        found.startswith(problem)
        for found in simulate(Messages, seed, steps=8, flush="sync", kinds=tuple(kinds.split(","))).problems
    )
