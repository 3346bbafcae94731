"""Tests of the sinks that send as rows come: what arrives, what a second run adds, how much is under way, what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType

from halfmoon import Admin
from halfmoon.client.ranges import Ranges
from halfmoon.errors import ConnectionLost, MessageIllegal, UsageError
from halfmoon.model import RECONSUME_REASON, MessageQueue
from halfmoon.spark.sink import sink
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.spark.sink.sink import BatchWriter, RowSender, SendReport, SinkTask, batch_writer, stream_task, stream_writer, write
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.record import decode_batch
from tests.spark.waiting import until
from tests.visible import visible

TASK = SinkTask("query-1", 4, 0)
GIVEN = {"endpoints": "127.0.0.1:9876", "topic": "orders"}
ROW = StructType([StructField("body", StringType()), StructField("keys", StringType())])


def rows(bodies: list[str], **columns: list) -> pa.RecordBatch:
    """Return rows with these bodies."""
    return pa.RecordBatch.from_pydict({"body": bodies, **columns})


def stored(cluster: LocalCluster, topic: str) -> dict[tuple[str, int], list]:
    """Return the messages of a topic by queue, in their order."""
    found: dict[tuple[str, int], list] = {}
    for message in visible(cluster.nameserver, topic):
        found.setdefault((message.broker_name, message.queue_id), []).append(message)
    return found


class FakeProducer:
    """Keeps what is submitted; answers when told, at most so many at a time."""

    def __init__(self, queue_count: int = 4) -> None:
        self.sent: list = []
        self.open: list[Future] = []
        self.under_way = self.most = 0
        self._queue_count = queue_count

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic."""
        return [MessageQueue(topic, "b-0", i) for i in range(self._queue_count)]

    def send_encoded(self, encoded, queues) -> Future:
        """Take a request; its answer comes when somebody waits for it."""
        future = Waited(self)
        self.sent.append((encoded, list(queues)))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        return future


class Waited(Future):
    """A future that is done once its result is asked for."""

    def __init__(self, owner: FakeProducer) -> None:
        super().__init__()
        self._owner = owner

    def result(self, timeout: float | None = None):
        """Answer now."""
        if not self.done():
            self._owner.under_way -= 1
            self.set_result(None)
        return super().result(timeout)


@pytest.fixture
def options(cluster: LocalCluster, topic: str) -> SinkOptions:
    """A sink to a topic of the test's own."""
    return SinkOptions(endpoints=cluster.nameserver, topic=topic, batch_bytes=2000)


def bodies(found: dict) -> list[str]:
    """Return all bodies, sorted."""
    return sorted(message.body.decode() for messages in found.values() for message in messages)


def test_rows_arrive_with_their_properties(cluster: LocalCluster, topic: str, options: SinkOptions):
    names = [f"n-{i:03}" for i in range(200)]
    batch = rows(names, keys=[f"k{i}" for i in range(200)], tags=["paid"] * 200)

    done = write(options, TASK, iter([batch.slice(0, 90), batch.slice(90)]))

    found = stored(cluster, topic)
    assert bodies(found) == names
    assert done.rows == 200
    assert 8 < done.requests < 30
    assert len(found) == 4  # spread over all queues
    message = found["broker-a", 0][0] if ("broker-a", 0) in found else next(iter(found.values()))[0]
    assert (message.keys, message.tag, len(message.msg_id)) == ((f"k{int(message.body[2:])}",), "paid", 32)


def test_rows_of_one_sharding_key_lie_in_one_queue_in_their_order(cluster: LocalCluster, topic: str, options: SinkOptions):
    names = [f"{i % 7}-{i:03}" for i in range(300)]

    write(options, TASK, iter([rows(names, shardingKey=[name[0] for name in names])]))

    found = stored(cluster, topic)
    for key in "0123456":
        queues = [queue for queue, messages in found.items() if any(m.body.startswith(f"{key}-".encode()) for m in messages)]
        assert len(queues) == 1
        mine = [m.body.decode() for m in found[queues[0]] if m.body.startswith(f"{key}-".encode())]
        assert mine == [name for name in names if name[0] == key]


def test_at_least_once_a_second_run_sends_all_again(cluster: LocalCluster, topic: str, options: SinkOptions):
    for _ in range(2):
        write(options, TASK, iter([rows(["a", "b"])]))

    assert bodies(stored(cluster, topic)) == ["a", "a", "b", "b"]


def test_idempotent_a_second_run_of_a_part_adds_what_was_missing(cluster: LocalCluster, topic: str):
    options = SinkOptions(endpoints=cluster.nameserver, topic=topic, delivery="idempotent")
    names = [f"n-{i:02}" for i in range(40)]
    write(options, TASK, iter([rows(names[:25])]))  # a first attempt that was killed on its way

    write(options, TASK, iter([rows(names)]))
    write(options, TASK, iter([rows(names[:10]), rows(names[10:])]))

    found = stored(cluster, topic)
    assert bodies(found) == names
    assert len(found) == 4
    assert "INNER_REPEAT" not in next(iter(found.values()))[0].properties


