"""A lake table as users hold it: what is in it, how far it goes, and how a batch enters it.

A batch enters in two steps. Its manifest is written, which decides what the batch is; then the table's format takes the files in.
Either step may be repeated, by the same driver or by another, and a table opened again first finishes what was decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from halfmoon.errors import UsageError
from halfmoon.spark.lake.copies import first_of_copies
from halfmoon.spark.lake.delta import Delta
from halfmoon.spark.lake.files import QUARANTINE_SCHEMA, Layout
from halfmoon.spark.lake.iceberg import Iceberg
from halfmoon.spark.lake.ledger import Ledger, State, snapshot_of
from halfmoon.spark.lake.ledger import Table as TableDescription
from halfmoon.spark.lake.manifest import Copies, DataFile, Manifest, Queue, ends

KINDS = ("delta", "iceberg")


class Format(Protocol):
    """What a table format does for us."""

    kind: str
    root: Path

    def create(self, schema: pa.Schema, partition: str) -> None:
        """Make the table where there is none."""
        ...

    def last(self, id: str) -> int:
        """Return the last batch of an id that the table itself records; -1: it has none."""
        ...

    def apply(self, manifest: Manifest) -> bool:
        """Put a batch into the table unless it is there; False: it was, or has no rows."""
        ...

    def files(self) -> list[str]:
        """Return the paths of the files that the table is made of now."""
        ...

    def live(self) -> list[DataFile]:
        """Return those of them that lie in the table's directory."""
        ...

    def referenced(self) -> set[str]:
        """Return the paths, in the table's directory, of files that the table names, or an older state of it that is kept."""
        ...

    def vacuum(self) -> list[str]:
        """Remove files of older states that the format keeps no longer, by its own rules; return their paths."""
        ...

    def copies(self, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return how many rows `replace` left out of these queues, by queue."""
        ...

    def replace(self, old: Sequence[str], new: Sequence[DataFile], copies: Sequence[Copies]) -> None:
        """Put files in the place of others, in one step; ``copies`` are the rows left out.

        Raises:
            TableChanged: one of those is no longer there, or another writer changed the table at that moment.
        """
        ...


class LakeTable:
    """A table in a directory of a local or shared disk.

    ``name`` and ``catalog`` are for Iceberg: the table's name and the properties that pyiceberg finds its catalog by.
    """

    def __init__(self, path: str | Path, *, kind: str = "", name: str = "", catalog: Mapping[str, str] | None = None) -> None:
        if "://" in str(path):
            raise UsageError(f"{path}: tables lie on a local or shared disk; give a directory")
        self.root = Path(path).absolute()
        self.ledger = Ledger(self.root)
        self.kind = kind or self.ledger.table().kind
        self.format = _format(self.kind, self.root, name, catalog or {})

    def create(self, layout: Layout) -> None:
        """Make the table with the columns of a layout, or see that it has them. Raises UsageError naming what differs.

        Where the format cannot make it, the directory stays free for another table.
        """
        layout.check()
        schema = layout.table_schema()
        described = TableDescription(
            kind=self.kind, schema=bytes(schema.serialize()), partition=layout.partition, decode=layout.decode
        )
        self.ledger.check(described)
        self.format.create(schema, layout.partition)
        self.ledger.create_or_check(described)
        self.recover()

    def publish(self, manifest: Manifest) -> Manifest | None:
        """Put a batch into the table, once however often it is asked. Return the manifest that counts, None if a snapshot has it.

        Raises:
            UsageError: the batch is there with other ranges, or does not follow the last.
        """
        counted = self.ledger.decide(manifest)
        if counted is not None:
            self.format.apply(counted)
        return counted

    def recover(self) -> int:
        """Apply batches that were decided and are not in the table, in order; return how many. A driver may have died between."""
        return self._apply(self.ledger.state().batches)

    def state(self) -> State:
        """Return what the manifests say."""
        return self.ledger.state()

    def ends(self) -> dict[Queue, int]:
        """Return for each (topic, broker, queue) the offset behind what the table has."""
        return ends(self.state().spans)

    def schema(self) -> pa.Schema:
        """Return the columns of the files; the partition column of a Delta table comes on top."""
        return pa.ipc.read_schema(pa.py_buffer(self.ledger.table().schema))

    def files(self) -> list[str]:
        """Return the paths of the files with the table's rows."""
        return self.format.files()

    def live(self) -> list[DataFile]:
        """Return the files with the table's rows that lie in its directory."""
        return self.format.live()

    def referenced(self) -> set[str]:
        """Return the paths of all files that something of the table names; see `Format.referenced`."""
        state = self.ledger.state()
        quarantined = {file.path for file in state.quarantine}
        return quarantined | {file.path for batch in state.batches for file in batch.files} | self.format.referenced()

    def copies(self) -> dict[Queue, int]:
        """Return for each queue how many of its rows were left out as copies of others."""
        state = self.ledger.state()
        counts = self.format.copies({(span.topic, span.broker, span.queue) for span in state.spans})
        for count in state.copies:
            queue = (count.topic, count.broker, count.queue)
            counts[queue] = counts.get(queue, 0) + count.rows
        return counts

    def add_snapshot(self) -> bool:
        """Replace all batches by one snapshot; False: there is none, or another driver was faster.

        Batches of a snapshot are never applied again, so these very batches are applied to the table first.
        """
        state = self.ledger.state()
        self._apply(state.batches)
        return bool(state.batches) and self.ledger.add_snapshot(snapshot_of(state))

    def _apply(self, batches: Sequence[Manifest]) -> int:
        """Apply those batches that the table lacks; the format is asked once for each id."""
        have = {id: self.format.last(id) for id in {batch.id for batch in batches}}
        return sum(self.format.apply(batch) for batch in batches if batch.batch > have[batch.id])

    def read(self, session: SparkSession, *, dedup: str = "") -> DataFrame:
        """Return the table as it stands. ``dedup`` is ``msgId`` or ``keys``: of copies the first offset is kept."""
        described = self.ledger.table()
        fields = list(from_arrow_schema(self.schema()))
        parted = bool(described.partition) and self.kind != "iceberg"
        if parted:
            fields += list(StructType().add(described.partition, "string"))
        frame = frame_of(session, self.files(), StructType(fields), self.root if parted else None)
        return first_of_copies(frame, dedup) if dedup else frame

    def quarantine(self, session: SparkSession) -> DataFrame:
        """Return the messages that could not be decoded, each with the kind of fault and the reason."""
        paths = [str(self.root / file.path) for file in self.state().quarantine]
        return frame_of(session, paths, from_arrow_schema(QUARANTINE_SCHEMA))


def frame_of(session: SparkSession, paths: Sequence[str], schema: StructType, parted: Path | None = None) -> DataFrame:
    """Return the rows of Parquet files of a table. ``parted``: the directory below which directories give the partition column.

    Spark would leave out files that lie beside such directories; without it, it takes every file as it is.
    """
    if not paths:
        return session.createDataFrame([], schema)
    reader = session.read.schema(schema)
    return (reader.option("basePath", str(parted)) if parted else reader).parquet(*paths)


def _format(kind: str, root: Path, name: str, catalog: Mapping[str, str]) -> Format:
    if kind == "delta":
        return Delta(root)
    if kind == "iceberg":
        return Iceberg(root, name, catalog)
    if kind == "parquet":
        raise UsageError("plain Parquet files are no table: their readers would count a batch twice after a crash; take delta")
    raise UsageError(f"kind={kind[:50]!r} is unknown; there are {', '.join(KINDS)}")
