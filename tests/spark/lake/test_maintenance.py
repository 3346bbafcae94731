"""Upkeep of tables: compaction, copies taken out, needless files removed; rows and offsets stay as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import os
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from halfmoon.data.partitions import Range
from halfmoon.data.rows import schema_of
from halfmoon.errors import UsageError
from halfmoon.spark.lake.files import Layout, layout_for, write
from halfmoon.spark.lake.iceberg import Iceberg
from halfmoon.spark.lake.ledger import TableChanged, now_ms
from halfmoon.spark.lake.maintenance import compact, dedup, sweep, vacuum
from halfmoon.spark.lake.manifest import TaskReport, manifest_of, merge_spans
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.verify import verify
from tests.spark.lake.tables import KINDS, table_of

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def put(table: LakeTable, layout: Layout, batch: int, begin: int, ids: list[str]) -> None:
    """Publish a batch; see `written`."""
    table.publish(manifest_of("q", batch, [written(layout, begin, ids)]))


def written(layout: Layout, begin: int, ids: list[str]) -> TaskReport:
    """Write rows of one queue with these message ids, from a queue offset on; every other row lies a day later."""
    names = layout.needed()
    rows = [
        {
            **dict.fromkeys(names),
            "topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": begin + i, "msgId": id, "keys": id[:1],
            "storeTimestamp": NOON + timedelta(days=i % 2, seconds=begin + i), "body": f"{begin + i}".encode(),
        }
        for i, id in enumerate(ids)
    ]  # fmt: skip
    span = Range("orders", "broker-a", 0, begin, begin + len(ids))
    return write(layout, [pa.RecordBatch.from_pylist(rows, schema_of(names))], [span])


def filled(kind: str, place: Path, **values: Any) -> tuple[LakeTable, Layout]:
    """Return a table with five batches of four rows; the third repeats ids of the first."""
    table, layout = table_of(kind, place), layout_for(place / "table", partition="day", **values)
    table.create(layout)
    for batch in range(5):
        put(table, layout, batch, 4 * batch, [f"{'abcde'[0 if batch == 2 else batch]}{i}" for i in range(4)])
    return table, layout


def source(spark: Any, count: int = 20) -> Any:
    """Return what the topic holds of which `put` makes batches."""
    rows = [("orders", "broker-a", 0, offset, f"{offset}".encode()) for offset in range(count)]
    return spark.createDataFrame(rows, "topic string, brokerName string, queueId int, queueOffset bigint, body binary")


def offsets(frame: Any) -> list[int]:
    """Return the queue offsets of a table, sorted."""
    return sorted(row.queueOffset for row in frame.select("queueOffset").collect())


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_leaves_few_files_and_every_row(spark: Any, tmp_path: Path, kind: str):
    table, layout = filled(kind, tmp_path)

    gone = compact(spark, table)
    put(table, layout, 5, 20, ["f0"])

    assert (gone, len(table.files())) == (10, 3)
    assert offsets(table.read(spark)) == list(range(21))
    assert merge_spans(table.state().spans) == (Range("orders", "broker-a", 0, 0, 21),)
    assert compact(spark, table) == 2
    assert offsets(table.read(spark)) == list(range(21))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_and_the_first_offset_stays(spark: Any, tmp_path: Path, kind: str):
    table, _ = filled(kind, tmp_path)
    view = offsets(table.read(spark, dedup="msgId"))
    before = set(table.files())

    removed, again = dedup(spark, table, "msgId"), dedup(spark, table, "msgId")

    kept = [offset for offset in range(20) if not 8 <= offset < 12]
    (verdict,) = verify(spark, table, source(spark))
    assert (removed, again, view) == (4, 0, kept)
    assert offsets(table.read(spark)) == kept
    assert len(before & set(table.files())) == 8
    assert (verdict.wrong, verdict.rows, verdict.dropped) == ((), 16, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_copies_that_came_after_a_dedup_go_with_the_next_and_all_are_counted(spark: Any, tmp_path: Path, kind: str):
    table, layout = filled(kind, tmp_path)
    dedup(spark, table, "msgId")
    put(table, layout, 5, 20, ["e0", "e1", "f0"])
    compact(spark, table)

    assert dedup(spark, table, "msgId") == 2
    assert table.copies() == {("orders", "broker-a", 0): 6}
    (wrong,) = verify(spark, table, source(spark, 22))  # one offset that the topic lacks
    assert len(wrong.wrong) == 1
    assert wrong.wrong[0].startswith("messages (and their checksum): 16 (")


@pytest.mark.parametrize("kind", KINDS)
def test_vacuum_removes_what_no_table_knows_and_nothing_else(spark: Any, tmp_path: Path, kind: str):
    table, layout = filled(kind, tmp_path)
    names = layout.needed()
    row = {**dict.fromkeys(names), "storeTimestamp": NOON}
    lost = write(layout, [pa.RecordBatch.from_pylist([row], schema_of(names))], []).files[0].path  # of an attempt that was killed
    (table.root / "day=2026-01-31" / "others.parquet").write_bytes(b"of another writer")

    young, old = vacuum(table), sweep(table, -1000)

    assert (young, old) == ([], [lost])
    assert offsets(table.read(spark)) == list(range(20))


def aged(table: LakeTable, paths: set[str], by_ms: int) -> None:
    """Make files as old as that."""
    for path in paths:
        os.utime(table.root / path, ((now_ms() - by_ms) / 1000,) * 2)


def test_vacuum_frees_what_a_delta_table_keeps_no_longer(spark: Any, tmp_path: Path):
    table, _ = filled("delta", tmp_path)
    before = {file.path for file in table.live()}
    aged(table, before, 5 * HOUR_MS)
    compact(spark, table)
    young = vacuum(table, keep_ms=HOUR_MS)  # Delta's week is not over
    DeltaTable(table.root).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})

    assert (young, set(vacuum(table, keep_ms=HOUR_MS))) == ([], before)
    assert offsets(table.read(spark)) == list(range(20))


def test_vacuum_frees_what_no_snapshot_of_an_iceberg_table_has(spark: Any, tmp_path: Path):
    table, _ = filled("iceberg", tmp_path)
    before = {file.path for file in table.live()}
    aged(table, before, 5 * HOUR_MS)
    compact(spark, table)
    young = vacuum(table, keep_ms=HOUR_MS)  # older snapshots have them
    assert isinstance(table.format, Iceberg)
    table.format.load().maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()

    assert (young, set(vacuum(table, keep_ms=HOUR_MS))) == ([], before)
    assert offsets(table.read(spark)) == list(range(20))


def test_copies_in_a_file_of_another_writer_are_told_and_left(spark: Any, tmp_path: Path):
    table, layout = filled("iceberg", tmp_path)
    dedup(spark, table, "msgId")
    theirs = table.root / "theirs.parquet"
    batch = written(layout, 20, ["a0"])
    (table.root / batch.files[0].path).rename(theirs)
    assert isinstance(table.format, Iceberg)
    table.format.load().add_files([f"file://{theirs}"])

    with pytest.raises(UsageError, match=r"duplicates are in theirs.parquet of another writer"):
        dedup(spark, table, "msgId")


def test_keys_may_name_copies_too(spark: Any, tmp_path: Path):
    table, _ = filled("delta", tmp_path)

    assert dedup(spark, table, "keys") == 16
    assert offsets(table.read(spark)) == [0, 4, 12, 16]


def test_compaction_beside_a_batch_loses_neither(spark: Any, tmp_path: Path):
    table, layout = filled("delta", tmp_path)
    before = table.live()
    put(table, layout, 5, 20, ["f0"])

    table.format.replace([file.path for file in before], written(layout, 0, ["a0"]).files, ())

    assert len(table.files()) == 2
    with pytest.raises(TableChanged, match="changed meanwhile"):
        table.format.replace([before[3].path], [], ())


def test_an_unknown_way_to_tell_copies_is_refused(spark: Any, tmp_path: Path):
    table, _ = filled("delta", tmp_path)

    with pytest.raises(UsageError, match="msgId, keys"):
        dedup(spark, table, "tags")