def test_idempotent_other_batches_partitions_and_queries_are_other_rows(cluster: LocalCluster, topic: str):
    options = SinkOptions(endpoints=cluster.nameserver, topic=topic, delivery="idempotent")
    for task in (TASK, SinkTask("query-1", 5, 0), SinkTask("query-1", 4, 1), SinkTask("query-2", 4, 0)):
        write(options, task, iter([rows(["x"])]))

    assert bodies(stored(cluster, topic)) == ["x"] * 4


@pytest.mark.parametrize("delivery", ["at-least-once", "idempotent"])
def test_rows_that_are_too_large_become_dead_letters(cluster: LocalCluster, topic: str, delivery: str, caplog):
    options = SinkOptions(
        endpoints=cluster.nameserver, topic=topic, delivery=delivery, message_bytes=2_048, on_too_large="dlq",
        dlq_topic=f"{topic}_dead",
    )  # fmt: skip
    batch = rows(["a", "large" * 1_000, "c"])
    for _ in range(2):
        done = write(options, TASK, iter([batch]))

    times = 1 if delivery == "idempotent" else 2
    assert bodies(stored(cluster, topic)) == sorted(["a", "c"] * times)
    dead = [message for messages in stored(cluster, f"{topic}_dead").values() for message in messages]
    assert len(dead) == times
    assert dead[0].properties[RECONSUME_REASON].startswith("row 1 of its task is a message of 5")
    assert done == SendReport(3, done.requests, 1)
    with caplog.at_level("INFO", "halfmoon.spark"):
        BatchWriter(options).commit([done, None, done])
    assert [record.getMessage() for record in caplog.records] == [
        f"rows written: delivery={delivery} rows=6 tasks=2",
        f"messages too large, sent as dead letters: count=2 topic={topic}_dead",
    ]


def test_delayed_rows_travel_alone_and_idempotent_refuses_them(cluster: LocalCluster, topic: str, options: SinkOptions):
    batch = rows(["now", "later", "then"], delayLevel=[0, 1, None])

    assert write(options, TASK, iter([batch])) == SendReport(3, 2)
    until(lambda: len(visible(cluster.nameserver, topic)) == 3, "the delayed row")
    found = {message.body.decode(): message for message in visible(cluster.nameserver, topic)}
    assert sorted(found) == ["later", "now", "then"]
    assert found["later"].store_ms - found["later"].born_ms >= 1_000  # level 1 is a second
    assert found["later"].store_ms > found["now"].store_ms
    with pytest.raises(UsageError, match="no delayed rows"):
        write(SinkOptions(endpoints=cluster.nameserver, topic=topic, delivery="idempotent"), TASK, iter([batch]))


def test_idempotent_a_broker_with_more_queues_than_before_knows_its_repeats(cluster: LocalCluster, topic: str):
    options = SinkOptions(endpoints=cluster.nameserver, topic=topic, delivery="idempotent")
    batch = rows([f"n-{i:02}" for i in range(40)], shardingKey=[None, "k", "m", "n"] * 10)
    with Admin(nameserver=cluster.nameserver) as admin, Ranges(nameserver=cluster.nameserver) as ranges:
        admin.create_topic(topic, queue_count=2)
        write(options, TASK, iter([batch]))
        before = stored(cluster, topic)
        admin.create_topic(topic, queue_count=5)
        until(lambda: len(ranges.bounds(topic)) == 5, "five queues")
    assert bodies(before) == [f"n-{i:02}" for i in range(40)]

    later = replace(options, producer_group="later")  # asks for its queues anew
    write(later, TASK, iter([batch]))
    assert stored(cluster, topic) == before
    write(later, SinkTask("query-2", 0, 0), iter([batch]))
    assert (len(before), len(stored(cluster, topic))) == (2, 5)


def test_idempotent_rows_choose_among_the_queues_that_are_there():
    chosen = []
    for queue_count in (4, 5):
        producer = FakeProducer(queue_count)
        sending = RowSender(producer, SinkOptions(endpoints="x:1", topic="orders", delivery="idempotent"), TASK)
        sending.rows(rows([f"r{i}" for i in range(20)]))
        chosen.append([queue.queue_id for _, (queue,) in producer.sent])

    assert chosen[0] == [i % 4 for i in range(20)]
    assert chosen[1] == [i % 5 for i in range(20)]


