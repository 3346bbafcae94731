"""Topics to tables with a real broker and Spark: everything once, whoever is killed when."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from halfmoon.client.ranges import Ranges
from halfmoon.data.partitions import Range
from halfmoon.errors import UsageError
from halfmoon.spark.lake import files, schemas
from halfmoon.spark.lake import ingest as module
from halfmoon.spark.lake.dedup import Dedup
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import IngestTotals, ingest, ingest_stream
from halfmoon.spark.lake.verify import verify
from halfmoon.spark.source.options import source_options
from halfmoon.testing.local import LocalCluster
from tests.spark.lake.tables import KINDS, table_of

pytestmark = pytest.mark.slow

Send = Callable[..., None]


def options(cluster: LocalCluster, topic: str) -> dict[str, str]:
    """Return the options of a source."""
    return {"endpoints": cluster.nameserver, "topic": topic}


def bodies(frame: Any) -> list[str]:
    """Return the bodies of a table, sorted."""
    return sorted(bytes(row.body).decode() for row in frame.select("body").collect())


@pytest.mark.parametrize("kind", KINDS)
def test_a_topic_goes_into_a_table_and_what_comes_later_follows(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, kind: str
):
    table, layout = table_of(kind, tmp_path), layout_for(tmp_path / "table", partition="day")
    send(topic, [f"a{i:03}" for i in range(300)])

    first = ingest(spark, table, layout, options(cluster, topic), batch_offsets=100)
    send(topic, [f"b{i:03}" for i in range(50)])
    second = ingest(spark, table, layout, options(cluster, topic))
    third = ingest(spark, table, layout, options(cluster, topic))

    assert (first.rows, first.batches >= 3, second.rows, third) == (300, True, 50, IngestTotals(0, 0, 0, 0))
    assert bodies(table.read(spark)) == sorted([f"a{i:03}" for i in range(300)] + [f"b{i:03}" for i in range(50)])


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_become_columns_and_what_does_not_fit_is_kept_with_the_reason(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, kind: str
):
    schema = schemas.from_ddl("id bigint not null, total decimal(10,2), at timestamp, items array<struct<sku:string,n:int>>")
    table, layout = table_of(kind, tmp_path), layout_for(tmp_path / "table", decode="json", schema=schema, partition="hour")
    good = [
        json.dumps({"id": i, "total": f"{i}.25", "at": "2026-01-31T12:00:00Z", "items": [{"sku": "x", "n": i}]}) for i in range(20)
    ]
    send(topic, [*good, '{"id": "seven"}', "{not json", '{"total": "1.00"}'], queue=0)

    found = ingest(spark, table, layout, options(cluster, topic))

    read = table.read(spark)
    assert (found.rows, found.refused) == (20, 3)
    assert table.state().refused == {"missing field": 1, "not JSON": 1, "wrong type": 1}
    row = read.where("id = 7").select("id", "total", "items", "queueOffset").collect()[0]
    assert (row.id, str(row.total), row["items"][0].n, row.queueOffset) == (7, "7.25", 7, 7)
    refused = {bytes(row.body).decode(): row.fault for row in table.quarantine(spark).collect()}
    assert refused == {'{"id": "seven"}': "wrong type", "{not json": "not JSON", '{"total": "1.00"}': "missing field"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_run_again_after_its_batch_was_published_adds_nothing(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, checkpoint: str, kind: str
):
    table, layout = table_of(kind, tmp_path), layout_for(tmp_path / "table")
    send(topic, [f"a{i}" for i in range(40)])
    ingest_stream(spark, table, layout, options(cluster, topic), checkpoint, available_now=True).awaitTermination()
    for commit in sorted((Path(checkpoint) / "commits").glob("[0-9]*")):
        commit.unlink()  # as a driver leaves it that dies between publishing and Spark's commit log
    send(topic, [f"b{i}" for i in range(7)])

    ingest_stream(spark, table, layout, options(cluster, topic), checkpoint, available_now=True).awaitTermination()

    assert bodies(table.read(spark)) == sorted([f"a{i}" for i in range(40)] + [f"b{i}" for i in range(7)])


def test_a_stream_with_a_new_checkpoint_beside_the_old_one_is_refused(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, checkpoint: str
):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    send(topic, ["a", "b"])
    ingest_stream(spark, table, layout, options(cluster, topic), checkpoint, available_now=True).awaitTermination()
    send(topic, ["c"])

    with pytest.raises(Exception, match="checkpoint is not the one that filled it"):
        ingest_stream(spark, table, layout, options(cluster, topic), checkpoint + "2", available_now=True).awaitTermination()

    assert bodies(table.read(spark)) == ["a", "b"]


def test_a_stream_goes_on_where_the_table_ends(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, checkpoint: str
):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    send(topic, ["a", "b"], queue=1)
    ingest(spark, table, layout, options(cluster, topic))
    send(topic, ["c"], queue=1)
    send(topic, ["d"], queue=2)

    ingest_stream(spark, table, layout, options(cluster, topic), checkpoint, available_now=True).awaitTermination()

    assert bodies(table.read(spark)) == ["a", "b", "c", "d"]


def test_an_ingest_refuses_a_filter(spark: Any, cluster: LocalCluster, topic: str, tmp_path: Path):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")

    with pytest.raises(UsageError, match="whole topics"):
        ingest(spark, table, layout, {**options(cluster, topic), "tags": "paid"})


def test_copies_are_left_out_while_a_topic_goes_into_a_table(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path
):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table", partition="hour")
    for number in range(12):
        send(topic, [f"a{number:02}"], queue=number % 3, keys=[f"k{number % 6}"])
    send(topic, ["b0", "b1"], queue=0)  # without keys: no copies

    found = ingest(spark, table, layout, options(cluster, topic), batch_offsets=4, dedup=Dedup(by="keys"))
    send(topic, ["c0"], keys=["k0"])
    send(topic, ["c1", "c2"], queue=1, keys=["k9"])
    more = ingest(spark, table, layout, options(cluster, topic), dedup=Dedup(by="keys"))

    assert (found.rows, found.dropped, found.batches > 2, more.rows, more.dropped) == (8, 6, True, 1, 2)
    assert bodies(table.read(spark)) == ["a00", "a01", "a02", "a03", "a04", "a05", "b0", "b1", "c1"]
    source = spark.read.format("halfmoon").options(**options(cluster, topic)).load()
    assert {verdict.queue[2]: (verdict.wrong, verdict.dropped) for verdict in verify(spark, table, source)} == {
        0: ((), 3), 1: ((), 3), 2: ((), 2)
    }  # fmt: skip


def test_a_stream_joins_its_small_files_and_leaves_copies_out(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, checkpoint: str
):
    table, layout = table_of("iceberg", tmp_path), layout_for(tmp_path / "table")
    for number in range(25):
        send(topic, [f"a{number:02}"], queue=0, keys=[f"k{number % 20}"])
    wanted = [f"a{number:02}" for number in range(20)]
    orphan = table.root / f"part-{'0' * 16}-0.parquet"  # of an attempt that was killed long ago
    table.root.mkdir()
    orphan.touch()
    os.utime(orphan, (0, 0))

    def run() -> None:
        ingest_stream(
            spark, table, layout, {**options(cluster, topic), "maxOffsetsPerTrigger": "5"}, checkpoint,
            available_now=True, dedup=Dedup(by="keys"), compact_every=2,
        ).awaitTermination()  # fmt: skip

    run()
    first = table.state()
    newest = max((Path(checkpoint) / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()  # as a driver leaves it that dies between publishing and Spark's commit log
    run()

    assert first.snapshot is not None
    assert (first.snapshot.number, [batch.batch for batch in first.batches], first.copies[0].rows) == (2, [4], 5)
    assert not orphan.exists()
    assert len(table.files()) == 1  # four batches in one file, and the fifth is copies alone
    assert (bodies(table.read(spark)), table.state().copies) == (wanted, first.copies)


def test_what_an_ingest_cannot_do_is_refused_before_a_table_is_made(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path
):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    send(topic, ["a"])

    with pytest.raises(UsageError, match="msgId, keys"):
        ingest(spark, table, layout, options(cluster, topic), dedup=Dedup(by="body"))
    with pytest.raises(UsageError, match="0 for never"):
        ingest(spark, table, layout, options(cluster, topic), compact_every=-1)

    assert not table.root.exists()


@pytest.mark.parametrize(
    ("batch_offsets", "ends_with"), [(100, contextlib.nullcontext()), (12, pytest.raises(UsageError, match="is active"))]
)
def test_two_ingests_at_once_with_one_name_put_everything_in_once(
    spark: Any, cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    batch_offsets: int, ends_with: Any,
):  # fmt: skip
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    send(topic, [f"a{i:02}" for i in range(20)])
    plain = module.unread_ranges

    def todo(*given: Any) -> Any:
        monkeypatch.undo()
        found = plain(*given)  # then another driver does all the work, in one batch or in two
        ingest(spark, table_of("delta", tmp_path), layout, options(cluster, topic), batch_offsets=batch_offsets)
        return found

    monkeypatch.setattr(module, "unread_ranges", todo)
    with ends_with:
        ingest(spark, table, layout, options(cluster, topic), batch_offsets=batch_offsets)

    assert bodies(table.read(spark)) == [f"a{i:02}" for i in range(20)]


def test_tasks_read_the_store_where_its_files_are(cluster: LocalCluster, topic: str, send: Send, tmp_path: Path, monkeypatch):
    send(topic, ["a", "b", "c"], queue=0)
    with Ranges(nameserver=cluster.nameserver) as ranges:
        assert ranges.bounds(topic)["broker-a", 0] == (0, 3)  # as the driver asks, before its tasks read
    given = source_options({**options(cluster, topic), "readFrom": f"files:{cluster.data}"}, "batch")
    monkeypatch.setattr(Ranges, "read", lambda *_, **__: pytest.fail("the broker was asked"))

    found = list(files.messages(given, ("body",), [Range(topic, "broker-a", 0, 0, 3)], []))

    assert [bytes(body) for batch in found for body in batch.column("body").to_pylist()] == [b"a", b"b", b"c"]
