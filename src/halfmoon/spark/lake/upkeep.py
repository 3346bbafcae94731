"""Upkeep of tables: small files joined, copies taken out, files that belong to no table removed.

All of it replaces some files by others in one step, which fails when the table changed in between; then nothing has happened, and
the files written for it are removed.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from halfmoon.errors import UsageError
from halfmoon.spark.lake.ledger import QUARANTINE, sync_folder
from halfmoon.spark.lake.manifest import DataFile
from halfmoon.spark.lake.table import COPIES, LakeTable, copies

FILE_BYTES = 128 << 20
KEEP_MS = 24 * 3_600_000
"""How old a file that no table knows must be to be removed: longer than any batch runs, and than any query reads."""

COPIES_MAX = 1_000_000
"""Copies taken out in one round; the driver holds their offsets."""

_OURS = re.compile(r"(part|refused|joined)-[0-9a-f]{16}-\d+\.parquet")

Place = tuple[str, str, int, int]
"""Topic, broker, queue and offset of a row."""


class Work(NamedTuple):
    """One file to write: from which files, in order, and without which rows of each."""

    sources: tuple[str, ...]
    without: frozenset[Place]
    partition: dict[str, str]


def compact(session: SparkSession, table: LakeTable, *, file_bytes: int = FILE_BYTES, compression: str = "zstd") -> int:
    """Join files of less than half of ``file_bytes`` to larger ones, within their partition; return how many went.

    The table's record of its batches becomes one, too. Raises UsageError when the table changed meanwhile in a way that matters.
    """
    table.settle()
    works = []
    for files in _by_partition(file for file in table.live() if file.size_bytes < file_bytes // 2):
        works += [Work(tuple(f.path for f in group), frozenset(), group[0].partition) for group in _groups(files, file_bytes)]
    gone = _replace(session, table, works, compression, 0)
    table.fold()
    return gone


def dedup(session: SparkSession, table: LakeTable, by: str, *, compression: str = "zstd") -> int:
    """Take copies out of a table for good, ``by`` msgId or keys: the first offset stays; return how many rows went.

    Only the files that have copies are written anew.
    """
    if by not in COPIES:
        raise UsageError(f"dedup={by!r} is unknown; there are {', '.join(COPIES)}")
    table.settle()
    removed = 0
    while True:
        named = table.read(session).withColumn("_file", F.input_file_name())
        frame = copies(named, by).select("_file", "topic", "brokerName", "queueId", "queueOffset")
        found: dict[str, set[Place]] = {}
        for file, *place in frame.limit(COPIES_MAX).collect():
            found.setdefault(Path(file).name, set()).add(tuple(place))
        if not found:
            return removed
        files = {Path(file.path).name: file for file in table.live()}
        works = [Work((files[name].path,), frozenset(rows), files[name].partition) for name, rows in sorted(found.items())]
        count = sum(len(rows) for rows in found.values())
        _replace(session, table, works, compression, count)
        removed += count


def vacuum(table: LakeTable, *, keep_ms: int = KEEP_MS) -> list[str]:
    """Remove files of ours that no table knows and that are older than ``keep_ms``; return their paths in the table.

    They come from attempts that were killed or overtaken, and from compaction. Files of other writers stay.
    """
    table.settle()
    table.ledger.forget(keep_ms)
    known, oldest = table.known(), time.time() - keep_ms / 1000
    gone = []
    for path in sorted(table.root.rglob("*.parquet")):
        name = path.relative_to(table.root).as_posix()
        if _OURS.fullmatch(path.name) and name not in known and path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)
            gone.append(name)
    return gone


# ---------------------------------------------------------------- files by others


def _replace(session: SparkSession, table: LakeTable, works: Sequence[Work], compression: str, dropped: int) -> int:
    if not works:
        return 0
    context = session.sparkContext
    task = partial(_rewrite, str(table.root), compression)
    made = context.parallelize(list(works), min(len(works), 4 * context.defaultParallelism)).map(task).collect()
    files = [msgspec.json.decode(text, type=DataFile) for text in made]
    old = [path for work in works for path in work.sources]
    try:
        table.format.replace(table.ledger, old, [file for file in files if file.rows], dropped)
    except BaseException:
        for file in files:
            (table.root / file.path).unlink(missing_ok=True)
        raise
    return len(old)


def _rewrite(root: str, compression: str, work: Work) -> str:
    """Write one file from others, a row group at a time; return it as JSON."""
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
    sync_folder(folder)
    made = DataFile(path=path.relative_to(root).as_posix(), rows=rows, size_bytes=size, partition=work.partition)
    return msgspec.json.encode(made).decode()


def _batches(root: str, work: Work) -> Iterator[pa.RecordBatch]:
    for source in work.sources:
        with pq.ParquetFile(Path(root, source)) as file:
            for batch in file.iter_batches(1 << 17):
                yield _left(batch, work.without) if work.without else batch


def _left(batch: pa.RecordBatch, without: frozenset[Place]) -> pa.RecordBatch:
    """Return the rows of a batch that are not named."""
    columns = [batch.column(name).to_pylist() for name in ("topic", "brokerName", "queueId", "queueOffset")]
    return batch.filter(pa.array([place not in without for place in zip(*columns, strict=True)], pa.bool_()))


def _by_partition(files: Iterable[DataFile]) -> list[list[DataFile]]:
    found: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if not file.path.startswith(QUARANTINE):
            found.setdefault(str(sorted(file.partition.items())), []).append(file)
    return list(found.values())


def _groups(files: list[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Return files in groups of about ``file_bytes``; a file alone is no group."""
    groups: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if size + file.size_bytes > file_bytes and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size_bytes
    return [group for group in groups if len(group) > 1]
