"""Spark itself over the source: batches and streams by ``spark.read`` and ``readStream``, as a user writes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from halfmoon import Admin
from halfmoon.testing.local import LocalCluster

pytestmark = pytest.mark.slow

Send = Callable[..., None]


@pytest.fixture
def made(cluster: LocalCluster, topic: str, send: Send) -> str:
    """A topic of four queues with a hundred messages, tags red and blue in turn."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=4)
    for number in range(100):
        send(topic, [f"m{number}"], queue=number % 4, tag=("red", "blue")[number // 4 % 2], keys=[f"k{number}"])
    return topic


@pytest.fixture
def given(cluster: LocalCluster, made: str) -> dict[str, str]:
    return {"endpoints": cluster.nameserver, "topic": made}


def bodies(frame: Any) -> list[str]:
    return sorted(row.body.decode() for row in frame.select("body").collect())


EVERY = sorted(f"m{number}" for number in range(100))


@pytest.mark.parametrize("name", ["halfmoon", "rocketmq"])
def test_a_topic_is_a_table_by_both_short_names(spark: Any, given: dict[str, str], name: str):
    assert bodies(spark.read.format(name).options(**given).load()) == EVERY


def test_rows_of_queues_that_are_only_read_come_too(spark: Any, cluster: LocalCluster, given: dict[str, str], made: str):
    """Queues are removed from a topic so: first they are written no more, later read no more."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(made, write_queue_count=2)
    assert bodies(spark.read.format("halfmoon").options(**given).load()) == EVERY


def test_filters_columns_and_ends_of_a_batch(spark: Any, given: dict[str, str], made: str):
    frame = spark.read.format("halfmoon").options(**given).load()
    rows = frame.where("queueId = 1 and queueOffset >= 5 and tags = 'red' and storeTimestamp > timestamp'2020-01-01'").collect()
    assert sorted((row.queueId, row.queueOffset, row.tags, row.keys) for row in rows) == [
        (1, offset, "red", f"k{4 * offset + 1}") for offset in range(6, 25, 2)
    ]

    few = spark.read.format("halfmoon").options(**given, columns="keys,queueId").load()
    assert few.columns == ["keys", "queueId"]
    assert few.where("keys = 'k7'").collect() == [("k7", 3)]

    ends = json.dumps({made: {"broker-a": {"0": 3, "1": 0, "2": -2, "3": 1}}})
    assert bodies(spark.read.format("halfmoon").options(**given, endingOffsets=ends).load()) == ["m0", "m3", "m4", "m8"]
    nothing = json.dumps({made: {"broker-a": {str(queue): 0 for queue in range(4)}}})
    assert spark.read.format("halfmoon").options(**given, endingOffsets=nothing).load().count() == 0


def test_a_schema_of_the_user_restricts_the_columns_and_a_wrong_type_is_refused(spark: Any, given: dict[str, str]):
    reader = spark.read.format("halfmoon").options(**given)
    rows = reader.schema("properties map<string,string>, queueOffset bigint").load().where("queueOffset = 0").collect()
    assert sorted(row.properties["KEYS"] for row in rows) == ["k0", "k1", "k2", "k3"]

    with pytest.raises(Exception, match="column queueOffset is int64, and not string"):
        reader.schema("queueOffset string").load().collect()


def test_one_frame_with_two_filters_in_a_query_gives_the_rows_of_both(spark: Any, given: dict[str, str]):
    frame = spark.read.format("halfmoon").options(**given).load().select("queueId", "body")

    assert bodies(frame.where("queueId = 1").union(frame.where("queueId <> 1"))) == EVERY
    first, second = frame.where("queueId = 1").alias("first"), frame.where("queueId = 2").alias("second")
    assert first.join(second, F.expr("first.queueId + 1 = second.queueId")).count() == 25 * 25


def test_a_frame_that_was_read_can_be_written_as_it_is(spark: Any, given: dict[str, str], cluster: LocalCluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("copies_of_all", queue_count=4)
    where = {**given, "topic": "copies_of_all"}

    frame = spark.read.format("halfmoon").options(**given, includeProperties="true").load()
    frame.write.format("halfmoon").options(**where).mode("append").save()

    def seen(options: dict[str, str]) -> list[tuple[Any, ...]]:
        read = spark.read.format("halfmoon").options(**options).load()
        return sorted((row.queueId, bytes(row.body), row.keys, row.tags) for row in read.collect())

    assert seen(where) == seen(given)


def test_a_mistake_in_the_options_reaches_the_user_and_a_secret_does_not(spark: Any, given: dict[str, str]):
    with pytest.raises(Exception, match="there is no option maxoffsets; did you mean") as unknown:
        spark.read.format("halfmoon").options(**given, maxOffsets="5", password="sesame").load()
    with pytest.raises(Exception, match="there is no option password") as signed:
        spark.read.format("halfmoon").options(**given, password="sesame").load()

    assert "sesame" not in str(unknown.value) + str(signed.value)


def started(spark: Any, given: dict[str, str], place: Path, **more: str) -> Any:
    """Write the topic's bodies as text files until it has all that is there."""
    frame = spark.readStream.format("halfmoon").options(**{**given, "startingOffsets": "earliest", **more}).load()
    return (
        frame.selectExpr("cast(body as string) as value")
        .writeStream.format("text")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "out"))
    )


def test_a_stream_goes_on_from_its_checkpoint_and_every_message_comes_once(
    spark: Any, given: dict[str, str], made: str, send: Send, tmp_path: Path
):
    first = started(spark, given, tmp_path, maxOffsetsPerTrigger="30")
    first.awaitTermination(120)
    assert [progress.numInputRows for progress in first.recentProgress][:4] == [30, 30, 30, 10]
    latest = json.loads(first.recentProgress[0].sources[0].latestOffset)
    assert latest["end"][made]["broker-a"] == {str(queue): 25 for queue in range(4)}
    send(made, ["more-1", "more-2"])
    started(spark, given, tmp_path).awaitTermination(120)
    before = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    started(spark, given, tmp_path).awaitTermination(120)

    assert sorted(row.value for row in spark.read.text(str(tmp_path / "out")).collect()) == sorted([*EVERY, "more-1", "more-2"])
    assert sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*")) == before  # no empty batches


def test_a_stream_that_runs_sees_what_is_sent(spark: Any, given: dict[str, str], made: str, send: Send, checkpoint: str):
    frame = spark.readStream.format("rocketmq").options(**given).load()
    query = frame.writeStream.format("memory").queryName("seen").option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
        send(made, ["now-1", "now-2"])
        query.processAllAvailable()
        assert bodies(spark.table("seen")) == ["now-1", "now-2"]
    finally:
        query.stop()
