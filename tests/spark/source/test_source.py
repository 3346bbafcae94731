"""The batch reader against a real broker, without Spark: what it reads, and how much less of it with filters of the query."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from halfmoon import Admin
from halfmoon.client.core.ranges import RangesCore
from halfmoon.data.offsets import available_bounds
from halfmoon.errors import NetworkError, NoPermission, NoRoute, UsageError
from halfmoon.runtime.connections.blocking_connections import SocketConnection
from halfmoon.spark.source.source import BatchReader, HalfmoonSource, RocketmqSource
from halfmoon.testing.local import LocalCluster
from pyspark_halfmoon import DefaultSource


@pytest.fixture
def given(cluster: LocalCluster, topic: str, send) -> dict[str, str]:
    """Options of a topic with 20 messages in two queues, tags red and blue in turn."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=2)
    for number in range(20):
        send(topic, [f"m{number}"], queue=number % 2, tag=("red", "blue")[number // 2 % 2])
    return {"endpoints": cluster.nameserver, "topic": topic}


def reader(given: dict[str, str], **more: str) -> BatchReader:
    source = HalfmoonSource({**given, **more})
    found = source.reader(source.schema())
    assert isinstance(found, BatchReader)
    return found


def ranges(found: BatchReader) -> list[tuple[int, int, int]]:
    return sorted((part.queue, part.begin, part.end) for share in found.partitions() for part in share.ranges)


def bodies(found: BatchReader) -> list[str]:
    batches = [batch for share in found.partitions() for batch in found.read(share)]
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


def test_a_batch_is_what_is_there_when_it_is_planned(given: dict[str, str], topic: str, send):
    found = reader(given)
    shares = found.partitions()
    send(topic, ["late"])

    assert sorted(ranges(reader(given))) == [(0, 0, 11), (1, 0, 10)]
    assert sum(batch.num_rows for share in shares for batch in found.read(share)) == 20


def test_the_files_of_the_store_give_the_same_rows(given: dict[str, str], cluster: LocalCluster, tmp_path, monkeypatch):
    wanted = bodies(reader(given))
    found = reader(given, readFrom=f"files:{cluster.data}")
    shares = found.partitions()
    monkeypatch.setattr("halfmoon.client.ranges.Ranges.read", lambda *_, **__: pytest.fail("asked the broker for messages"))

    assert [body.decode() for s in shares for batch in found.read(s) for body in batch.column("body").to_pylist()] == wanted
    with pytest.raises(UsageError, match="is it the directory of this broker's store"):
        bodies(reader(given, readFrom=f"files:{tmp_path}"))


def test_partitions_are_as_many_as_asked_for(given: dict[str, str]):
    assert len(reader(given, maxPartitions="1").partitions()) == 1
    assert len(reader(given, minPartitions="5").partitions()) == 5
    shares = reader(given, maxRecordsPerPartition="3").partitions()
    assert max(sum(part.count for part in share.ranges) for share in shares) == 3


def test_partitions_are_balanced_by_bytes(given: dict[str, str], topic: str, send):
    send(topic, [Random(1).randbytes(20_000).hex()], queue=0)  # beside some 1.5 kB in each queue
    shares = reader(given, minPartitions="5", maxPartitions="5").partitions()
    heavy = [part for share in shares for part in share.ranges if (part.queue, part.end) == (0, 11)]

    assert len(shares) == 5
    assert [share.ranges for share in shares if heavy[0] in share.ranges] == [(heavy[0],)]
    assert heavy[0].count == 1


@pytest.mark.parametrize("backlog", [10, 10**12])
def test_a_plan_takes_as_many_questions_whatever_the_messages(given: dict[str, str], backlog: int, monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    ask = RangesCore.asked

    def counted(core: RangesCore, queue: Any, request: Any, body: bytes = b"") -> Any:
        asked.append(type(request).__name__)
        return ask(core, queue, request, body)

    monkeypatch.setattr(RangesCore, "asked", counted)
    monkeypatch.setattr("halfmoon.data.plans.end_offsets", lambda *_: dict.fromkeys(available_bounds(*_[:2]), backlog))
    found = reader(given, maxPartitions="2")
    found.partitions()

    assert asked.count("WeighRanges") == 1
    assert len(asked) <= 3


@pytest.mark.parametrize("more", [{"tags": "rare"}, {"sqlFilter": "TAGS = 'rare'"}])
def test_what_tags_and_expressions_leave_out_does_not_travel(
    given: dict[str, str], topic: str, send, monkeypatch: pytest.MonkeyPatch, more: dict[str, str]
):
    send(topic, ["y" * 500] * 200, tag="usual")
    send(topic, ["rare-1", "rare-2"], tag="rare")
    sizes: list[int] = []
    body = SocketConnection.body
    monkeypatch.setattr(SocketConnection, "body", lambda link: (found := body(link), sizes.append(len(found)))[0])
    assert len(bodies(reader(given))) == 222
    whole = sum(sizes)
    sizes.clear()

    assert sorted(bodies(reader(given, **more))) == ["rare-1", "rare-2"]
    assert sum(sizes) < whole / 50


@pytest.mark.parametrize("tags", ["a && b", "a,b", "a|b", "||", "*||a", "a b"])
def test_what_is_no_list_of_tags_is_refused(tags: str):
    with pytest.raises(UsageError):
        reader({"endpoints": "x:1", "topic": "orders"}, tags=tags)


def test_tags_of_the_same_hash_are_told_apart(given: dict[str, str], topic: str, send):
    send(topic, ["one"], tag="Aa")
    send(topic, ["other"], tag="BB")  # Java's hash of both is 2112

    assert bodies(reader(given, tags="Aa")) == ["one"]


def test_the_ends_of_a_batch_are_taken_and_checked(given: dict[str, str], topic: str):
    def at(**queues: int) -> str:
        return json.dumps({topic: {"broker-a": {name[1:]: offset for name, offset in queues.items()}}})

    assert ranges(reader(given, startingOffsets=at(q0=8, q1=-1))) == [(0, 8, 10)]
    assert ranges(reader(given, endingOffsets=at(q0=2, q1=-2))) == [(0, 0, 2)]
    with pytest.raises(UsageError, match="failOnDataLoss=false ends at the newest"):
        reader(given, endingOffsets=at(q0=11, q1=0)).partitions()
    assert ranges(reader(given, endingOffsets=at(q0=11, q1=0), failOnDataLoss="false")) == [(0, 0, 10)]
    assert ranges(reader(given, endingTimestamp="1000")) == []
    assert ranges(reader(given, startingTimestamp="1000")) == [(0, 0, 10), (1, 0, 10)]


def test_without_anything_to_read_spark_asks_once_and_gets_nothing(given: dict[str, str]):
    assert list(reader(given).read(InputPartition(None))) == []


def test_no_topic_is_an_error_that_names_it(given: dict[str, str]):
    with pytest.raises(NoRoute, match="no_such_topic"):
        reader({**given, "topic": "no_such_topic"}, retries="0").partitions()


def test_a_topic_that_may_not_be_read_is_an_error_that_says_what_to_do(given: dict[str, str], topic: str, cluster: LocalCluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=2, perm=2)
    with pytest.raises(NoPermission, match=rf"topic {topic} has no queue that may be read. Let it be read .*--perm 6"):
        reader(given).partitions()

    assert reader({"endpoints": given["endpoints"], "topicPattern": topic}).partitions() == []


def test_offsets_that_name_other_queues_than_there_are_are_refused(given: dict[str, str], topic: str):
    def at(*queues: int, broker: str = "broker-a") -> str:
        return json.dumps({topic: {broker: dict.fromkeys(map(str, queues), 0)}})

    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(UsageError, match=rf"{option} names queues that do not exist: {topic} broker-a 7; there are {topic}"):
            reader(given, **{option: at(0, 1, 7)}).partitions()
        with pytest.raises(UsageError, match=f"{option} must name every queue that is read; it leaves out {topic} broker-a 1"):
            reader(given, **{option: at(0)}).partitions()
        with pytest.raises(UsageError, match=r"broker-x 0, .*broker-x 1; there are"):
            reader(given, **{option: at(0, 1, broker="broker-x")}).partitions()
    assign = json.dumps({topic: {"broker-a": [0, 5]}})
    with pytest.raises(UsageError, match=rf"assign names queues that do not exist: {topic} broker-a 5"):
        reader({"endpoints": given["endpoints"], "assign": assign}).partitions()


def test_columns_are_as_asked_for_and_types_are_checked(given: dict[str, str]):
    source = HalfmoonSource({**given, "columns": "body,keys"})
    assert source.schema().fieldNames() == ["body", "keys"]
    assert "properties" not in HalfmoonSource(given).schema().fieldNames()
    assert "properties" in HalfmoonSource({**given, "includeProperties": "true"}).schema().fieldNames()
    with pytest.raises(UsageError, match="column body is binary, and not string"):
        source.reader(StructType().add("body", "string"))
    with pytest.raises(UsageError, match="there is no column 'bodies'"):
        source.reader(StructType().add("bodies", "binary"))
    with pytest.raises(UsageError, match="emit=ranges has the columns"):
        HalfmoonSource({**given, "emit": "ranges"}).reader(from_arrow_schema(source.reader(source.schema())._scan.schema))


def test_a_stream_s_options_are_known_when_the_schema_is_asked_for(given: dict[str, str]):
    assert HalfmoonSource({**given, "startingOffsets": "latest", "maxOffsetsPerTrigger": "5"}).schema()
    with pytest.raises(UsageError, match="did you mean"):
        HalfmoonSource({**given, "maxOffsetsPerTriggers": "5"}).schema()


def test_names_and_what_is_shown_of_a_source(given: dict[str, str]):
    assert DefaultSource.name() == "halfmoon"
    assert RocketmqSource.name() == "rocketmq"
    options: Any = {**given, "secretKey": "sesame"}
    assert "sesame" not in repr(HalfmoonSource(options))


def test_a_batch_read_against_nothing_fails_within_seconds_and_names_the_address(given: dict[str, str]):
    begun = time.monotonic()

    with pytest.raises(NetworkError, match=r"connect to 127\.0\.0\.1:9 failed: Connection refused"):
        reader({**given, "endpoints": "127.0.0.1:9"}).partitions()

    assert time.monotonic() - begun < 10
