"""The sinks against Apache's brokers: what arrives there, and that exactly-once is refused with the way out. Without Spark."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from halfmoon import Admin, PullConsumer
from halfmoon.client.batches import BatchName
from halfmoon.errors import NoRoute, UsageError
from halfmoon.model import StoredMessage
from halfmoon.spark.sink.exactly_once import prepare, transactions_of
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.spark.sink.sink import SinkTask, write
from tests.interop.apache import Cluster

TASK = SinkTask("query-1", 0, 0)


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A broker of Apache's."""
    found = Cluster(request.param, tmp_path_factory.mktemp("server"))
    found.start()
    yield found
    found.kill()


def options(server: Cluster, topic: str, delivery: str) -> SinkOptions:
    """A sink to a new topic with two queues."""
    with Admin(nameserver=server.nameserver) as admin:
        admin.create_topic(topic, queue_count=2)
        for _ in range(100):
            try:
                if admin.topic_route(topic).queue_datas:
                    break
            except NoRoute:
                pass
            time.sleep(0.1)
    return SinkOptions(endpoints=server.nameserver, topic=topic, delivery=delivery, batch_bytes=4096)


def stored(server: Cluster, topic: str, count: int) -> list[StoredMessage]:
    """Return the messages of a topic once there are so many."""
    found: list[StoredMessage] = []
    with PullConsumer(group="C_look", nameserver=server.nameserver) as consumer:
        queues = consumer.queues(topic)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        for _ in range(40):
            found += consumer.poll(timeout_ms=500)
            if len(found) >= count:
                break
        found += consumer.poll(timeout_ms=500)
    return found


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent"])
def test_rows_arrive_with_their_properties(server: Cluster, delivery: str) -> None:
    topic, names = f"Sink_{delivery}", [f"n-{i:03}" for i in range(200)]
    batch = pa.RecordBatch.from_pydict(
        {
            "body": names,
            "keys": [f"k{name}" for name in names],
            "tags": ["paid"] * 200,
            "properties": pa.array([[("color", "red")]] * 200, pa.map_(pa.string(), pa.string())),
        }
    )

    write(options(server, topic, delivery), TASK, iter([batch]))

    found = stored(server, topic, 200)
    assert sorted(message.body.decode() for message in found) == names
    assert len({message.msg_id for message in found}) == 200
    message = next(message for message in found if message.body == b"n-007")
    assert (message.keys, message.tag, message.properties["color"]) == (("kn-007",), "paid", "red")


def test_a_delayed_row_arrives_later(server: Cluster) -> None:
    chosen = options(server, "Sink_delay", "at-least-once")
    batch = pa.RecordBatch.from_pydict({"body": ["now", "later"], "delayLevel": [0, 1]})

    write(chosen, TASK, iter([batch]))

    assert sorted(message.body for message in stored(server, "Sink_delay", 2)) == [b"later", b"now"]


def test_exactly_once_is_refused_and_the_way_out_named(server: Cluster) -> None:
    chosen = options(server, "Sink_exactly", "exactly-once")
    batch = pa.RecordBatch.from_pydict({"body": ["a"]})

    with pytest.raises(UsageError, match="delivery=at-least-once"):
        prepare(transactions_of(chosen), chosen, BatchName("query-1", 0), 0, [batch])
