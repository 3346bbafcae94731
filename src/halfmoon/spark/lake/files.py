"""Files of an ingest, as tasks write them: messages in, Parquet files, quarantine and a report out.

Imports no table format, because every Python worker imports this module again.

Files of an attempt have its random id in their names, and belong to the table once a manifest names them. An attempt that is
repeated, killed or superseded leaves files that no reader sees; `vacuum` removes them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from halfmoon.data import bodies, rows
from halfmoon.data.partitions import Range
from halfmoon.data.reading import DataLoss, records_of
from halfmoon.errors import UsageError
from halfmoon.spark.lake.ledger import QUARANTINE, sync_folder
from halfmoon.spark.lake.manifest import DataFile, TaskReport, text
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.reading import record_reader

COMPRESSIONS = ("snappy", "zstd", "none")
PARTITIONS = {"": "", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
"""Partition columns by the time of storing, in UTC, and the form of their values."""

WRITERS_MAX = 16
"""Files that one task has open; the oldest is closed for one more."""

ROW_GROUP_ROWS = 1 << 17

QUARANTINE_SCHEMA = pa.schema(
    [*(f for f in rows.SCHEMA if f.name != "properties"), ("fault", pa.string()), ("reason", pa.string())]
)
"""Columns of quarantine: the message, the kind of fault, and the decoder's message."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Layout of a table's rows and files. Plain values: tasks receive it.

    ``columns`` are those of the message; ``into`` is the column for all decoded fields together, empty: each its own.
    """

    root: str
    columns: tuple[str, ...]
    decode: str = "binary"
    schema: pa.Schema | None = None
    avro: str = ""
    into: str = ""
    partition: str = ""
    file_bytes: int = 128 << 20
    compression: str = "zstd"

    def check(self) -> None:
        """Raise UsageError for values that do not fit."""
        if self.partition not in PARTITIONS:
            raise UsageError(f"partition={self.partition!r} is unknown; there are day, hour and none")
        if self.compression not in COMPRESSIONS:
            raise UsageError(f"compression={self.compression!r} is unknown; there are {', '.join(COMPRESSIONS)}")
        if not 1 << 16 <= self.file_bytes <= 1 << 32:
            raise UsageError("file_bytes must be between 64 KiB and 4 GiB")
        decoder = bodies.decoder(self.decode, self.schema, self.avro)
        if decoder is not None:
            # also columns of the message that the table does not keep: readers would mistake the body's fields for them
            taken = [*rows.COLUMNS, *([self.partition] if self.partition else [])]
            bodies.check_names(decoder.schema)
            bodies.check_free([self.into] if self.into else decoder.schema.names, taken)
        rows.schema_of(self.columns)

    def table_schema(self) -> pa.Schema:
        """Return the columns of the table's files. All may be null: lake formats and Spark agree best so."""
        decoder = bodies.decoder(self.decode, self.schema, self.avro)
        fields = list(rows.schema_of(self.columns))
        if decoder is not None and self.into:
            fields.append(pa.field(self.into, pa.struct([field.with_nullable(True) for field in decoder.schema])))
        elif decoder is not None:
            fields += [field.with_nullable(True) for field in decoder.schema]
        return pa.schema(fields)

    def needed(self) -> tuple[str, ...]:
        """Return the columns of the message that writing needs, in the source's order."""
        wanted = set(self.columns) | ({"storeTimestamp"} if self.partition else set())
        if self.decode != "binary":
            wanted |= set(QUARANTINE_SCHEMA.names)
        return tuple(name for name in rows.COLUMNS if name in wanted)


def write(layout: Layout, batches: Iterable[pa.RecordBatch], spans: Sequence[Range], gaps: Sequence[Range] = ()) -> TaskReport:
    """Write messages durably and return the report. ``batches`` have the columns `Layout.needed`; reading them may add to ``gaps``.

    After an error the files begun before are removed.
    """
    writing = _AttemptWriter(layout)
    try:
        for batch in batches:
            if batch.num_rows:
                writing.add(batch)
        return writing.report(spans, gaps)
    except BaseException:
        writing.discard()
        raise


