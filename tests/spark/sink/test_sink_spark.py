"""Tests of the sinks within Spark: DataFrames and streams become messages; tasks that are run again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException

from halfmoon import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.client.ranges import Ranges
from halfmoon.data.sending.encode import Ids
from halfmoon.spark import by_key
from halfmoon.spark.sink.exactly_once import prepare
from halfmoon.spark.sink.options import sink_options
from halfmoon.testing.local import LocalCluster
from tests.spark.waiting import until
from tests.visible import visible

pytestmark = pytest.mark.slow


ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


def bodies(cluster: LocalCluster, topic: str) -> list[str]:
    """Return the bodies of a topic, sorted."""
    return sorted(message.body.decode() for message in visible(cluster.nameserver, topic))


def make(cluster: LocalCluster, topic: str) -> None:
    """Make a topic without a message."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic)


def stream(spark: Any, source: Path) -> Any:
    """Return a stream of the lines of text files in a directory."""
    source.mkdir(exist_ok=True)
    return spark.readStream.format("text").load(str(source)).withColumnRenamed("value", "body")


def run(rows: Any, cluster: LocalCluster, topic: str, checkpoint: str, **options: str) -> None:
    """Run a stream to a topic until all that is there was sent."""
    writing = rows.writeStream.format("halfmoon").option("endpoints", cluster.nameserver).option("topic", topic)
    query = writing.options(**options).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        query.awaitTermination(60)
    finally:
        query.stop()


def test_a_dataframe_becomes_messages(spark: Any, cluster: LocalCluster, topic: str):
    frame = spark.range(1000).selectExpr(
        "cast(id as string) body", "concat('k', id) keys", "'paid' tags", "map('n', 'v') properties"
    )

    frame.repartition(3).write.format("halfmoon").option("endpoints", cluster.nameserver).option("topic", topic).mode(
        "append"
    ).save()

    assert bodies(cluster, topic) == sorted(map(str, range(1000)))
    read = spark.read.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic, includeProperties="true").load()
    (row,) = read.filter("body = '77'").collect()
    assert (row["keys"], row["tags"], row["properties"]["n"]) == ("k77", "paid", "v")


def test_a_time_without_a_zone_is_meant_in_that_of_the_session(spark: Any, cluster: LocalCluster, topic: str):
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        frame = spark.sql("select 'due' Body, cast(now() - interval 1 hour as timestamp_ntz) deliverAt")
        frame.write.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic).mode("append").save()
    finally:
        spark.conf.unset("spark.sql.session.timeZone")

    until(lambda: bodies(cluster, topic) == ["due"], "the message is there at once, and not nine hours later")


def test_a_job_that_runs_again_under_its_id_adds_nothing(spark: Any, cluster: LocalCluster, topic: str):
    frame = spark.range(200).selectExpr("cast(id as string) body").repartition(2, "body").sortWithinPartitions("body")
    for _ in range(2):
        writing = frame.write.format("halfmoon").option("endpoints", cluster.nameserver).option("topic", topic).mode("append")
        writing.options(delivery="idempotent", transactionalId=f"job-{topic}").save()

    assert bodies(cluster, topic) == sorted(map(str, range(200)))


def test_a_stream_becomes_messages_and_goes_on_where_it_was(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path
):
    rows = stream(spark, tmp_path / "in")
    for number, lines in enumerate(("a\nb\n", "c\n")):
        (tmp_path / "in" / f"{number}.txt").write_text(lines)
        run(rows, cluster, topic, checkpoint)

    assert bodies(cluster, topic) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("delivery", "wanted"), [("at-least-once", ["a", "a", "b", "b", "c", "c"]), ("idempotent", ["a", "b", "c"])]
)
def test_a_batch_of_a_stream_that_runs_again(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path, delivery: str, wanted: list[str]
):
    rows = stream(spark, tmp_path / "in")
    (tmp_path / "in" / "0.txt").write_text("a\nb\nc\n")
    run(rows, cluster, topic, checkpoint, delivery=delivery)
    for done in (Path(checkpoint) / "commits").glob("*0*"):
        done.unlink()  # as if the driver had been killed before it wrote down that the batch is done

    run(rows, cluster, topic, checkpoint, delivery=delivery)

    assert bodies(cluster, topic) == wanted


