"""Upkeep of tables: compaction, copies taken out, needless files removed; rows and offsets stay as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from datetime import UTC, datetime, timedelta

from halfmoon.errors import UsageError
from halfmoon.spark.lake.files import Layout, layout_for, write
from halfmoon.spark.lake.manifest import Span, joined, manifest_of
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.upkeep import compact, dedup, vacuum
from halfmoon.spark.rows import schema_of

pytestmark = pytest.mark.slow

KINDS = ["parquet", "delta", "iceberg"]
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def table_of(kind: str, place: Path) -> LakeTable:
    """Return a table of a kind in a directory of the test."""
    if kind != "iceberg":
        return LakeTable(place / "table", kind=kind)
    catalog = {"type": "sql", "uri": f"sqlite:///{place / 'catalog.db'}", "warehouse": (place / "warehouse").as_uri()}
    return LakeTable(place / "table", kind=kind, name="lake.orders", catalog=catalog)


def put(table: LakeTable, layout: Layout, batch: int, begin: int, ids: list[str]) -> None:
    """Publish a batch of one queue with these message ids, from a queue offset on; every other row lies a day later."""
    names = layout.needed()
    rows = [
        {
            **dict.fromkeys(names),
            "topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": begin + i, "msgId": id, "keys": id[:1],
            "storeTimestamp": NOON + timedelta(days=i % 2, seconds=begin + i), "body": f"{begin + i}".encode(),
        }
        for i, id in enumerate(ids)
    ]  # fmt: skip
    span = Span("orders", "broker-a", 0, begin, begin + len(ids))
    part = write(layout, [pa.RecordBatch.from_pylist(rows, schema_of(names))], [span])
    table.publish(manifest_of("q", batch, [part]))


def filled(kind: str, place: Path, **values: Any) -> tuple[LakeTable, Layout]:
    """Return a table with five batches of four rows; the third repeats ids of the first."""
    table, layout = table_of(kind, place), layout_for(place / "table", partition="day", **values)
    table.create(layout)
    for batch in range(5):
        put(table, layout, batch, 4 * batch, [f"{'abcde'[0 if batch == 2 else batch]}{i}" for i in range(4)])
    return table, layout


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
    assert joined(table.state().spans) == (Span("orders", "broker-a", 0, 0, 21),)
    assert compact(spark, table) == 2
    assert offsets(table.read(spark)) == list(range(21))


@pytest.mark.parametrize("kind", KINDS)
def test_copies_go_and_the_first_offset_stays(spark: Any, tmp_path: Path, kind: str):
    table, _ = filled(kind, tmp_path)
    view = offsets(table.read(spark, dedup="msgId"))
    before = set(table.files())

    removed, again = dedup(spark, table, "msgId"), dedup(spark, table, "msgId")

    kept = [offset for offset in range(20) if not 8 <= offset < 12]
    assert (removed, again, view) == (4, 0, kept)
    assert offsets(table.read(spark)) == kept
    assert len(before & set(table.files())) == 8


@pytest.mark.parametrize("kind", KINDS)
def test_vacuum_removes_what_no_table_knows_and_nothing_else(spark: Any, tmp_path: Path, kind: str):
    table, layout = filled(kind, tmp_path)
    names = layout.needed()
    row = {**dict.fromkeys(names), "storeTimestamp": NOON}
    lost = write(layout, [pa.RecordBatch.from_pylist([row], schema_of(names))], []).files[0].path  # of an attempt that was killed
    (table.root / "day=2026-01-31" / "others.parquet").write_bytes(b"of another writer")

    young, old = vacuum(table), vacuum(table, keep_ms=-1000)

    assert (young, old) == ([], [lost])
    assert offsets(table.read(spark)) == list(range(20))


def test_vacuum_removes_what_compaction_replaced_once_it_is_old(spark: Any, tmp_path: Path):
    table, _ = filled("parquet", tmp_path)
    compact(spark, table)

    assert vacuum(table) == []
    compact(spark, table)
    assert offsets(table.read(spark)) == list(range(20))


def test_keys_may_name_copies_too(spark: Any, tmp_path: Path):
    table, _ = filled("parquet", tmp_path)

    assert dedup(spark, table, "keys") == 16
    assert offsets(table.read(spark)) == [0, 4, 12, 16]


def test_compaction_beside_a_batch_loses_neither(spark: Any, tmp_path: Path):
    table, layout = filled("parquet", tmp_path)
    state = table.state()
    put(table, layout, 5, 20, ["f0"])

    table.format.replace(table.ledger, [file.path for file in state.files], state.files[:1], 0)

    assert len(table.files()) == 2
    with pytest.raises(UsageError, match="changed meanwhile"):
        table.format.replace(table.ledger, [state.files[3].path], [], 0)


def test_an_unknown_way_to_tell_copies_is_refused(spark: Any, tmp_path: Path):
    table, _ = filled("parquet", tmp_path)

    with pytest.raises(UsageError, match="msgId, keys"):
        dedup(spark, table, "tags")
