"""What a task writes: partitions by time, sizes, quarantine, and nothing left behind by one that fails. No Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from halfmoon.data.rows import schema_of
from halfmoon.errors import UsageError
from halfmoon.spark.lake.files import WRITERS_MAX, Layout, layout_for, write
from halfmoon.spark.lake.manifest import TaskReport

MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)
ID = pa.schema([("id", pa.int64())])


def batch(layout: Layout, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Return messages of one queue with these values."""
    names = layout.needed()
    fixed = {"topic": "orders", "brokerName": "broker-a", "queueId": 0}
    whole = [{**dict.fromkeys(names), **fixed, "queueOffset": number, **row} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist([{name: row[name] for name in names} for row in whole], schema_of(names))


def rows_of(layout: Layout, part: TaskReport) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each data file, by its directory."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in part.files:
        rows = pq.ParquetFile(Path(layout.root, file.path)).read().to_pylist()
        assert (len(rows), Path(layout.root, file.path).stat().st_size) == (file.rows, file.size_bytes)
        found.setdefault(file.path.rpartition("/")[0], []).extend(rows)
    return found


@pytest.mark.parametrize(
    ("unit", "names"), [("day", ["2026-01-31", "2026-02-01"]), ("hour", ["2026-01-31-23", "2026-02-01-00", "2026-02-01-05"])]
)
def test_rows_lie_in_the_directory_of_their_time_of_storing_in_utc(tmp_path: Path, unit: str, names: list[str]):
    layout = layout_for(tmp_path, columns=("queueOffset",), partition=unit)
    times = [MIDNIGHT - timedelta(microseconds=1), MIDNIGHT, MIDNIGHT + timedelta(hours=5), MIDNIGHT - timedelta(minutes=59)]

    part = write(layout, [batch(layout, [{"storeTimestamp": at} for at in times])], [])

    found = {place: [row["queueOffset"] for row in rows] for place, rows in rows_of(layout, part).items()}
    wanted = [[0, 3], [1, 2]] if unit == "day" else [[0, 3], [1], [2]]
    assert found == {f"{unit}={name}": offsets for name, offsets in zip(names, wanted, strict=True)}
    assert {(file.partition[unit], file.path.split("/")[0]) for file in part.files} == {(name, f"{unit}={name}") for name in names}


def test_more_times_than_files_may_be_open_lose_no_row(tmp_path: Path):
    layout = layout_for(tmp_path, columns=("queueOffset",), partition="hour")
    hours = [number % (WRITERS_MAX + 4) for number in range(3 * (WRITERS_MAX + 4))]
    batches = [batch(layout, [{"queueOffset": i, "storeTimestamp": MIDNIGHT + timedelta(hours=h)}]) for i, h in enumerate(hours)]

    found = rows_of(layout, write(layout, batches, []))

    assert len(found) == WRITERS_MAX + 4
    assert sorted(row["queueOffset"] for rows in found.values() for row in rows) == list(range(len(hours)))


def test_a_file_that_is_large_enough_is_closed_and_the_next_begun(tmp_path: Path):
    layout = layout_for(tmp_path, columns=("queueOffset", "body"), file_bytes=1 << 16, compression="none")
    batches = [batch(layout, [{"queueOffset": i, "body": bytes([i]) * 50_000}]) for i in range(6)]

    part = write(layout, batches, [])

    assert [file.rows for file in part.files] == [2, 2, 2]
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_bodies_that_do_not_decode_are_kept_whole_with_kind_and_reason(tmp_path: Path):
    layout = layout_for(tmp_path, columns=("queueOffset", "keys"), decode="json", schema=ID, partition="day")
    rows = [
        {"storeTimestamp": MIDNIGHT, "keys": f"k{i}", "body": body} for i, body in enumerate([b'{"id": 1}', b"{", b'{"id": "x"}'])
    ]

    part = write(layout, [batch(layout, rows), batch(layout, [{"storeTimestamp": MIDNIGHT, "body": b"no"}])], [])

    assert rows_of(layout, part) == {"day=2026-02-01": [{"queueOffset": 0, "keys": "k0", "id": 1}]}
    assert part.refused == {"not JSON": 2, "wrong type": 1}
    (file,) = part.quarantine
    assert file.path.startswith("_quarantine/")
    kept = pq.ParquetFile(tmp_path / file.path).read().to_pylist()
    assert [(row["queueOffset"], row["keys"], row["body"], row["fault"]) for row in kept] == [
        (1, "k1", b"{", "not JSON"), (2, "k2", b'{"id": "x"}', "wrong type"), (0, None, b"no", "not JSON")
    ]  # fmt: skip
    assert all(row["reason"] for row in kept)


def test_a_batch_of_bad_bodies_alone_makes_no_data_file(tmp_path: Path):
    layout = layout_for(tmp_path, decode="json", schema=ID)

    part = write(layout, [batch(layout, [{"body": b"no"}, {"body": None}])], [])

    assert (part.files, part.refused) == ((), {"not JSON": 1, "empty": 1})


def test_decoded_fields_may_stand_in_one_column(tmp_path: Path):
    layout = layout_for(
        tmp_path, columns=("queueOffset", "body"), decode="json", schema=pa.schema([("body", pa.string())]), into="order"
    )

    part = write(layout, [batch(layout, [{"body": b'{"body": "inner"}'}])], [])

    assert rows_of(layout, part) == {"": [{"queueOffset": 0, "body": b'{"body": "inner"}', "order": {"body": "inner"}}]}
    with pytest.raises(UsageError, match="into=COLUMN"):
        layout_for(tmp_path, columns=("body",), decode="json", schema=pa.schema([("body", pa.string())]))


@pytest.mark.parametrize(
    ("names", "values", "text"),
    [
        (["body"], {}, "body of the body has the name of the column body"),  # a column that the table does not keep
        (["properties"], {"columns": ("queueOffset",)}, "column properties"),
        (["Tags"], {}, "Tags of the body has the name of the column tags"),
        (["id", "DAY"], {"partition": "day"}, "column day"),
        (["id"], {"into": "Body"}, "Body of the body has the name of the column body"),
        (["id", "ID"], {}, "the schema names a field twice: id and ID"),
        (["id", "id"], {"into": "order"}, "the schema names a field twice: id and id"),
    ],
)
def test_a_field_of_the_body_takes_the_place_of_no_column(tmp_path: Path, names: list[str], values: dict[str, Any], text: str):
    schema = pa.schema([(name, pa.int64()) for name in names])

    with pytest.raises(UsageError, match=text):
        layout_for(tmp_path, decode="json", schema=schema, **values)


@pytest.mark.parametrize("around", [lambda kind: kind, pa.list_, lambda kind: pa.list_(pa.list_(kind))])
def test_fields_inside_a_field_have_names_of_their_own(tmp_path: Path, around: Callable[[pa.DataType], pa.DataType]):
    def schema(*names: str) -> pa.Schema:
        return pa.schema([("item", around(pa.struct([(name, pa.int64()) for name in names])))])

    layout_for(tmp_path, decode="json", schema=schema("body", "sku"))  # inside another field nobody takes it for the message's
    with pytest.raises(UsageError, match="field item names a field twice: sku and Sku"):
        layout_for(tmp_path, decode="json", schema=schema("sku", "Sku"))


def test_a_task_that_fails_leaves_no_file_behind(tmp_path: Path):
    layout = layout_for(tmp_path, decode="json", schema=ID, partition="day")

    def failing() -> Iterator[pa.RecordBatch]:
        for body in (b'{"id": 1}', b"no"):
            yield batch(layout, [{"storeTimestamp": MIDNIGHT, "body": body}])
        assert len(list(tmp_path.rglob("*.parquet"))) == 2
        raise ConnectionError("the broker is gone")

    with pytest.raises(ConnectionError):
        write(layout, failing(), [])

    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"partition": "month"}, "there are day, hour"),
        ({"compression": "lzo"}, "there are snappy, zstd, none"),
        ({"file_bytes": 1}, "64 KiB and 4 GiB"),
        ({"decode": "json"}, "needs a schema"),
        ({"columns": ("topic", "nosuch")}, "nosuch"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(tmp_path: Path, values: dict[str, Any], text: str):
    with pytest.raises(UsageError, match=text):
        layout_for(tmp_path, **values)
