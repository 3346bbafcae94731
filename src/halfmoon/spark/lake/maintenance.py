"""Maintenance of tables: merges small files, deletes duplicates, removes unreferenced files.

Each operation replaces files in one commit. If the table changed meanwhile, the commit fails, and the new files are removed.
Replaced files stay for a while, for queries that began before. Why the rewriting is our own: decision 33.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from halfmoon.errors import UsageError
from halfmoon.spark.lake.copies import copies, counted, places_by_file
from halfmoon.spark.lake.ledger import QUARANTINE, TableChanged
from halfmoon.spark.lake.manifest import FILE_NAME, CopyCount, DataFile
from halfmoon.spark.lake.rewrite import Rewrite, rewrite_files
from halfmoon.spark.lake.table import LakeTable

FILE_BYTES = 128 << 20
KEEP_MS = 24 * 3_600_000
"""Age from which an unreferenced file is removed: longer than any batch and any query runs."""

KEEP_MS_MIN = 3_600_000
"""Minimum of that age. The files of a running batch are unreferenced until all are written."""

COPIES_MAX = 1_000_000
"""Duplicates deleted in one round; the driver holds their offsets."""


def compact(session: SparkSession, table: LakeTable, *, file_bytes: int = FILE_BYTES, compression: str = "zstd") -> int:
    """Merge files of less than half of ``file_bytes`` into larger ones, within their partition; return how many were merged.

    The manifests of the table's batches become one snapshot, too. Raises TableChanged when the table changed meanwhile in a way
    that matters.
    """
    table.recover()
    rewrites = []
    for files in _by_partition(file for file in table.live() if file.size_bytes < file_bytes // 2):
        rewrites += [Rewrite(tuple(f.path for f in group), {}, group[0].partition) for group in _groups(files, file_bytes)]
    removed = _replace(session, table, rewrites, compression, ())
    table.add_snapshot()
    return removed


def dedup(session: SparkSession, table: LakeTable, by: str, *, compression: str = "zstd") -> int:
    """Delete duplicates from a table, ``by`` msgId or keys: the first offset stays; return how many rows were deleted.

    Only files with duplicates are rewritten. Raises TableChanged when the table changed meanwhile in a way that matters;
    run again, it continues.
    """
    table.recover()
    removed = 0
    while True:
        named = table.read(session).withColumn("_file", F.input_file_name())
        places = places_by_file(copies(named, by).limit(COPIES_MAX))
        if not places:
            table.add_snapshot()
            return removed
        files = {Path(file.path).name: file for file in table.live()}
        if not places.keys() <= files.keys():
            if foreign := [name for name in sorted(places.keys() - files.keys()) if not FILE_NAME.fullmatch(name)]:
                raise UsageError(f"duplicates are in {foreign[0]} of another writer, and only files of Halfmoon are rewritten")
            raise TableChanged(f"the table in {table.root} changed meanwhile. Run this again")
        rewrites = [Rewrite((files[name].path,), offsets, files[name].partition) for name, offsets in sorted(places.items())]
        dropped = counted(places)
        _replace(session, table, rewrites, compression, dropped)
        removed += sum(count.rows for count in dropped)


def vacuum(table: LakeTable, *, keep_ms: int = KEEP_MS) -> list[str]:
    """Remove files of Halfmoon that the table no longer needs; return their paths in the table. Files of other writers stay.

    * Of attempts that were killed or overtaken: once they are older than ``keep_ms``.
    * In a Delta table: when the table's own time for them is over (``delta.deletedFileRetentionDuration``, a week unless set), as
      Delta's vacuum has it.
    * In an Iceberg table: when ``keep_ms`` is over and no snapshot has them, so after its owner expired the snapshots from before:
      ``catalog.load_table(name).maintenance.expire_snapshots().older_than(time).commit()`` of pyiceberg.

    A batch that takes longer than ``keep_ms`` may lose files to it; then it fails, and is not in the table.
    Raises UsageError for less than `KEEP_MS_MIN`.
    """
    check_keep(keep_ms)
    return sweep(table, keep_ms)


def check_keep(keep_ms: int) -> None:
    """Raise UsageError for an age at which `vacuum` would remove the files of running batches."""
    if keep_ms < KEEP_MS_MIN:
        raise UsageError(
            f"a vacuum of files that are {max(keep_ms, 0) / 1000:g} s old would remove those of running batches: "
            f"{KEEP_MS_MIN // 3_600_000}h is the least"
        )


def sweep(table: LakeTable, keep_ms: int) -> list[str]:
    """Remove files as `vacuum` does, at any age: for tables without writers and readers."""
    table.recover()
    table.ledger.prune(keep_ms)
    gone = table.format.vacuum()
    known, oldest = table.referenced(), time.time() - keep_ms / 1000
    for path in sorted(table.root.rglob("*.parquet")):
        name = path.relative_to(table.root).as_posix()
        if not FILE_NAME.fullmatch(path.name) or name in known:
            continue
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
                gone.append(name)
        except FileNotFoundError:
            pass  # another driver removed it
    return sorted(gone)


# ---------------------------------------------------------------- replacing files


def _replace(
    session: SparkSession, table: LakeTable, rewrites: Sequence[Rewrite], compression: str, dropped: Sequence[CopyCount]
) -> int:
    if not rewrites:
        return 0
    files = rewrite_files(session, table.root, rewrites, compression)
    old = [path for rewrite in rewrites for path in rewrite.sources]
    try:
        table.format.replace(old, [file for file in files if file.rows], dropped)
    except TableChanged:  # after any other error they may be in the table, and if not `vacuum` removes them
        for file in files:
            (table.root / file.path).unlink(missing_ok=True)
        raise
    return len(old)


def _by_partition(files: Iterable[DataFile]) -> list[list[DataFile]]:
    partitions: dict[str, list[DataFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if not file.path.startswith(QUARANTINE):
            partitions.setdefault(str(sorted(file.partition.items())), []).append(file)
    return list(partitions.values())


def _groups(files: list[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Return files in groups of about ``file_bytes``, each of two files or more."""
    groups: list[list[DataFile]] = [[]]
    size = 0
    for file in files:
        if size + file.size_bytes > file_bytes and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size_bytes
    return [group for group in groups if len(group) > 1]
