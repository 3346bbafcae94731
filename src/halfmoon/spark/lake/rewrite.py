"""Rewriting of files by tasks, a row group at a time: files are merged, or rows are left out."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from halfmoon.conversion import json_decoder
from halfmoon.errors import StoreError
from halfmoon.spark.lake.files import repeating
from halfmoon.spark.lake.ledger import sync_folder
from halfmoon.spark.lake.manifest import DataFile, Queue

BATCH_ROWS = 1 << 17
"""Rows of one row group. Small groups cost each reader statistics and pages of their own."""

BATCH_BYTES = 64 << 20
"""Bytes of one row group in memory; a task holds two of them."""


class Rewrite(NamedTuple):
    """File to write: its sources in order, and the offsets of each queue to leave out."""

    sources: tuple[str, ...]
    without: Mapping[Queue, NDArray[np.int64]]
    partition: dict[str, str]


def rewrite_files(session: SparkSession, root: Path, rewrites: Sequence[Rewrite], compression: str) -> list[DataFile]:
    """Write the files, durably, and return them in order; one that would have no rows is not written, and its `DataFile.rows` is 0.

    No table has them yet, and the sources stay. A file with a wrong number of rows fails the Spark job.
    """
    context = session.sparkContext
    task = partial(rewrite_one, str(root), compression)
    reports = context.parallelize(list(rewrites), max(1, min(len(rewrites), 4 * context.defaultParallelism))).map(task).collect()
    data_file = json_decoder(DataFile)
    return [data_file.decode(text) for text in reports]


def rewrite_one(
    root: str, compression: str, rewrite: Rewrite, *, batch_rows: int = BATCH_ROWS, batch_bytes: int = BATCH_BYTES
) -> str:
    """Write one file from others, in row groups of at most so many rows and bytes; return it as JSON."""
    folder = Path(root, *(f"{name}={value}" for name, value in rewrite.partition.items()))
    path = folder / f"merged-{secrets.token_hex(8)}-0.parquet"
    schema = pq.read_schema(Path(root, rewrite.sources[0]))
    rows = 0
    with path.open("xb") as sink:
        with pq.ParquetWriter(sink, schema, compression=compression, use_dictionary=repeating(schema)) as writer:
            for group in _gathered(_batches(root, rewrite, batch_rows, batch_bytes), batch_rows, batch_bytes):
                writer.write_table(group, row_group_size=batch_rows)
                rows += group.num_rows
        sink.flush()
        os.fsync(sink.fileno())
        size = sink.tell()
    expected = sum(pq.read_metadata(Path(root, source)).num_rows for source in rewrite.sources) - sum(
        map(len, rewrite.without.values())
    )
    if rows != expected:
        path.unlink()
        raise StoreError(f"{path.name}: {rows} rows of {', '.join(rewrite.sources)} were written, and not {expected}")
    if not rows:
        path.unlink()
    sync_folder(folder)
    data_file = DataFile(path=path.relative_to(root).as_posix(), rows=rows, size_bytes=size, partition=rewrite.partition)
    return msgspec.json.encode(data_file).decode()


def _batches(root: str, rewrite: Rewrite, batch_rows: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    for source in rewrite.sources:
        with pq.ParquetFile(Path(root, source)) as file:
            for batch in file.iter_batches(_rows_at_once(file.metadata, batch_rows, batch_bytes)):
                left = without(batch, rewrite.without) if rewrite.without else batch
                if left.num_rows:
                    yield left


def _rows_at_once(known: pq.FileMetaData, batch_rows: int, batch_bytes: int) -> int:
    """Return how many rows of a file make about ``batch_bytes``, by its sizes before compression."""
    size = sum(known.row_group(number).total_byte_size for number in range(known.num_row_groups))
    return min(max(batch_bytes * int(known.num_rows) // max(int(size), 1), 1), batch_rows)


def _gathered(batches: Iterable[pa.RecordBatch], batch_rows: int, batch_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in order, in tables of no more than ``batch_rows`` and ``batch_bytes``; a larger row is one of its own."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for chunk in (chunk for batch in batches for chunk in _chunks(batch, batch_bytes)):
        if held and (rows + chunk.num_rows > batch_rows or size + chunk.nbytes > batch_bytes):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(chunk)
        rows, size = rows + chunk.num_rows, size + chunk.nbytes
    if held:
        yield pa.Table.from_batches(held)


def _chunks(batch: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch whole, or in pieces of about ``batch_bytes``: the size of a dictionary-encoded file may have been too low."""
    rows = max(1, batch.num_rows // max(1, -(-batch.nbytes // batch_bytes)))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def without(batch: pa.RecordBatch, offsets: Mapping[Queue, NDArray[np.int64]]) -> pa.RecordBatch:
    """Return the rows of a batch that are not named by queue and offset."""

    def those(queue: Queue) -> pa.BooleanArray:
        place = zip(("topic", "brokerName", "queueId"), queue, strict=True)
        same = reduce(pc.and_, [pc.equal(batch.column(name), value) for name, value in place])
        return pc.fill_null(pc.and_(same, pc.is_in(batch.column("queueOffset"), pa.array(offsets[queue], pa.int64()))), False)

    return batch.filter(pc.invert(reduce(pc.or_, map(those, offsets)))) if offsets else batch