def test_a_task_knows_its_query_its_batch_and_its_partition(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path
):
    rows = stream(spark, tmp_path / "in")
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number}\n")
        run(rows, cluster, topic, checkpoint, delivery="idempotent")

    query_id = json.loads((Path(checkpoint) / "metadata").read_text())["id"]
    found = {message.body.decode(): message.msg_id for message in visible(cluster.nameserver, topic)}
    assert found == {str(batch): Ids.of(query_id, batch, 0).text(0) for batch in range(2)}


@pytest.fixture
def small_batches(spark: Any) -> Iterator[None]:
    """Have rows reach the sink 40 at a time."""
    before = spark.conf.get(ROWS)
    spark.conf.set(ROWS, "40")
    yield
    spark.conf.set(ROWS, before)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("delivery", "first", "second"), [("idempotent", True, 400), ("exactly-once", False, 400)])
def test_a_task_that_is_killed_on_its_way_and_runs_again_repeats_nothing(
    spark: Any, cluster: LocalCluster, topic: str, tmp_path: Path, delivery: str, first: bool, second: int
):
    at, mark = cluster.nameserver, tmp_path / "killed"

    def sent() -> bool:
        with Admin(nameserver=at) as admin, Ranges(nameserver=at) as ranges:
            unseen = sum(one.size_bytes for broker in admin.batches(topic) for one in broker.ids)
            return unseen + sum(high - low for low, high in ranges.bounds(topic).values()) > 0

    def dies_once(numbers: Any) -> Any:
        for number in numbers:
            if number == 300 and not mark.exists():
                end = time.monotonic() + 120
                while not (arrived := sent()) and time.monotonic() < end:
                    time.sleep(0.05)
                mark.write_text(str(arrived))
                os._exit(9)
            yield (f"{number:03}" * 1000,)

    make(cluster, topic)
    rows = spark.createDataFrame(spark.sparkContext.parallelize(range(400), 1).mapPartitions(dies_once), "body string")
    writing = rows.write.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic, delivery=delivery).mode("append")
    writing.options(transactionalId=topic, batchBytes="65536")
    with pytest.raises(Py4JJavaError):
        writing.save()
    assert mark.read_text() == "True"  # the broker had some of its rows
    before = bodies(cluster, topic)
    writing.save()

    assert bool(before) == first  # idempotent: a part may be seen
    assert len(before) < 400
    assert [body[:3] for body in bodies(cluster, topic)] == [f"{i:03}" for i in range(second)]


def test_exactly_once_a_stream_is_written_once_whatever_is_forgotten(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path
):
    make(cluster, topic)
    rows = stream(spark, tmp_path / "in")
    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text("".join(f"{number}-{i:03}\n" for i in range(100)))
        run(rows, cluster, topic, checkpoint, delivery="exactly-once")
        for done in (Path(checkpoint) / "commits").glob(f"*{number}*"):
            done.unlink()  # as if the driver had been killed before it wrote down that the batch is done
        run(rows, cluster, topic, checkpoint, delivery="exactly-once")

    assert bodies(cluster, topic) == [f"{number}-{i:03}" for number in range(2) for i in range(100)]


