"""Tests of the exactly-once sink with a real broker, without Spark: what is visible, in which order, and over a killed broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from halfmoon import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.client.ranges import Ranges
from halfmoon.data.sending.encode import Ids
from halfmoon.data.sending.transaction import NotDecided, commit_batch
from halfmoon.errors import UsageError
from halfmoon.model import StoredMessage
from halfmoon.spark.sink.exactly_once import prepare
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.spark.sink.sink import SinkTask, write
from halfmoon.testing.local import LocalCluster
from tests.spark.waiting import until
from tests.visible import visible

BATCH = BatchName("query-1", 0)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker of the test's own with a topic of four queues."""
    with LocalCluster(tmp_path / "store") as found:
        with Admin(nameserver=found.nameserver) as admin:
            admin.create_topic("orders", queue_count=4)
        yield found


@pytest.fixture
def transactions(own: LocalCluster) -> Iterator[BatchTransactions]:
    """The client of batch transactions."""
    with BatchTransactions(nameserver=own.nameserver, request_timeout_ms=5_000) as found:
        yield found


def options(own: LocalCluster) -> SinkOptions:
    """A sink to the topic."""
    return SinkOptions(endpoints=own.nameserver, topic="orders", delivery="exactly-once", batch_bytes=1024)


def rows(bodies: list[str], **columns: list) -> pa.RecordBatch:
    """Return rows with these bodies."""
    return pa.RecordBatch.from_pydict({"body": bodies, **columns})


def stored(own: LocalCluster) -> dict[int, list[StoredMessage]]:
    """Return the messages of the topic by queue, in their order."""
    found: dict[int, list[StoredMessage]] = {}
    for message in visible(own.nameserver, "orders"):
        found.setdefault(message.queue_id, []).append(message)
    return found


def test_rows_are_visible_as_a_whole_with_their_properties_and_ids(own: LocalCluster, transactions: BatchTransactions):
    names = [f"n-{i:03}" for i in range(300)]
    tags = ["paid" if i % 2 else None for i in range(300)]
    said = prepare(transactions, options(own), BATCH, 2, [rows(names, tags=tags, keys=names)])
    assert stored(own) == {}

    commit_batch(transactions, options(own), [said])

    found = {message.body.decode(): message for messages in stored(own).values() for message in messages}
    assert sorted(found) == names
    assert [found[name].tag for name in names] == tags
    assert [found[name].msg_id for name in names] == [Ids.of(*BATCH, 2).text(i) for i in range(300)]


def test_rows_of_a_key_keep_their_order_over_partitions_and_batches(own: LocalCluster, transactions: BatchTransactions):
    for number in range(3):
        said = []
        for partition in (1, 0):
            names = [f"{number}-{partition}-{i:03}" for i in range(60)]
            batch = rows(names, shardingKey=[f"k{i % 5}" for i in range(60)])
            said.append(prepare(transactions, options(own), BatchName("query-1", number), partition, [batch]))
        commit_batch(transactions, options(own), said)

    found = {queue: [message.body.decode() for message in messages] for queue, messages in stored(own).items()}
    for key in range(5):
        queues = [queue for queue, bodies in found.items() if f"0-0-{key:03}" in bodies]
        assert len(queues) == 1
        wanted = [f"{n}-{p}-{i:03}" for n in range(3) for p in range(2) for i in range(key, 60, 5)]
        assert [body for body in found[queues[0]] if int(body[-3:]) % 5 == key] == wanted


@pytest.mark.parametrize("killed", ["before the commit", "behind the commit"])
def test_a_broker_that_is_killed_and_comes_back_holds_each_row_once(
    own: LocalCluster, transactions: BatchTransactions, killed: str
):
    names = [f"n-{i:03}" for i in range(200)]
    said = prepare(transactions, options(own), BATCH, 0, [rows(names)])
    if killed == "behind the commit":
        commit_batch(transactions, options(own), [said])
    own.kill()
    own.start()

    try:
        commit_batch(transactions, options(own), [said])
    except NotDecided:  # it had lost what it was not asked to keep yet
        pass
    commit_batch(transactions, options(own), [prepare(transactions, options(own), BATCH, 0, [rows(names)])])

    assert sorted(message.body.decode() for messages in stored(own).values() for message in messages) == names


def test_delayed_rows_come_at_their_time_behind_the_others_and_dead_letters_with_the_batch(
    own: LocalCluster, transactions: BatchTransactions
):
    with Admin(nameserver=own.nameserver) as admin:
        admin.create_topic("dead", queue_count=1)
    wanted = replace(options(own), on_too_large="dlq", dlq_topic="dead", message_bytes=2_048)
    at = datetime.now(UTC) + timedelta(seconds=2)
    batch = rows(["now", "by level", "by time", "large" * 1_000], delayLevel=[0, 1, None, None], deliverAt=[None, None, at, None])
    said = prepare(transactions, wanted, BATCH, 0, [batch])
    assert (said.rows, said.too_large) == (4, 1)

    commit_batch(transactions, wanted, [said])
    commit_batch(transactions, wanted, [prepare(transactions, wanted, BATCH, 0, [batch])])  # run again, it adds nothing

    until(lambda: len(visible(own.nameserver, "orders")) == 3, "the delayed rows")
    found = visible(own.nameserver, "orders")
    assert sorted(message.body.decode() for message in found) == ["by level", "by time", "now"]
    times = {message.body.decode(): message.store_ms for message in found}
    assert times["by level"] >= times["now"] + 1_000
    assert times["by time"] >= int(at.timestamp() * 1000)
    (dead,) = visible(own.nameserver, "dead")
    assert dead.properties["TOO_LARGE_BYTES"] == "5000"


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent", "exactly-once"])
def test_a_topic_that_takes_no_messages_is_an_error_that_says_what_to_do(
    own: LocalCluster, transactions: BatchTransactions, delivery: str
):
    with Admin(nameserver=own.nameserver) as admin:
        admin.create_topic("shut", queue_count=2, perm=4)
    wanted = SinkOptions(endpoints=own.nameserver, topic="shut", delivery=delivery)

    def sends() -> object:
        if delivery == "exactly-once":
            return prepare(transactions, wanted, BATCH, 0, [rows(["a"])])
        return write(wanted, SinkTask("query-1", 0, 0), iter([rows(["a"])]))

    with pytest.raises(UsageError, match=r"shut.*make it writable \(--perm 6\)"):
        sends()


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent", "exactly-once"])
def test_compressed_bodies_come_out_as_they_were(own: LocalCluster, transactions: BatchTransactions, delivery: str):
    wanted = SinkOptions(endpoints=own.nameserver, topic="orders", delivery=delivery, compression="zlib")
    batch = rows([f"{i} " * 1_000 for i in range(50)], keys=[str(i) for i in range(50)])

    if delivery == "exactly-once":
        commit_batch(transactions, wanted, [prepare(transactions, wanted, BATCH, 0, [batch])])
    else:
        write(wanted, SinkTask("query-1", 0, 0), iter([batch]))

    found = [message for messages in stored(own).values() for message in messages]
    assert sorted((message.keys[0], message.body.decode()) for message in found) == sorted(
        (str(i), f"{i} " * 1_000) for i in range(50)
    )
    with Ranges(nameserver=own.nameserver) as client:
        size = sum(
            len(raw) for key, ends in client.bounds("orders").items() for raw in client.read(key[0], "orders", key[1], *ends)
        )
    assert size < 50 * 500
