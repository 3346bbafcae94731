"""Iceberg table that takes batches. One commit adds the files of one manifest and sets the last batch of its id as a property.

The catalog refuses a commit to a table that changed since it was read, so no other driver can come between the check for the batch
and the commit. The library would repeat a refused commit without the check; its retries are off.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import CommitFailedException, NamespaceAlreadyExistsError, NoSuchTableError, TableAlreadyExistsError
    from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
    from pyiceberg.table import Table, TableProperties, _parquet_files_to_data_files
    from pyiceberg.transforms import DayTransform, HourTransform
except ImportError:  # comes with the extra `lake`
    load_catalog = None  # type: ignore[assignment]

from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake.ledger import TRIES, TableChanged
from halfmoon.spark.lake.manifest import FILE_NAME, BatchManifest, CopyCount, DataFile, Queue, sum_copies


class Iceberg:
    """Iceberg table of a catalog, with its files in one directory. ``catalog`` are pyiceberg's properties."""

    kind = "iceberg"

    def __init__(self, root: Path, name: str, catalog: Mapping[str, str]) -> None:
        if load_catalog is None:
            raise UsageError("Iceberg tables need pyiceberg: pip install 'halfmoon[lake]'")
        if name.count(".") < 1 or not catalog:
            raise UsageError("an Iceberg table needs its name, such as lake.orders, and the properties of its catalog")
        if set("#?%") & set(str(root)):
            raise UsageError(f"{root}: pyiceberg reads #, ? and % in a path as parts of an address; choose another directory")
        self.root, self._name = root, name
        self._catalog: Catalog = load_catalog("halfmoon", **catalog)

    def create(self, schema: pa.Schema, partition: str) -> None:
        """Create the table where there is none, partitioned by a transform of ``storeTimestamp``."""
        if partition and "storeTimestamp" not in schema.names:
            raise UsageError("an Iceberg table partitioned by time needs the column storeTimestamp")
        if self._catalog.table_exists(self._name):
            return
        try:
            self._catalog.create_namespace(self._name.rpartition(".")[0])
        except NamespaceAlreadyExistsError:
            pass
        try:
            with self._catalog.create_table_transaction(
                self._name, schema, location=f"file://{self.root}", partition_spec=UNPARTITIONED_PARTITION_SPEC
            ) as making:
                if partition:
                    transform: Any = DayTransform() if partition == "day" else HourTransform()
                    with making.update_spec() as spec:
                        spec.add_field("storeTimestamp", transform, partition)
        except (TableAlreadyExistsError, CommitFailedException):
            pass  # another driver created it at the same time

    def last(self, id: str) -> int:
        """Return the last batch of an id that is in the table, by its property; -1: none."""
        return int(self.load().properties.get(_last_of(id), "-1"))

    def apply(self, manifest: BatchManifest) -> bool:
        """Add a batch to the table; return False if it was there, or has no rows."""
        if not manifest.files:
            return False
        key = _last_of(manifest.id)
        for _ in range(TRIES):
            table = self.load()
            if int(table.properties.get(key, "-1")) >= manifest.batch:
                return False
            try:
                with table.transaction() as change:
                    change.set_properties({key: str(manifest.batch)})
                    change.add_files(
                        [self._place(file.path) for file in manifest.files],
                        snapshot_properties={"halfmoon.id": manifest.id, "halfmoon.batch": str(manifest.batch)},
                        check_duplicate_files=False,
                    )
                return True
            except CommitFailedException:
                continue
        raise StoreError(f"batch {manifest.batch} of {manifest.id}: others changed {self._name} at each of {TRIES} tries to commit")

    def files(self) -> list[str]:
        """Return the paths of the table's files."""
        paths = []
        for task in self.load().scan().plan_files():
            if task.delete_files:
                raise UsageError(f"{self._name} has delete files, which plain Parquet files do not show")
            paths.append(task.file.file_path)
        return sorted(paths)

    def live(self) -> list[DataFile]:
        """Return the table's files that Halfmoon wrote; their names hold their partition."""
        files, root = [], f"file://{self.root}/"
        for task in self.load().scan().plan_files():
            folder, _, name = task.file.file_path.removeprefix(root).rpartition("/")
            if not task.file.file_path.startswith(root) or not FILE_NAME.fullmatch(name):
                continue
            column, equals, value = folder.partition("=")
            files.append(
                DataFile(
                    path=task.file.file_path.removeprefix(root),
                    rows=task.file.record_count,
                    size_bytes=task.file.file_size_in_bytes,
                    partition={column: value} if equals else {},
                )
            )
        return files

    def referenced(self) -> set[str]:
        """Return the paths of the files of all snapshots. Expiring a snapshot releases its files."""
        paths = self.load().inspect.all_data_files().column("file_path").to_pylist()
        return {path.removeprefix(f"file://{self.root}/") for path in paths}

    def vacuum(self) -> list[str]:
        """Return nothing: the table's owner expires snapshots, and `maintenance.vacuum` removes files that no snapshot has."""
        return []

    def copies(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the number of rows that `replace` left out, by queue."""
        properties = self.load().properties
        return {queue: int(properties.get(_copies_of(queue), "0")) for queue in queues}

    def replace(self, old: Sequence[str], new: Sequence[DataFile], copies: Sequence[CopyCount]) -> None:
        """Replace files in one commit, which sets the rows left out so far as properties of the table.

        Raises TableChanged.
        """
        table = self.load()
        gone = {self._place(path) for path in old}
        files = [task.file for task in table.scan().plan_files() if task.file.file_path in gone]
        try:
            if len(files) < len(gone):
                raise CommitFailedException
            with table.transaction() as change:
                for duplicates in sum_copies(copies):
                    name = _copies_of((duplicates.topic, duplicates.broker, duplicates.queue))
                    change.set_properties({name: str(int(table.properties.get(name, "0")) + duplicates.rows)})
                with change.update_snapshot().overwrite() as step:
                    for file in files:
                        step.delete_data_file(file)
                    for added in _parquet_files_to_data_files(table.metadata, [self._place(file.path) for file in new], table.io):
                        step.append_data_file(added)
        except CommitFailedException:
            raise TableChanged(f"{self._name} changed meanwhile: files are no longer in it. Run this again") from None

    def _place(self, path: str) -> str:
        return f"file://{self.root / path}"

    def load(self) -> Table:
        """Return the table as it is now, for one commit, which the library must not repeat by itself."""
        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            raise UsageError(f"the catalog has no table {self._name}") from None
        table.metadata.properties[TableProperties.COMMIT_NUM_RETRIES] = "0"
        return table


def _last_of(id: str) -> str:
    """Return the property that names the last batch of an id."""
    return f"halfmoon.last.{id}"


def _copies_of(queue: Queue) -> str:
    """Return the property that counts a queue's left-out rows."""
    return f"halfmoon.copies.{json.dumps(queue)}"
