"""The client of batch transactions against a real broker of ours: unseen until applied, then there once, and clear refusals."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from halfmoon.client.batches import BatchName, BatchPromise, BatchTransactions, batch_transactions
from halfmoon.client.ranges import Ranges
from halfmoon.errors import BrokerError, NetworkError, UsageError
from halfmoon.model import MessageQueue
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.record import decode_records, encode_batch
from tests.topics import new_topic

pytestmark = pytest.mark.slow

BROKER = "broker-a"
_numbers = count()


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[BatchTransactions]:
    with BatchTransactions(nameserver=cluster.nameserver, retries_max=3) as running:
        yield running


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    return new_topic(cluster.nameserver, queue_count=2)


def new_batch() -> BatchName:
    return BatchName(f"query-{next(_numbers)}", 0)


def piece(*bodies: bytes) -> bytes:
    return encode_batch((body, b"", 0) for body in bodies)


def prepared(client: BatchTransactions, batch: BatchName, attempt: str, queue: MessageQueue, *bodies: bytes) -> BatchPromise:
    stored = client.prepare(batch, attempt, 0, queue, 0, len(bodies), piece(*bodies)).result(60)
    assert (stored.decided, stored.coordinator) == (False, BROKER)
    return BatchPromise(count=len(bodies), checksum=stored.checksum)


def seen(cluster: LocalCluster, topic: str) -> list[bytes]:
    with Ranges(nameserver=cluster.nameserver) as here:
        ends = here.bounds(topic)
        pieces = [
            raw for (broker, queue), (low, high) in sorted(ends.items()) for raw in here.read(broker, topic, queue, low, high)
        ]
    return [message.body for raw in pieces for message in decode_records(raw)]


def test_a_batch_is_unseen_until_it_is_applied_and_then_there_once(cluster: LocalCluster, client: BatchTransactions, topic: str):
    batch, queues = new_batch(), client.queues(topic)
    assert [(queue.broker_name, queue.queue_id) for queue in queues] == [(BROKER, 0), (BROKER, 1)]
    attempts = {
        "a1": prepared(client, batch, "a1", queues[0], b"one", b"two"),
        "a2": prepared(client, batch, "a2", queues[1], b"three"),
    }
    lost = prepared(client, batch, "lost", queues[1], b"of a task that died")

    assert client.vote(batch, BROKER, BROKER, attempts) is None
    assert client.resolve(batch, BROKER, "a1") == "UNDECIDED"
    assert seen(cluster, topic) == []
    first = client.decide(batch, BROKER, {BROKER: attempts}, "digest 1")
    client.apply(batch, BROKER, BROKER, first.parts[BROKER])
    again = client.decide(batch, BROKER, {BROKER: {"lost": lost}}, "digest 2")
    client.apply(batch, BROKER, BROKER, attempts)

    assert (first.already, first.digest, first.refused) == (False, "digest 1", None)
    assert (again.already, again.digest, again.last) == (True, "digest 1", 0)
    assert client.resolve(batch, BROKER, "lost") == "ABORT"
    assert seen(cluster, topic) == [b"one", b"two", b"three"]


def test_a_task_that_comes_late_hears_that_its_batch_is_decided(client: BatchTransactions, topic: str):
    batch, queue = new_batch(), client.queues(topic)[0]
    parts = {BROKER: {"a": prepared(client, batch, "a", queue, b"x")}}
    client.vote(batch, BROKER, BROKER, parts[BROKER])
    client.decide(batch, BROKER, parts)

    late = client.prepare(batch, "zombie", 0, queue, 0, 1, piece(b"late")).result(60)

    assert late.decided


def test_a_broker_says_why_it_does_not_hold_an_attempt(client: BatchTransactions, topic: str):
    batch, queue = new_batch(), client.queues(topic)[0]
    promise = prepared(client, batch, "a", queue, b"x")

    wrong = client.vote(batch, BROKER, BROKER, {"a": BatchPromise(count=2, checksum=promise.checksum)})
    unknown = client.vote(batch, BROKER, BROKER, {"a": promise, "nobody": promise})

    assert wrong is not None
    assert unknown is not None
    assert client.vote(batch, BROKER, BROKER, {"a": promise}) is None


def test_what_is_aborted_is_dropped_and_not_held_any_more(client: BatchTransactions, topic: str):
    batch, queue = new_batch(), client.queues(topic)[0]
    attempts = {"a": prepared(client, batch, "a", queue, b"x")}

    assert client.abort(batch, BROKER, attempts) == 1
    assert client.vote(batch, BROKER, BROKER, attempts) is not None


def test_pieces_go_side_by_side_and_a_repeat_of_one_is_stored_once(cluster: LocalCluster, client: BatchTransactions, topic: str):
    batch, queue = new_batch(), client.queues(topic)[0]
    waiting = [client.prepare(batch, "a", 0, queue, k // 2, 1, piece(b"%d" % (k // 2))) for k in range(20)]
    stored = [future.result(60) for future in waiting]
    checksum = sum(one.checksum for one in stored[::2]) % 2**32

    attempts = {"a": BatchPromise(count=10, checksum=checksum)}
    assert client.vote(batch, BROKER, BROKER, attempts) is None
    client.decide(batch, BROKER, {BROKER: attempts})
    client.apply(batch, BROKER, BROKER, attempts)

    assert seen(cluster, topic) == [b"%d" % k for k in range(10)]


@pytest.mark.parametrize("code", [31030, 31031, 31032, 31033])
def test_a_broker_without_batch_transactions_is_refused_by_a_text_that_says_what_works(
    cluster: LocalCluster, client: BatchTransactions, topic: str, monkeypatch: pytest.MonkeyPatch, code: int
):
    batch, queue = new_batch(), client.queues(topic)[0]
    broker = cluster._programs[1].broker
    assert broker is not None
    monkeypatch.delitem(broker._handlers, code)
    asked = {
        31030: lambda: prepared(client, batch, "a", queue, b"x"),
        31031: lambda: client.vote(batch, BROKER, BROKER, {}),
        31032: lambda: client.decide(batch, BROKER, {}),
        31033: lambda: client.apply(batch, BROKER, BROKER, {}),
    }

    with pytest.raises(UsageError, match="delivery=at-least-once"):
        asked[code]()


def test_a_queue_or_a_broker_that_is_not_there_is_named(client: BatchTransactions, topic: str):
    batch, queue = new_batch(), MessageQueue(topic, BROKER, 99)

    with pytest.raises(BrokerError, match="has no queue 99"):
        prepared(client, batch, "a", queue, b"x")
    with pytest.raises(NetworkError, match="no broker nobody"):
        client.prepare(batch, "a", 0, MessageQueue(topic, "nobody", 0), 0, 1, piece(b"x")).result(60)


def test_a_broker_that_is_killed_between_all_steps_costs_nothing_and_doubles_nothing(tmp_path: Path):
    with LocalCluster(tmp_path) as cluster, BatchTransactions(nameserver=cluster.nameserver) as client:
        topic = new_topic(cluster.nameserver, queue_count=2)
        batch, queue = new_batch(), client.queues(topic)[0]

        def killed() -> threading.Timer:
            cluster.kill()
            back = threading.Timer(0.3, cluster.start)
            back.start()
            return back

        attempts = {"a": prepared(client, batch, "a", queue, b"one", b"two")}
        back = killed()
        assert client.vote(batch, BROKER, BROKER, attempts) is None
        back.join()
        back = killed()
        decision = client.decide(batch, BROKER, {BROKER: attempts}, "d")
        back.join()
        back = killed()
        client.apply(batch, BROKER, BROKER, decision.parts[BROKER])
        back.join()
        back = killed()
        client.apply(batch, BROKER, BROKER, decision.parts[BROKER])
        back.join()

        assert seen(cluster, topic) == [b"one", b"two"]


def test_a_process_has_one_client_for_the_same_settings(cluster: LocalCluster):
    one = batch_transactions(nameserver=cluster.nameserver)

    assert batch_transactions(nameserver=cluster.nameserver) is one
    assert batch_transactions(nameserver=cluster.nameserver, transaction_timeout_ms=5_000) is not one