@pytest.mark.parametrize(("delivery", "most"), [("at-least-once", 3), ("idempotent", 3 * 64)])
def test_no_more_requests_are_under_way_than_the_option_says(delivery: str, most: int):
    producer = FakeProducer()
    options = SinkOptions(endpoints="x:1", topic="orders", delivery=delivery, in_flight=3, batch_bytes=1024)
    sending = RowSender(producer, options, TASK)

    sending.rows(rows([f"{i:05}" * 10 for i in range(500)]))
    done = sending.finish()

    assert producer.most == most
    assert done == SendReport(500, len(producer.sent))
    assert producer.under_way == 0


def test_each_request_may_go_to_any_queue_and_the_tasks_begin_at_different_ones():
    producer = FakeProducer()
    options = SinkOptions(endpoints="x:1", topic="orders", batch_bytes=1024)
    for partition in range(4):
        RowSender(producer, options, SinkTask("q", 0, partition)).rows(rows(["a"]))

    assert [queues[0].queue_id for _, queues in producer.sent] == [0, 1, 2, 3]
    assert all(sorted(queues) == producer.queues("orders") for _, queues in producer.sent)


def test_idempotent_each_row_has_one_queue_whatever_the_attempt():
    options = SinkOptions(endpoints="x:1", topic="orders", delivery="idempotent")
    runs = []
    for cuts in ([6], [1, 2, 3], [3, 3]):
        producer, begin = FakeProducer(), 0
        sending = RowSender(producer, options, TASK)
        for count in cuts:
            sending.rows(rows([f"r{i}" for i in range(begin, begin + count)]))
            begin += count
        sending.finish()
        runs.append([(encoded.body, encoded.properties, queues) for encoded, queues in producer.sent])

    assert runs[0] == runs[1] == runs[2]
    assert all(len(queues) == 1 for _, _, queues in runs[0])


def test_a_request_that_failed_fails_the_task(monkeypatch: pytest.MonkeyPatch):
    class Failing(FakeProducer):
        def send_encoded(self, encoded, queues) -> Future:
            future: Future = Future()
            if len(self.sent) == 2:
                future.set_exception(ConnectionLost("gone"))
            self.sent.append((encoded, queues))
            self.open.append(future)
            return future

    producer = Failing()
    monkeypatch.setattr(sink, "bulk", lambda **values: producer)
    for future in producer.open:
        future.set_result(None)

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(5):
            yield rows(["a" * 900])
            for future in producer.open:
                if not future.done():
                    future.set_result(None)

    with pytest.raises(ConnectionLost):
        write(SinkOptions(endpoints="x:1", topic="orders", in_flight=1), TASK, batches())
    assert len(producer.sent) == 3


def test_a_row_that_cannot_be_sent_fails_the_task_by_its_number(options: SinkOptions):
    with pytest.raises(MessageIllegal, match="row 3 of the task: the body is empty"):
        write(options, TASK, iter([rows(["a", "b"]), rows(["c", ""])]))


def test_outside_of_spark_there_is_no_task():
    with pytest.raises(UsageError, match="its query and batch"):
        stream_task()


def test_a_stream_is_given_no_number_of_a_batch():
    given = {**GIVEN, "delivery": "exactly-once", "transactionalId": "q"}

    assert batch_writer({**given, "batchNumber": "3"}, ROW, False)
    with pytest.raises(UsageError, match="batchNumber is for a batch only"):
        stream_writer({**given, "batchnumber": "3"}, ROW, False)


def test_columns_that_no_message_has_are_left_out_with_one_warning_or_refused(caplog: pytest.LogCaptureFixture):
    schema = StructType([*ROW.fields, StructField("brokerName", StringType()), StructField("tag", StringType())])

    batch_writer(GIVEN, schema, False)

    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "brokerName, tag" in record.getMessage()
    with pytest.raises(UsageError, match="knows no column brokerName, tag; there are body, topic, tags"):
        batch_writer({**GIVEN, "extraColumns": "error"}, schema, False)


def test_a_writer_checks_its_rows_before_anything_is_sent():
    with pytest.raises(UsageError, match="mode append"):
        batch_writer(GIVEN, ROW, True)
    with pytest.raises(UsageError, match="column 'body' is int32"):
        batch_writer(GIVEN, StructType([StructField("body", IntegerType())]), False)
    with pytest.raises(UsageError, match="the option 'topic'"):
        batch_writer({"endpoints": "x:1"}, StructType([StructField("body", BinaryType())]), False)
    pickle.loads(pickle.dumps(batch_writer(GIVEN, ROW, False)))  # as Spark hands it to its tasks


def test_a_request_is_a_batch_that_brokers_understand():
    producer = FakeProducer()
    RowSender(producer, SinkOptions(endpoints="x:1", topic="orders"), TASK).rows(rows(["a", "b"]))

    ((encoded, _),) = producer.sent
    assert [item.body for item in decode_batch(encoded.body)] == [b"a", b"b"]
