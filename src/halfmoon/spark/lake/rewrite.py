"""Files written anew from others: joined, or without some rows. Tasks do it, a row group at a time."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
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

from halfmoon.errors import StoreError
from halfmoon.spark.lake.ledger import sync_folder
from halfmoon.spark.lake.manifest import DataFile, Queue

BATCH_ROWS = 1 << 17


class Work(NamedTuple):
    """One file to write: from which files, in order, and without which offsets of each queue."""

    sources: tuple[str, ...]
    without: Mapping[Queue, NDArray[np.int64]]
    partition: dict[str, str]


def rewritten(session: SparkSession, root: Path, works: Sequence[Work], compression: str) -> list[DataFile]:
    """Write the files and return them, in order; those that would have no rows have none, and `DataFile.rows` is 0.

    They are on the device, and no table knows them yet. The sources stay. Spark's error says so when a file did not get the rows
    that it should have.
    """
    context = session.sparkContext
    task = partial(_rewrite, str(root), compression)
    made = context.parallelize(list(works), max(1, min(len(works), 4 * context.defaultParallelism))).map(task).collect()
    return [msgspec.json.decode(text, type=DataFile) for text in made]


def _rewrite(root: str, compression: str, work: Work) -> str:
    """Write one file from others; return it as JSON."""
    folder = Path(root, *(f"{name}={value}" for name, value in work.partition.items()))
    path = folder / f"joined-{secrets.token_hex(8)}-0.parquet"
    schema = pq.read_schema(Path(root, work.sources[0]))
    rows = 0
    with path.open("xb") as sink:
        with pq.ParquetWriter(sink, schema, compression=compression) as writer:
            for batch in _batches(root, work):
                writer.write_batch(batch)
                rows += batch.num_rows
        sink.flush()
        os.fsync(sink.fileno())
        size = sink.tell()
    expected = sum(pq.read_metadata(Path(root, source)).num_rows for source in work.sources) - sum(map(len, work.without.values()))
    if rows != expected:
        path.unlink()
        raise StoreError(f"{path.name}: {rows} rows of {', '.join(work.sources)} were written, and not {expected}")
    if not rows:
        path.unlink()
    sync_folder(folder)
    made = DataFile(path=path.relative_to(root).as_posix(), rows=rows, size_bytes=size, partition=work.partition)
    return msgspec.json.encode(made).decode()


def _batches(root: str, work: Work) -> Iterator[pa.RecordBatch]:
    for source in work.sources:
        with pq.ParquetFile(Path(root, source)) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                left = without(batch, work.without) if work.without else batch
                if left.num_rows:
                    yield left


def without(batch: pa.RecordBatch, offsets: Mapping[Queue, NDArray[np.int64]]) -> pa.RecordBatch:
    """Return the rows of a batch that are not named by queue and offset."""

    def those(queue: Queue) -> pa.BooleanArray:
        place = zip(("topic", "brokerName", "queueId"), queue, strict=True)
        same = reduce(pc.and_, [pc.equal(batch.column(name), value) for name, value in place])
        return pc.fill_null(pc.and_(same, pc.is_in(batch.column("queueOffset"), pa.array(offsets[queue], pa.int64()))), False)

    return batch.filter(pc.invert(reduce(pc.or_, map(those, offsets)))) if offsets else batch
