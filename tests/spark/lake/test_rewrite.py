"""Files written anew: few row groups, none of them larger than its bounds, and every row once. No Spark session."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from halfmoon.data import rows as messages
from halfmoon.spark.lake.files import layout_for, write
from halfmoon.spark.lake.manifest import DataFile
from halfmoon.spark.lake.rewrite import Rewrite, rewrite_one


def files(place: Path, count: int, rows: int, body: bytes = b"x") -> tuple[str, ...]:
    """Write Parquet files of so many rows each, with offsets that go on; return their names."""
    names = []
    for number in range(count):
        offsets = range(number * rows, (number + 1) * rows)
        names.append(f"part-{number}.parquet")
        pq.write_table(pa.table({"queueOffset": pa.array(offsets), "body": [body] * rows}), place / names[-1], compression="none")
    return tuple(names)


def merge_spans(place: Path, sources: tuple[str, ...], **bounds: int) -> tuple[list[int], list[int]]:
    """Join files; return the rows of each row group, and the offsets in order."""
    made = msgspec.json.decode(rewrite_one(str(place), "none", Rewrite(sources, {}, {}), **bounds), type=DataFile)
    with pq.ParquetFile(place / made.path) as file:
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        offsets = file.read().column("queueOffset").to_pylist()
    assert (sum(groups), (place / made.path).stat().st_size) == (made.rows, made.size_bytes)
    return groups, offsets


def test_many_small_files_become_one_row_group(tmp_path: Path):
    assert merge_spans(tmp_path, files(tmp_path, 20, 3)) == ([60], list(range(60)))


def test_a_row_group_has_no_more_rows_than_its_bound(tmp_path: Path):
    assert merge_spans(tmp_path, files(tmp_path, 6, 4), batch_rows=10) == ([8, 8, 8], list(range(24)))
    assert merge_spans(tmp_path, files(tmp_path, 1, 25), batch_rows=10) == ([10, 10, 5], list(range(25)))


@pytest.mark.parametrize(("count", "rows"), [(24, 1), (1, 24)])
def test_a_row_group_has_no_more_bytes_than_its_bound(tmp_path: Path, count: int, rows: int):
    groups, offsets = merge_spans(tmp_path, files(tmp_path, count, rows, bytes(2_000)), batch_bytes=10_000)

    assert offsets == list(range(24))
    assert (max(groups) <= 5, len(groups) <= 8) == (True, True)


def test_a_row_larger_than_the_bound_is_a_group_of_its_own(tmp_path: Path):
    assert merge_spans(tmp_path, files(tmp_path, 3, 1, bytes(2_000)), batch_bytes=100) == ([1, 1, 1], [0, 1, 2])


def with_dictionary(path: Path) -> set[str]:
    """Return the columns of a file that have a dictionary, in any row group."""
    known = pq.read_metadata(path)
    groups = [known.row_group(number) for number in range(known.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return {column.path_in_schema for column in columns if column.has_dictionary_page}


def test_joined_files_have_a_dictionary_for_the_columns_that_fresh_ones_have_one_for(tmp_path: Path):
    layout = layout_for(tmp_path, decode="json", schema=pa.schema([("shop", pa.string())]), columns=tuple(messages.COLUMNS))
    needed = messages.schema_of(layout.needed())
    texts = {"topic": "orders", "brokerName": "a", "tags": "paid", "bornHost": "h:1", "keys": "k"}
    same = {**dict.fromkeys(needed.names, 0), **texts, "body": b'{"shop": "berlin"}', "properties": {"of": "me"}}
    sources = []
    for begin in (0, 50):
        rows = [{**same, "queueOffset": offset, "msgId": str(offset)} for offset in range(begin, begin + 50)]
        (file,) = write(layout, [pa.RecordBatch.from_pylist(rows, needed)], []).files
        sources.append(file.path)

    made = msgspec.json.decode(rewrite_one(str(tmp_path), "zstd", Rewrite(tuple(sources), {}, {})), type=DataFile)

    paying = {"topic", "brokerName", "queueId", "tags", "bornHost", "sysFlag", "flag", "reconsumeTimes", "shop"}
    assert [with_dictionary(tmp_path / path) for path in (*sources, made.path)] == [paying] * 3
