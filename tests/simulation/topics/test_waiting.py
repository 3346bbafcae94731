"""Messages that wait while their topic is deleted and made again: each comes to its own topic or expires; and the checkers bite."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.history import simulate
from simulation.topics.deleted import Deleted
from simulation.topics.waiting import Waiting

SEEDS, BITE = range(1, 9), range(1, 4)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_waits_for_a_deleted_topic_expires_and_comes_to_no_other(seed: int) -> None:
    verdict = simulate(Waiting, seed)
    assert verdict.problems == [], verdict.summary()
    assert verdict["expired"] > 0


@pytest.mark.parametrize(
    ("fault", "planted", "found"),
    [
        ("halfmoon.broker.topics.Topics.accepts_from", lambda *_: 0, ("back", "stray")),
        ("halfmoon.store.store.Store.is_message_of", lambda *_: True, ("lost",)),
        ("halfmoon.broker.delay.delivery.Deliveries._expire", lambda *_: (), ("lost",)),
        ("halfmoon.broker.transactions.expiry.Expiry._copy_once", lambda *_: None, ("lost",)),
    ],
)
@pytest.mark.parametrize("seed", BITE)
def test_what_is_delivered_by_name_or_dropped_is_found_in_every_seed(
    monkeypatch: pytest.MonkeyPatch, seed: int, fault: str, planted: Any, found: tuple[str, ...]
) -> None:
    monkeypatch.setattr(fault, planted)
    problems = simulate(Waiting, seed).problems
    assert any(problem.startswith(found) for problem in problems), problems


OURS = [("push", "poll"), ("orderly", "broadcast")]


@pytest.mark.parametrize("members", OURS)
@pytest.mark.parametrize("seed", range(31, 34))
def test_who_was_ahead_of_a_backup_is_given_every_message_of_the_restored_broker(seed: int, members: tuple[str, ...]) -> None:
    assert simulate(Deleted, seed, kinds=("restore",), members=members).problems == []


@pytest.mark.parametrize("seed", range(31, 34))
def test_a_restored_broker_whose_topics_keep_their_birth_is_found(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("halfmoon.broker.topics.Topics.renew", lambda *_: None)
    problems = simulate(Deleted, seed, kinds=("restore",), members=("push", "broadcast")).problems
    assert any(problem.startswith(("lost", "ahead")) for problem in problems), problems
