"""Attempts against a real broker: two that both finish, and zombies that write when all is decided."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from halfmoon import MessageQueue
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.data.sending.transaction import NotDecided, PrepareReport, commit_batch
from halfmoon.spark.sink.exactly_once import prepare
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies.batches import BatchPromise
from halfmoon.wire.record import BatchItem, encode_batch
from tests.spark.faults.topics import Topics

ROWS = pa.RecordBatch.from_pydict({"body": [f"row-{i}" for i in range(60)], "queueId": [i % 4 for i in range(60)]})
WANTED = {queue: [f"row-{i}" for i in range(queue, 60, 4)] for queue in range(4)}


@pytest.fixture
def transactions(cluster: LocalCluster) -> Iterator[BatchTransactions]:
    """The client of batch transactions."""
    with BatchTransactions(nameserver=cluster.nameserver) as found:
        yield found


class Task:
    """The one task of a batch, whose name is the topic's."""

    def __init__(self, transactions: BatchTransactions, at: Topics, topic: str) -> None:
        at.make(topic)
        self.transactions, self.batch = transactions, BatchName(topic, 0)
        self.options = SinkOptions(endpoints=at.nameserver, topic=topic, delivery="exactly-once", batch_bytes=1024)

    def attempt(self) -> PrepareReport:
        """Write all rows."""
        return prepare(self.transactions, self.options, self.batch, 0, [ROWS])

    def commit_batch(self, said: PrepareReport) -> None:
        """Commit an attempt."""
        commit_batch(self.transactions, self.options, [said])


def test_two_attempts_that_both_finish_are_one(transactions: BatchTransactions, at: Topics, topic: str):
    task = Task(transactions, at, topic)
    loser, winner = task.attempt(), task.attempt()

    task.commit_batch(winner)
    with pytest.raises(NotDecided, match="batch 0 is decided"):
        task.commit_batch(loser)

    assert at.contents(topic) == WANTED
    assert at.held(topic) == 0


def test_a_zombie_that_writes_after_the_decision_is_refused_and_leaves_nothing(
    transactions: BatchTransactions, at: Topics, topic: str
):
    task = Task(transactions, at, topic)
    body = encode_batch([BatchItem(b"zombie", b"")])
    queue = MessageQueue(topic, "broker-a", 0)
    early = transactions.prepare(task.batch, "zombie", 0, queue, 0, 1, body).result()
    assert not early.decided
    said = task.attempt()
    parts = {"broker-a": {said.attempt: said.parts()["broker-a"]}}
    assert transactions.vote(task.batch, "broker-a", early.coordinator, parts["broker-a"]) is None
    assert not transactions.decide(task.batch, early.coordinator, parts).already

    late = transactions.prepare(task.batch, "zombie", 0, queue, 1, 1, body).result()
    promise = {"zombie": BatchPromise(1, early.checksum)}
    vote = transactions.vote(task.batch, "broker-a", early.coordinator, promise)
    other = transactions.decide(task.batch, early.coordinator, {"broker-a": promise})
    transactions.apply(task.batch, "broker-a", early.coordinator, other.parts["broker-a"])

    assert late.decided
    assert vote == "batch 0 is decided"
    assert other.already
    assert other.parts == parts
    assert at.contents(topic) == WANTED
    assert at.held(topic) == 0


def test_a_commit_of_a_task_that_came_too_late_is_done_by_the_decision_that_is_there(
    transactions: BatchTransactions, at: Topics, topic: str
):
    task = Task(transactions, at, topic)
    task.commit_batch(task.attempt())

    zombie = task.attempt()
    task.commit_batch(zombie)

    assert zombie.decided
    assert at.contents(topic) == WANTED
    assert at.held(topic) == 0
