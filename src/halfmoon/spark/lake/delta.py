"""Delta table that takes batches. A commit adds the files of one manifest and records (id, batch) as an application transaction.

The library accepts a repeated transaction, so the recorded version is read before each commit. Of two drivers that read it at the
same time, the library refuses the later commit; that driver reads it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa

try:
    from deltalake import CommitProperties, DeltaTable, Transaction
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import AddAction, RemoveAction
except ImportError:  # comes with the extra `lake`
    DeltaTable = None  # type: ignore[assignment, misc]

from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake.ledger import TRIES, TableChanged
from halfmoon.spark.lake.manifest import BatchManifest, CopyCount, DataFile, Queue, sum_copies


class Delta:
    """A Delta table in a directory."""

    kind = "delta"

    def __init__(self, root: Path) -> None:
        if DeltaTable is None:
            raise UsageError("Delta tables need deltalake: pip install 'halfmoon[lake]'")
        self.root = root

    def create(self, schema: pa.Schema, partition: str) -> None:
        """Create the table where there is none. ``schema`` is that of the files, without the partition column."""
        whole = pa.schema([*schema, pa.field(partition, pa.string())]) if partition else schema
        DeltaTable.create(self.root, whole, mode="ignore", partition_by=[partition] if partition else None)

    def last(self, id: str) -> int:
        """Return the last batch of an id that is in the table, by its application transaction; -1: none."""
        version = DeltaTable(self.root).transaction_version(id)
        return -1 if version is None else version

    def apply(self, manifest: BatchManifest) -> bool:
        """Add a batch to the table; return False if it was there, or has no rows."""
        if not manifest.files:
            return False
        for _ in range(TRIES):
            table = DeltaTable(self.root)
            have = table.transaction_version(manifest.id)
            if have is not None and have >= manifest.batch:
                return False
            try:
                table.create_write_transaction(
                    [_added(file) for file in manifest.files],
                    mode="append",
                    schema=table.schema(),
                    partition_by=table.metadata().partition_columns,
                    commit_properties=CommitProperties(
                        custom_metadata={"halfmoon.id": manifest.id, "halfmoon.batch": str(manifest.batch)},
                        app_transactions=[Transaction(manifest.id, manifest.batch)],
                    ),
                )
                return True
            except CommitFailedError:
                continue
        raise StoreError(f"batch {manifest.batch} of {manifest.id}: others changed {self.root} at each of {TRIES} tries to commit")

    def files(self) -> list[str]:
        """Return the paths of the table's files."""
        table = DeltaTable(self.root)
        features = set(table.protocol().reader_features or ())
        if features & {"deletionVectors", "columnMapping"}:
            raise UsageError(
                f"the Delta table in {self.root} uses {', '.join(sorted(features))}, which plain Parquet files do not show"
            )
        return sorted(table.file_uris())

    def live(self) -> list[DataFile]:
        """Return the files of the table with their rows and partitions."""
        return _files(DeltaTable(self.root))

    def referenced(self) -> set[str]:
        """Return the paths of the files of all versions in the table's log; `vacuum` removes those."""
        paths: set[str] = set()
        for entry in sorted((self.root / "_delta_log").glob("*.json")):
            for line in entry.read_text().splitlines():
                action = json.loads(line)
                paths |= {unquote(action[name]["path"]) for name in ("add", "remove") if name in action}
        return paths | {file.path for file in self.live()}

    def vacuum(self) -> list[str]:
        """Remove files that left the table longer ago than its retention; return their paths.

        The retention is its property ``delta.deletedFileRetentionDuration``, a week unless set. Older versions can then no longer
        be read.
        """
        return [unquote(path) for path in DeltaTable(self.root).vacuum(dry_run=False)]

    def copies(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the number of rows that `replace` left out, by queue."""
        table = DeltaTable(self.root)
        return {queue: table.transaction_version(_copies_of(queue)) or 0 for queue in queues}

    def replace(self, old: Sequence[str], new: Sequence[DataFile], copies: Sequence[CopyCount]) -> None:
        """Replace files in one commit, which records the rows left out so far as application transactions. Raises TableChanged."""
        table = DeltaTable(self.root)
        current = {file.path: file for file in _files(table)}
        if not set(old) <= current.keys():
            raise self._changed()
        totals = []
        for duplicates in sum_copies(copies):
            name = _copies_of((duplicates.topic, duplicates.broker, duplicates.queue))
            totals.append(Transaction(name, (table.transaction_version(name) or 0) + duplicates.rows))
        changes = bool(totals)
        try:
            table.create_write_transaction(
                [*(_removed(current[path], changes=changes) for path in old), *(_added(file, changes=changes) for file in new)],
                mode="append",
                schema=table.schema(),
                partition_by=table.metadata().partition_columns,
                commit_properties=CommitProperties(app_transactions=totals),
            )
        except CommitFailedError:
            raise self._changed() from None

    def _changed(self) -> TableChanged:
        return TableChanged(f"the table in {self.root} changed meanwhile: files are no longer in it. Run this again")


def _copies_of(queue: Queue) -> str:
    """Return the name of the application transaction that counts a queue's left-out rows. No `ID` of an ingest has a colon."""
    return f"halfmoon:copies:{json.dumps(queue)}"


def _files(table: DeltaTable) -> list[DataFile]:
    files = []
    for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        partition = {name[10:]: str(value) for name, value in action.items() if name.startswith("partition.")}
        path, rows, size = unquote(action["path"]), action["num_records"], action["size_bytes"]
        files.append(DataFile(path=path, rows=rows, size_bytes=size, partition=partition))
    return files


def _added(file: DataFile, *, changes: bool = True) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=file.partition,
        modification_time=int(time.time() * 1000),
        data_change=changes,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _removed(file: DataFile, *, changes: bool) -> RemoveAction:
    return RemoveAction(file.path, changes, int(time.time() * 1000), file.size_bytes, dict(file.partition))