def test_exactly_once_a_driver_that_died_behind_the_decision_is_followed_by_one_that_carries_it_out(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path
):
    make(cluster, topic)
    options = sink_options({"endpoints": cluster.nameserver, "topic": topic, "delivery": "exactly-once"})
    with BatchTransactions(nameserver=cluster.nameserver) as transactions:
        said = prepare(transactions, options, BatchName(topic, 0), 0, [pa.RecordBatch.from_pydict({"body": ["a", "b"]})])
        (broker,) = said.counts
        (coordinator,) = said.coordinators
        attempts = {said.attempt: said.parts()[broker]}
        assert transactions.vote(said.batch, broker, coordinator, attempts) is None
        digest = "2 rows, " + f"{crc32(b'a') + crc32(b'b'):016x}"
        assert not transactions.decide(said.batch, coordinator, {broker: attempts}, digest).already
    assert bodies(cluster, topic) == []

    rows = stream(spark, tmp_path / "in")
    (tmp_path / "in" / "0.txt").write_text("a\nb\n")
    run(rows, cluster, topic, checkpoint, delivery="exactly-once", transactionalId=topic)

    assert bodies(cluster, topic) == ["a", "b"]


def test_exactly_once_a_job_that_runs_again_under_its_id_adds_nothing_and_other_rows_are_an_error(
    spark: Any, cluster: LocalCluster, topic: str
):
    make(cluster, topic)

    def job(count: int) -> None:
        frame = spark.range(count).selectExpr("cast(id as string) body").repartition(2)
        writing = frame.write.format("halfmoon").options(endpoints=cluster.nameserver, topic=topic, delivery="exactly-once")
        writing.option("transactionalId", f"job-{topic}").mode("append").save()

    job(200)
    job(200)
    with pytest.raises(PySparkException, match="was written with other rows before"):
        job(201)

    assert bodies(cluster, topic) == sorted(map(str, range(200)))
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(topic)
    make(cluster, topic)
    with pytest.raises(PySparkException, match="a topic that was deleted since: nothing is written now"):
        job(200)


def test_rows_by_key_lie_in_the_order_that_was_asked_for(spark: Any, cluster: LocalCluster, topic: str):
    make(cluster, topic)
    frame = spark.range(400, numPartitions=4).selectExpr(
        "lpad(cast(id as string), 3, '0') body", "if(id % 10 = 9, null, cast(id % 10 as string)) shardingKey", "-id as rank"
    )

    by_key(frame, order=["rank"], count=3).drop("rank").write.format("halfmoon").options(
        endpoints=cluster.nameserver, topic=topic, delivery="exactly-once"
    ).mode("append").save()

    found = visible(cluster.nameserver, topic)
    assert sorted(message.body.decode() for message in found) == [f"{i:03}" for i in range(400)]
    for key in range(9):
        mine = [message for message in found if int(message.body) % 10 == key]
        assert len({message.queue_id for message in mine}) == 1
        mine.sort(key=lambda message: message.queue_offset)
        assert [int(message.body) for message in mine] == list(range(390 + key, -1, -10))


@pytest.mark.parametrize(
    ("options", "why"), [({"delivry": "x"}, "did you mean delivery"), ({"password": "hunter2"}, "no option password")]
)
def test_options_that_do_not_fit_are_refused_and_secrets_not_shown(
    spark: Any, cluster: LocalCluster, topic: str, options: dict[str, str], why: str
):
    writing = spark.range(1).selectExpr("'x' body").write.format("halfmoon").option("endpoints", cluster.nameserver)

    with pytest.raises(PySparkException, match=why) as refused:
        writing.option("topic", topic).options(**options).mode("append").save()
    assert "hunter2" not in str(refused.value)


def test_a_row_that_cannot_be_sent_ends_the_query_with_its_number(
    spark: Any, cluster: LocalCluster, topic: str, checkpoint: str, tmp_path: Path
):
    rows = stream(spark, tmp_path / "in").selectExpr("body", "map('KEYS', body) properties")
    (tmp_path / "in" / "0.txt").write_text("a\n")

    with pytest.raises(StreamingQueryException, match="row 0 of the task: property 'KEYS'"):
        run(rows, cluster, topic, checkpoint)
