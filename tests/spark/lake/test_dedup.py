"""Copies among the rows of a batch before it enters: within it, beside the table's last hours, and no further."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from halfmoon.data.partitions import Range
from halfmoon.data.rows import schema_of
from halfmoon.errors import UsageError
from halfmoon.spark.lake.dedup import Dedup, without_copies
from halfmoon.spark.lake.files import Layout, layout_for, write
from halfmoon.spark.lake.manifest import CopyCount, TaskReport, manifest_of
from halfmoon.spark.lake.table import LakeTable
from tests.spark.lake.tables import KINDS, table_of

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
Row = tuple[int, str | None, float]
"""Offset, keys, and hours after noon."""


def part(layout: Layout, queue: int, rows: list[Row]) -> TaskReport:
    """Write rows of one queue as a task does, and return its report."""
    names = layout.needed()
    values = [
        {
            **dict.fromkeys(names),
            "topic": "orders", "brokerName": "broker-a", "queueId": queue, "queueOffset": offset, "msgId": f"{queue}-{offset}",
            "keys": keys, "storeTimestamp": NOON + timedelta(hours=hours), "body": b"x",
        }
        for offset, keys, hours in rows
    ]  # fmt: skip
    span = Range("orders", "broker-a", queue, rows[0][0], rows[-1][0] + 1)
    return write(layout, [pa.RecordBatch.from_pylist(values, schema_of(names))], [span])


def places(spark: Any, table: LakeTable) -> list[tuple[int, int]]:
    """Return queue and offset of each row of a table, sorted."""
    return sorted(tuple(row) for row in table.read(spark).select("queueId", "queueOffset").collect())


@pytest.mark.parametrize("kind", KINDS)
def test_of_copies_the_first_stays_and_older_rows_than_the_bound_do_not_count(spark: Any, tmp_path: Path, kind: str):
    table, layout = table_of(kind, tmp_path), layout_for(tmp_path / "table", partition="day")
    table.create(layout)
    table.publish(manifest_of("q", 0, [part(layout, 0, [(0, "old", -30), (1, "young", -20), (2, "", -1)])]))
    parts = [
        part(layout, 0, [(3, "old", 3), (4, "new", 4), (5, "", 5), (6, None, 6)]),
        part(layout, 1, [(0, "new", 2), (1, "young", 3)]),
        part(layout, 2, [(0, "young", 13), (1, "young", 14)]),  # the next day: a file of copies alone
    ]
    before = {file.path for each in parts for file in each.files}

    left, copies = without_copies(spark, table, layout, Dedup(by="keys", hours=25), parts)
    table.publish(manifest_of("q", 1, left, copies=copies))

    assert copies == (
        CopyCount("orders", "broker-a", 0, 1),
        CopyCount("orders", "broker-a", 1, 1),
        CopyCount("orders", "broker-a", 2, 2),
    )
    assert places(spark, table) == [(0, 0), (0, 1), (0, 2), (0, 3), (0, 5), (0, 6), (1, 0)]
    assert [len(each.files) for each in left] == [1, 1, 0]
    assert {path for path in before if (table.root / path).exists()} == set()
    assert table.copies() == {("orders", "broker-a", 0): 1, ("orders", "broker-a", 1): 1, ("orders", "broker-a", 2): 2}


def test_with_no_hours_the_table_is_not_looked_at_and_files_without_copies_stay(spark: Any, tmp_path: Path):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    table.create(layout)
    table.publish(manifest_of("q", 0, [part(layout, 0, [(0, "a", 0)])]))
    parts = [part(layout, 0, [(1, "a", 1), (2, "b", 1)]), part(layout, 1, [(0, "a", 2), (1, "c", 2)])]

    left, copies = without_copies(spark, table, layout, Dedup(by="keys", hours=0), parts)

    assert copies == (CopyCount("orders", "broker-a", 1, 1),)
    assert (left[0], left[1].files[0].rows) == (parts[0], 1)


def test_a_batch_without_rows_is_left_as_it_is(spark: Any, tmp_path: Path):
    table, layout = table_of("delta", tmp_path), layout_for(tmp_path / "table")
    table.create(layout)

    assert without_copies(spark, table, layout, Dedup(by="msgId"), [TaskReport(attempt="a")]) == ([TaskReport(attempt="a")], ())


@pytest.mark.parametrize(
    ("dedup", "columns", "text"),
    [
        (Dedup(by="tags"), (), "there are msgId, keys"),
        (Dedup(by="keys", hours=-1), (), "not -1"),
        (Dedup(by="keys"), ("topic", "brokerName", "queueId", "queueOffset", "keys", "body"), "the columns storeTimestamp"),
    ],
)
def test_what_cannot_tell_copies_is_refused(tmp_path: Path, dedup: Dedup, columns: tuple[str, ...], text: str):
    with pytest.raises(UsageError, match=text):
        dedup.check(layout_for(tmp_path, columns=columns))
