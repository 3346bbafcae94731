"""Lake table of users: its rows, its ends, and the publication of batches.

A batch is published in two steps. Its manifest is written, which decides its content; then its files are added to the table's
format. Either step may be repeated, by the same driver or by another, and a table that is opened again first completes decided
batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from halfmoon.errors import UsageError
from halfmoon.spark.lake.copies import first_of_copies
from halfmoon.spark.lake.delta import Delta
from halfmoon.spark.lake.files import QUARANTINE_SCHEMA, Layout
from halfmoon.spark.lake.iceberg import Iceberg
from halfmoon.spark.lake.ledger import TableDescription, TableLedger, TableState, snapshot_of
from halfmoon.spark.lake.manifest import BatchManifest, DataFile, Queue, ends

KINDS = ("delta", "iceberg")


class LakeTable:
    """Table in a directory of a local or shared disk.

    ``name`` and ``catalog`` are for Iceberg: the table's name and the properties that pyiceberg finds its catalog by.
    """

    def __init__(self, path: str | Path, *, kind: str = "", name: str = "", catalog: Mapping[str, str] | None = None) -> None:
        if "://" in str(path):
            raise UsageError(f"{path}: a table is on a local or shared disk; give a directory")
        self.root = Path(path).absolute()
        self.ledger = TableLedger(self.root)
        self.kind = kind or self.ledger.table().kind
        self.format = _format(self.kind, self.root, name, catalog or {})

    def create(self, layout: Layout) -> None:
        """Create the table with the columns of a layout, or check that it has them. Raises UsageError naming the difference.

        Where the format cannot create it, the directory stays free for another table.
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

    def publish(self, manifest: BatchManifest) -> BatchManifest | None:
        """Add a batch to the table, once however often it is called. Return the manifest that counts; None: a snapshot contains it.

        Raises:
            UsageError: the table has the batch with other ranges, or it does not follow the last.
        """
        counted = self.ledger.decide(manifest)
        if counted is not None:
            self.format.apply(counted)
        return counted

    def recover(self) -> int:
        """Add batches that were decided and are not in the table, in order; return how many. A driver may have died in between."""
        return self._apply(self.ledger.state().batches)

    def state(self) -> TableState:
        """Return the state by the manifests."""
        return self.ledger.state()

    def ends(self) -> dict[Queue, int]:
        """Return the offset behind the last row of the table for each (topic, broker, queue)."""
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
        """Return the paths of all files that batches, quarantine, the table and its older states name."""
        state = self.ledger.state()
        quarantined = {file.path for file in state.quarantine}
        return quarantined | {file.path for batch in state.batches for file in batch.files} | self.format.referenced()

    def copies(self) -> dict[Queue, int]:
        """Return the number of rows left out as copies of others, by queue."""
        state = self.ledger.state()
        counts = self.format.copies({(span.topic, span.broker, span.queue) for span in state.spans})
        for count in state.copies:
            queue = (count.topic, count.broker, count.queue)
            counts[queue] = counts.get(queue, 0) + count.rows
        return counts

    def add_snapshot(self) -> bool:
        """Replace all batches by one snapshot; return False if there is none, or another driver was faster.

        Batches of a snapshot are never applied again, so exactly these batches are applied first.
        """
        state = self.ledger.state()
        self._apply(state.batches)
        return bool(state.batches) and self.ledger.add_snapshot(snapshot_of(state))

    def _apply(self, batches: Sequence[BatchManifest]) -> int:
        """Apply the batches that the table lacks; the format is asked once for each id."""
        have = {id: self.format.last(id) for id in {batch.id for batch in batches}}
        return sum(self.format.apply(batch) for batch in batches if batch.batch > have[batch.id])

    def read(self, session: SparkSession, *, dedup: str = "") -> DataFrame:
        """Return the rows of the table. ``dedup`` is ``msgId`` or ``keys``: of copies the first offset is kept."""
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
    """Return the rows of Parquet files. ``parted`` is the directory below which the names of directories give the partition column.

    With it, Spark leaves out files that lie beside such directories.
    """
    if not paths:
        return session.createDataFrame([], schema)
    reader = session.read.schema(schema)
    return (reader.option("basePath", str(parted)) if parted else reader).parquet(*paths)


def _format(kind: str, root: Path, name: str, catalog: Mapping[str, str]) -> Delta | Iceberg:
    if kind == "delta":
        return Delta(root)
    if kind == "iceberg":
        return Iceberg(root, name, catalog)
    if kind == "parquet":
        raise UsageError("plain Parquet files would contain a batch twice after a crash; use delta")
    raise UsageError(f"kind={kind[:50]!r} is unknown; there are {', '.join(KINDS)}")
