"""Tables made: what cannot be made blocks nothing, and a table of one kind becomes none of another. No Spark session."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from halfmoon.data.partitions import Range
from halfmoon.data.rows import schema_of
from halfmoon.errors import UsageError
from halfmoon.spark.lake.files import layout_for, write
from halfmoon.spark.lake.iceberg import Iceberg
from halfmoon.spark.lake.manifest import manifest_of
from halfmoon.spark.lake.table import LakeTable
from tests.spark.lake.tables import table_of


def test_a_table_that_could_not_be_made_leaves_its_directory_to_another(tmp_path: Path):
    table, wrong = table_of("iceberg", tmp_path), layout_for(tmp_path / "table", columns=("topic",), partition="day")

    with pytest.raises(UsageError, match="needs the column storeTimestamp"):
        table.create(wrong)

    right = layout_for(tmp_path / "table", columns=("topic", "storeTimestamp"), partition="day")
    table.create(right)
    table.create(right)
    assert table.schema() == right.table_schema()


def test_a_table_of_one_kind_gets_nothing_of_another(tmp_path: Path):
    layout = layout_for(tmp_path / "table")
    table_of("iceberg", tmp_path).create(layout)

    with pytest.raises(UsageError, match="kind='iceberg', not 'delta'"):
        table_of("delta", tmp_path).create(layout)

    assert not (tmp_path / "table" / "_delta_log").exists()


def test_plain_parquet_is_no_kind_of_table(tmp_path: Path):
    with pytest.raises(UsageError, match="would contain a batch twice after a crash; use delta"):
        LakeTable(tmp_path / "table", kind="parquet")


@pytest.mark.parametrize("place", ["data/day=2026-01-31/00000-0.parquet", "00000-0.parquet", "data/a=b=c.parquet"])
def test_files_of_other_writers_in_an_iceberg_table_are_left_to_them(tmp_path: Path, place: str):
    table, layout = (
        table_of("iceberg", tmp_path),
        layout_for(tmp_path / "table", columns=("topic", "storeTimestamp"), partition="day"),
    )
    table.create(layout)
    row = {"topic": "orders", "storeTimestamp": datetime(2026, 1, 31, tzinfo=UTC)}
    ours = write(layout, [pa.RecordBatch.from_pylist([row], schema_of(layout.needed()))], [Range("orders", "broker-a", 0, 0, 1)])
    table.publish(manifest_of("q", 0, [ours]))
    theirs = table.root / place
    theirs.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(table.root / ours.files[0].path, theirs)
    assert isinstance(table.format, Iceberg)
    table.format.load().add_files([f"file://{theirs}"])

    assert len(table.files()) == 2
    assert table.live() == list(ours.files)
