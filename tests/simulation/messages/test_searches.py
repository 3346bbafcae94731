"""Searches of a quiet cluster agree with what its queues hold, and a search that lies is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from halfmoon.testing.cluster import Cluster
from simulation.history import History
from simulation.ledger import Contents, Ledger, Queue
from simulation.messages.searches import searches_differ


@pytest.fixture
def filled() -> tuple[History, Contents]:
    history = History(Cluster(1), Ledger("async"))
    history.create_topics("orders", queues=1)
    for number in range(5):
        history.cluster.send("orders", b"%d" % number)
        history.cluster.run(ms=20)
    return history, history.contents(history.places(["orders"], 1))


def test_a_good_broker_answers_what_its_queues_hold(filled: tuple[History, Contents]) -> None:
    history, contents = filled
    assert searches_differ(history.cluster, history.plan, contents, history.messages) == []


def test_messages_that_the_broker_does_not_have_are_not_found(filled: tuple[History, Contents]) -> None:
    history, contents = filled
    [(place, queue)] = contents.items()
    moved = {offset: seen._replace(physical_offset=seen.physical_offset + 1) for offset, seen in queue.messages.items()}
    problems = searches_differ(history.cluster, history.plan, {place: Queue(0, 5, moved)}, replace(history.messages))
    assert {problem.partition(" lies at")[0] for problem in problems} == {f"{place}@{offset}" for offset in range(5)}