def report(layout: Layout, options: SourceOptions, ranges: Sequence[Range]) -> str:
    """Write the files of some ranges and return the report, a `TaskReport` as JSON."""
    gaps: list[Range] = []
    task_report = write(layout, messages(options, layout.needed(), ranges, gaps), ranges, gaps)
    return text(task_report).decode()


def messages(
    options: SourceOptions, columns: tuple[str, ...], ranges: Iterable[Range], gaps: list[Range]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges; offsets that are gone raise DataLoss, or go into ``gaps`` with ``failOnDataLoss=false``."""
    reader, schema = record_reader(options), rows.schema_of(columns)
    for span in ranges:

        def gone(begin: int, end: int, span: Range = span) -> None:
            if options.fail_on_data_loss:
                raise DataLoss(span, begin, end, options.loss_option)
            gaps.append(replace(span, begin=begin, end=end))

        for raw in records_of(reader, options, span, gone):
            yield rows.batch_of(raw, broker=span.broker, begin=span.begin, end=span.end, columns=columns, schema=schema)


class _AttemptWriter:
    """Writer of one attempt of one task."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._attempt = secrets.token_hex(8)
        self._decoder = bodies.decoder(layout.decode, layout.schema, layout.avro)
        self._schema = layout.table_schema()
        self._rows = _Files(layout, self._schema, f"part-{self._attempt}", "")
        self._refused_rows = _Files(layout, QUARANTINE_SCHEMA, f"refused-{self._attempt}", QUARANTINE)
        self._refused: dict[str, int] = {}

    def add(self, batch: pa.RecordBatch) -> None:
        if self._decoder is not None:
            decoded = self._decoder.decode(batch.column("body"))
            if decoded.bad:
                self._quarantine(batch, decoded.bad)
                batch = batch.take(pa.array(decoded.good))
            table_rows = self._joined(batch, decoded.columns)
        else:
            table_rows = batch.select(list(self._layout.columns))
        if table_rows.num_rows:
            for value, chunk in self._parted(batch, table_rows):
                self._rows.write(value, chunk)

    def report(self, spans: Sequence[Range], gaps: Sequence[Range]) -> TaskReport:
        return TaskReport(
            attempt=self._attempt,
            spans=tuple(spans),
            files=self._rows.close(),
            quarantine=self._refused_rows.close(),
            gaps=tuple(gaps),
            refused=self._refused,
        )

    def discard(self) -> None:
        self._rows.discard()
        self._refused_rows.discard()

    def _joined(self, batch: pa.RecordBatch, decoded: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self._layout.columns]
        if self._layout.into:
            fields = list(self._schema.field(self._layout.into).type)
            columns.append(pa.StructArray.from_arrays(decoded.columns, fields=fields))
        else:
            columns += decoded.columns
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _quarantine(self, batch: pa.RecordBatch, bad: dict[int, tuple[str, str]]) -> None:
        rejected = batch.take(pa.array(list(bad)))
        kinds, reasons = zip(*bad.values(), strict=True)
        for kind in kinds:
            self._refused[kind] = self._refused.get(kind, 0) + 1
        columns = [rejected.column(name) for name in QUARANTINE_SCHEMA.names[:-2]]
        quarantined = pa.RecordBatch.from_arrays([*columns, pa.array(kinds), pa.array(reasons)], schema=QUARANTINE_SCHEMA)
        self._refused_rows.write("", quarantined)

    def _parted(self, batch: pa.RecordBatch, table_rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield rows by their value of the partition column, in order."""
        if not self._layout.partition:
            yield "", table_rows
            return
        unit = "D" if self._layout.partition == "day" else "h"
        stored = batch.column("storeTimestamp").cast(pa.int64()).to_numpy().view("M8[us]").astype(f"M8[{unit}]")
        for value in np.unique(stored):
            text = str(value).replace("T", "-")
            picked = stored == value
            yield text, table_rows if picked.all() else table_rows.filter(pa.array(picked))


class _Files:
    """Parquet files of one attempt below one folder of the table."""

    def __init__(self, layout: Layout, schema: pa.Schema, stem: str, folder: str) -> None:
        self._layout, self._schema, self._stem, self._folder = layout, schema, stem, folder
        self._open: dict[str, _File] = {}
        self._done: list[DataFile] = []
        self._made: list[Path] = []

    def write(self, value: str, batch: pa.RecordBatch) -> None:
        file = self._open.get(value)
        if file is None:
            if len(self._open) >= WRITERS_MAX:
                self._finish(next(iter(self._open)))
            file = self._open[value] = self._begin(value)
        file.writer.write_batch(batch, row_group_size=ROW_GROUP_ROWS)
        file.rows += batch.num_rows
        if file.sink.tell() >= self._layout.file_bytes:
            self._finish(value)

    def close(self) -> tuple[DataFile, ...]:
        for value in list(self._open):
            self._finish(value)
        for folder in {path.parent for path in self._made}:
            sync_folder(folder)
        return tuple(self._done)

    def discard(self) -> None:
        for file in self._open.values():
            file.abandon()
        for path in self._made:
            path.unlink(missing_ok=True)

    def _begin(self, value: str) -> _File:
        parts = [self._folder] if self._folder else []
        if value:
            parts.append(f"{self._layout.partition}={value}")
        name = "/".join([*parts, f"{self._stem}-{len(self._made)}.parquet"])
        path = Path(self._layout.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._made.append(path)
        return _File(path, name, self._schema, self._layout.compression)

    def _finish(self, value: str) -> None:
        file = self._open.pop(value)
        partition = {self._layout.partition: value} if value else {}
        self._done.append(DataFile(path=file.name, rows=file.rows, size_bytes=file.close(), partition=partition))


class _File:
    """Open Parquet file."""

    def __init__(self, path: Path, name: str, schema: pa.Schema, compression: str) -> None:
        self.path, self.name, self.rows = path, name, 0
        self.sink = path.open("xb")
        self.writer = pq.ParquetWriter(self.sink, schema, compression=compression, use_dictionary=repeating(schema))

    def abandon(self) -> None:
        """Close the file, whatever state it is in."""
        for stream in (self.writer, self.sink):
            try:
                stream.close()
            except (OSError, pa.ArrowException):
                pass  # the file is removed anyway

    def close(self) -> int:
        """Finish the file, durably, and return its size in bytes."""
        self.writer.close()
        self.sink.flush()
        os.fsync(self.sink.fileno())
        size = self.sink.tell()
        self.sink.close()
        return size


def repeating(schema: pa.Schema) -> list[str]:
    """Return the columns whose values repeat; a dictionary for the others costs time and gains nothing."""
    often = {"topic", "brokerName", "queueId", "tags", "bornHost", "sysFlag", "flag", "reconsumeTimes", "fault"}
    return [field.name for field in schema if field.name in often or (field.name not in rows.COLUMNS and _flat(field.type))]


def _flat(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind)


def layout_for(root: str | Path, *, columns: Sequence[str] = (), **values: Any) -> Layout:
    """Return the layout of a table in a directory. Values are those of `Layout`.

    ``columns`` empty: all of the message but ``properties``, and where bodies are decoded but ``body``.
    """
    without = {"properties"} if values.get("decode", "binary") == "binary" else {"properties", "body"}
    chosen = tuple(columns) or tuple(name for name in rows.COLUMNS if name not in without)
    layout = Layout(root=str(Path(root).absolute()), columns=chosen, **values)
    layout.check()
    return layout
