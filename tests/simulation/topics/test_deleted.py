"""A topic that is deleted, made anew and filled again, with kills in between: no group begins behind its new messages, nor goes on
behind them when it ran all the time; and the checkers bite.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from halfmoon.broker.admin.cleaning import Cleaning
from halfmoon.broker.request import Reply, Request
from halfmoon.testing.cluster import Cluster, topic_request
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.topic import DeleteTopicInBroker
from simulation.history import simulate
from simulation.topics.deleted import FOREIGN, MEMBERS, Deleted
from tests.simulation.faulty import faulty_broker, verdict_on

TOPIC = "orders"
MADE = topic_request(TOPIC, queues=4)


def progress_after_a_deletion(seed: int, flush: str, **options: Any) -> int:
    """Where the group begins in the topic made anew, after a kill right behind the answer to its deletion."""
    cluster = Cluster(seed, flush=flush, broker={"save_offsets_ms": 1000}, **options)
    node = cluster.brokers[0]
    cluster.run(ms=200)
    assert cluster.request(node.address, MADE).code == 0
    for number in range(10):
        cluster.send(TOPIC, b"%d" % number)
    cluster.run(ms=500)
    update = UpdateConsumerOffset(consumer_group="G", topic=TOPIC, queue_id=0, commit_offset=10)
    assert cluster.request(node.address, update).code == 0
    cluster.run(ms=3000)
    assert cluster.request(node.address, DeleteTopicInBroker(topic=TOPIC)).code == 0
    cluster.crash(node, power=seed % 2 == 1)
    cluster.restart(node)
    cluster.run(ms=500)
    assert cluster.request(node.address, MADE).code == 0
    for number in range(3):
        cluster.send(TOPIC, b"new %d" % number)
    cluster.run(ms=1000)
    reply = cluster.request(node.address, QueryConsumerOffset(consumer_group="G", topic=TOPIC, queue_id=0))
    return int(reply.header(OffsetReply).offset) if reply.code == 0 else 0


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_a_group_begins_a_recreated_topic_at_its_first_message(seed: int, flush: str) -> None:
    assert progress_after_a_deletion(seed, flush) == 0


@faulty_broker
def hasty(broker: Any) -> None:
    """A broker that answers a deletion before it is saved."""
    broker._handlers[215] = broker.admin.delete_topic


def test_a_broker_that_answers_a_deletion_before_it_is_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.broker.consumers.offsets.Offsets.drop_unknown", lambda self, topics: None)
    monkeypatch.setattr("halfmoon.broker.consumers.offsets.Offsets.clamp", lambda self, bounds: None)
    assert any(progress_after_a_deletion(seed, "async", make_broker=hasty) for seed in range(6))


# ---------------------------------------------------------------- consumers that run all the time

SEEDS, BITE = range(1, 13), range(1, 4)


history = partial(verdict_on, Deleted)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_runs_while_its_topic_is_deleted_and_made_anew_is_given_every_new_message(seed: int) -> None:
    assert history(seed).problems == []


def test_histories_of_deleted_topics_have_every_kind_of_member() -> None:
    verdicts = [history(seed) for seed in SEEDS]
    assert {member for verdict in verdicts for member in str(verdict.counts["as members"]).split(" and ")} == set(MEMBERS)


@pytest.mark.parametrize("seed", range(21, 25))
def test_what_an_operator_has_removed_meanwhile_is_nothing_in_use_also_when_the_broker_is_killed(seed: int) -> None:
    members = ("push", "poll") if seed % 2 else ("orderly", "broadcast")
    assert simulate(Deleted, seed, kinds=("clean", "kill"), members=members).problems == []


def test_a_broker_that_takes_topics_in_use_for_unused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def clean(self: Cleaning, request: Request) -> Reply:
        self._forget_topic(TOPIC, request.now.steady)
        return Reply()

    monkeypatch.setattr(Cleaning, "unused_topics", clean)
    assert any(simulate(Deleted, seed, kinds=("clean",), members=("push", "poll")).problems for seed in BITE)


def never(*arguments: Any) -> bool:
    """No."""
    return False


def anything(*arguments: Any) -> bool:
    """Whatever is asked for may be so."""
    return True


def says_nothing(*arguments: Any) -> None:
    """No birth is another's."""


@pytest.mark.parametrize("seed", BITE)
@pytest.mark.parametrize(
    ("fault", "planted", "members", "kinds"),
    [
        ("halfmoon.broker.pull.pulls.check_birth", says_nothing, ("push", "orderly"), ()),
        ("halfmoon.broker.pull.pulls.check_birth", says_nothing, ("poll", "broadcast"), ("kill",)),
        ("halfmoon.broker.consumers.progress.check_birth", says_nothing, ("push", "poll"), ("cut",)),
        ("halfmoon.client.core.consume.offsets.OffsetTable.birth", lambda *_: -1, ("orderly", "broadcast"), ()),
        ("halfmoon.client.core.consume.orderly.same_topic", anything, ("orderly",), ("kill",)),
        ("halfmoon.broker.pull.deleted_topics.StaleOffsets.must_restart", never, FOREIGN, ("busy",)),
        ("halfmoon.broker.pull.deleted_topics.StaleOffsets.is_stale", never, FOREIGN, ("busy",)),
    ],
)
def test_offsets_that_are_taken_for_those_of_the_new_topic_are_found_in_every_seed(
    monkeypatch: pytest.MonkeyPatch, seed: int, fault: str, planted: Any, members: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    monkeypatch.setattr(fault, planted)
    for member in members:
        problems = simulate(Deleted, seed, members=(member,), kinds=kinds).problems
        assert any(problem.startswith(("lost", "ahead")) for problem in problems), member
