"""What a vacuum removes, and what a batch that lost a file to one says. No Spark session."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from halfmoon.data.partitions import Range
from halfmoon.data.rows import schema_of
from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake.files import Layout, layout_for, write
from halfmoon.spark.lake.ledger import now_ms
from halfmoon.spark.lake.maintenance import KEEP_MS_MIN, sweep, vacuum
from halfmoon.spark.lake.manifest import BatchManifest, manifest_of
from halfmoon.spark.lake.table import LakeTable
from tests.cli.conftest import run_alone  # noqa: F401 - a fixture
from tests.spark.lake.tables import table_of

HOUR_MS = 3_600_000


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The layout of the test's table."""
    return layout_for(tmp_path / "table", columns=("topic", "brokerName", "queueId", "queueOffset"))


@pytest.fixture
def table(tmp_path: Path, layout: Layout) -> LakeTable:
    """A new Parquet table."""
    found = table_of("delta", tmp_path)
    found.create(layout)
    return found


def written(layout: Layout, number: int) -> BatchManifest:
    """Write the file of a batch and return its manifest."""
    row = {"topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": number}
    span = Range("orders", "broker-a", 0, number, number + 1)
    return manifest_of("q", number, [write(layout, [pa.RecordBatch.from_pylist([row], schema_of(layout.needed()))], [span])])


def age(table: LakeTable, batch: BatchManifest, by_ms: int) -> Path:
    """Make the file of a batch as old as that; return its path."""
    path = table.root / batch.files[0].path
    os.utime(path, ((now_ms() - by_ms) / 1000,) * 2)
    return path


def test_a_vacuum_that_would_remove_the_files_of_a_batch_under_way_is_refused(table: LakeTable, layout: Layout):
    path = age(table, written(layout, 0), HOUR_MS // 2)

    with pytest.raises(UsageError, match="60 s old would remove those of running batches: 1h is the least"):
        vacuum(table, keep_ms=60_000)

    assert (vacuum(table, keep_ms=KEEP_MS_MIN), path.exists()) == ([], True)
    age(table, written(layout, 0), 0)
    os.utime(path, (0, 0))
    assert vacuum(table, keep_ms=KEEP_MS_MIN) == [path.name]


def test_the_command_refuses_it_before_it_joins_anything(run_alone: Any, table: LakeTable, layout: Layout):  # noqa: F811
    for number in range(2):
        table.publish(written(layout, number))

    ran = run_alone("spark", "compact", table.root, "--vacuum", "59m")

    assert (ran.code, "1h is the least" in " ".join(ran.err.split())) == (2, True)
    assert len(table.live()) == 2


def test_a_batch_whose_file_is_gone_is_not_decided(table: LakeTable, layout: Layout):
    table.publish(written(layout, 0))
    lost = written(layout, 1)
    age(table, lost, 2 * HOUR_MS)
    assert vacuum(table, keep_ms=HOUR_MS) == [lost.files[0].path]

    with pytest.raises(StoreError, match=f"batch 1 of q: {lost.files[0].path} was written and is gone"):
        table.publish(lost)

    again = written(layout, 1)
    assert table.publish(again) == again
    assert table.publish(lost) == again  # the first that was decided counts, whatever became of the others
    assert [file.rows for file in table.live()] == [1, 1]


def test_a_file_that_another_driver_removes_meanwhile_is_passed_over(
    table: LakeTable, layout: Layout, monkeypatch: pytest.MonkeyPatch
):
    first, second = sorted(age(table, written(layout, number), 2 * HOUR_MS) for number in range(2))
    plain = Path.stat

    def stat(path: Path, **given: Any) -> os.stat_result:
        if path == first:
            path.unlink()  # by the other driver, after both listed the directory
        return plain(path, **given)

    monkeypatch.setattr(Path, "stat", stat)

    assert sweep(table, HOUR_MS) == [second.name]
    assert not second.exists()
