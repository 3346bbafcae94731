"""A topic as a pyarrow Dataset, which DuckDB, Polars and others scan with their columns and filters. Read when scanned."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads

from halfmoon import sql92
from halfmoon.client.ranges import Ranges
from halfmoon.data.dataset.decoding import BodyColumns, Undecoded, body_columns
from halfmoon.data.dataset.filters import Limits, fields_in, limits_of
from halfmoon.data.dataset.following import ranges_as_they_come
from halfmoon.data.dataset.narrowing import narrowed, tags_for_broker
from halfmoon.data.dataset.prefetch import ahead
from halfmoon.data.dataset.stores import readers_of
from halfmoon.data.files import StoreFiles
from halfmoon.data.options import TopicOptions
from halfmoon.data.partitions import Range
from halfmoon.data.plans import chunks_of, planned_ranges
from halfmoon.data.reading import Scan, rows
from halfmoon.data.rows import COLUMNS, SCHEMA, schema_of
from halfmoon.errors import UsageError

CHUNK_BYTES = 8 << 20
"""About the bytes of messages that one thread reads before the next part of a topic is its turn."""

PLACE = ("queueId", "queueOffset")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Arguments of a scan, but those that bound it: filters, columns (empty: all), how bodies are decoded, where it is read."""

    tags: frozenset[str] = frozenset()
    sql: str = ""
    columns: tuple[str, ...] = ()
    decode: str = "binary"
    schema: pa.Schema | str | None = field(default=None, compare=False)
    into: str = ""
    follow: bool = False
    read_from: str = "auto"
    threads: int = 0


class TopicDataset(pads.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """Topic as a dataset of Arrow. `halfmoon.data.scan` makes one.

    It has what scanners of other libraries use: `schema`, `scanner`, `to_batches`, `to_table`, `head`, `count_rows`,
    ``__arrow_c_stream__``. Each scan reads the messages that are there when it begins. It may be scanned many times, by several
    threads. Where the schema comes from JSON bodies, the first use of it reads a few messages.
    """

    def __init__(self, client: Callable[[], Ranges], options: TopicOptions, wishes: Wishes) -> None:
        self._client, self._options, self._wishes = client, options, wishes
        if wishes.sql:
            sql92.compile(wishes.sql)  # a wrong expression is refused here, and not first in a scan
        if wishes.decode != "json" or wishes.schema is not None:
            _ = self._bodies  # and so is a schema that does not fit

    def __repr__(self) -> str:
        return f"<topic {self._options.topic[0]}>"

    @cached_property
    def _bodies(self) -> BodyColumns | None:
        """The columns of bodies; None: bodies stay bytes, or are none yet."""
        wishes = self._wishes
        infer = wishes.decode == "json" and wishes.schema is None
        return body_columns(wishes.decode, wishes.schema, wishes.into, self._first_bodies() if infer else None)

    @property
    def schema(self) -> pa.Schema:
        """The columns: those of a message, and those of decoded bodies in place of ``body``."""
        bodies = self._bodies
        fields = {field.name: field for field in SCHEMA}
        decoded = bodies.fields if bodies is not None else []
        if self._wishes.decode != "binary":
            del fields["body"]
        fields |= {field.name: field for field in decoded}
        if not self._wishes.columns:
            return pa.schema(list(fields.values()))
        known = {"body": SCHEMA.field("body"), **fields}
        for name in self._wishes.columns:
            if name not in known:
                raise UsageError(f"there is no column {name!r}; there are {', '.join(known)}")
        return pa.schema([known[name] for name in self._wishes.columns])

    def scanner(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pads.Scanner:
        """Return a scanner of the rows that a filter takes, in order within each queue; it is for one use.

        ``columns`` are names, or expressions by name; None: all. Only columns that these or the filter use are decoded. Options
        are those of `pyarrow.dataset.Scanner.from_batches`.
        """
        self._check_bounded()
        names = self._needed(columns, filter)
        schema = pa.schema([self.schema.field(name) for name in names])
        reader = pa.RecordBatchReader.from_batches(schema, self._batches(schema, limits_of(filter)))
        options.setdefault("batch_readahead", 1)
        return pads.Scanner.from_batches(reader, columns=columns, filter=filter, **options)

    def _check_bounded(self) -> None:
        if self._wishes.follow:
            raise UsageError("a scan with follow=True never ends: take its batches from to_batches(), without columns or a filter")

    def _known(self, columns: Iterable[Any]) -> list[str]:
        """Return columns as texts. Raises UsageError for an unknown one."""
        names, known = [str(name) for name in columns], set(self.schema.names)
        if missing := [name for name in names if name not in known]:
            raise UsageError(f"there is no column {missing[0]!r}; there are {', '.join(self.schema.names)}")
        return names

    def _needed(self, columns: Any, filter: pc.Expression | None) -> list[str]:
        """Return the columns to read, at least one."""
        names: list[str] = self.schema.names
        if columns is None:
            return names
        used = set(fields_in(filter, names))
        if isinstance(columns, dict):
            for expression in columns.values():
                used |= set(fields_in(expression, names))
        else:
            used |= set(self._known(columns))
        return [name for name in names if name in used] or ["queueOffset" if "queueOffset" in names else names[0]]

    def to_batches(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches. With ``follow`` they never end: further messages follow as they come, all columns of them."""
        if not self._wishes.follow:
            return iter(self._reader(columns, filter, options))
        if columns is not None or filter is not None:
            raise UsageError("a scan with follow=True takes columns and filters as arguments of scan()")
        return self._following()

    def _reader(self, columns: Any, filter: pc.Expression | None, options: Any) -> pa.RecordBatchReader:
        """Return the rows as a stream; one that needs nothing of Arrow's scanner is read without it, which costs a third."""
        if filter is not None or isinstance(columns, dict) or len(set(columns or ())) < len(columns or ()) or columns == []:
            return self.scanner(columns, filter, **options).to_reader()
        self._check_bounded()
        schema = self.schema if columns is None else pa.schema([self.schema.field(name) for name in self._known(columns)])
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema, Limits()))

    def to_table(self, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return the rows as a table, all in memory."""
        return self._reader(columns, filter, options).read_all()

    def head(self, num_rows: int, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return the first rows as a table; reading ends soon after them."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Return the number of rows, which are read for it."""
        return int(self.scanner([], filter, **options).count_rows())

    def take(self, indices: Any, columns: Any = None, filter: pc.Expression | None = None, **options: Any) -> pa.Table:
        """Return the rows at some indices as a table; all rows before them are read."""
        return self.scanner(columns, filter, **options).take(indices)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._reader(None, None, {}).__arrow_c_stream__(requested_schema)

    # ------------------------------------------------------------ what a topic cannot do

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Raise UsageError: what this class inherits works on files, which a topic has not."""
        raise UsageError("a topic can only be scanned: take to_table(), or scan it with DuckDB or Polars, for the rest")

    get_fragments = replace_schema = join = join_asof = sort_by = filter = __reduce__ = _refuse
    partition_expression = property(_refuse)

    # ------------------------------------------------------------ reading

    def _batches(self, schema: pa.Schema, limits: Limits) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a schema that lie within limits, and some others."""
        if limits.nothing:
            return
        client = self._client()
        ranges = narrowed(planned_ranges(self._options, client), limits, client)
        yield from self._rows(client, ranges, schema, limits, {})

    def _rows(
        self, client: Ranges, ranges: list[Range], schema: pa.Schema, limits: Limits, readers: dict[str, Ranges | StoreFiles]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of ranges. ``readers`` has those of brokers for which they were chosen before, and gets the others."""
        readers |= readers_of(client, [span for span in ranges if span.broker not in readers], self._wishes.read_from)
        undecoded = Undecoded(self._options.topic[0], self._wishes.decode)
        scan = self._scan(schema, limits)
        tasks = (self._task(readers[part.broker], part, scan, schema, undecoded) for part in chunks_of(ranges, client, CHUNK_BYTES))
        try:
            yield from ahead(tasks, self._wishes.threads or min(8, max(2, os.cpu_count() or 2)))
        finally:
            undecoded.report()

    def _following(self) -> Iterator[pa.RecordBatch]:
        client, schema = self._client(), self.schema
        readers: dict[str, Ranges | StoreFiles] = {}
        for ranges in ranges_as_they_come(self._options, client):
            yield from self._rows(client, ranges, schema, Limits(), readers)

    def _scan(self, schema: pa.Schema, limits: Limits) -> Scan:
        """Return the columns of messages to decode, and what brokers may leave out."""
        names = [name for name in schema.names if name in COLUMNS]
        if len(names) < len(schema.names):
            names += [name for name in (*PLACE, "body") if name not in names]
        asked = self._wishes.tags
        pushed = tags_for_broker(limits)
        tags = asked if pushed is None else asked & pushed if asked else pushed
        if asked and not tags:
            tags = asked  # nothing can pass: the filter says so
        return Scan(schema_of(names), {"tags": tags} if tags else {}, self._wishes.sql)

    def _task(
        self, reader: Ranges | StoreFiles, part: Range, scan: Scan, schema: pa.Schema, undecoded: Undecoded
    ) -> Callable[[], Iterator[pa.RecordBatch]]:
        def read() -> Iterator[pa.RecordBatch]:
            for batch in rows(reader, self._options, scan, part):
                yield self._decoded(part.broker, batch, schema, undecoded)

        return read

    def _decoded(self, broker: str, batch: pa.RecordBatch, schema: pa.Schema, undecoded: Undecoded) -> pa.RecordBatch:
        """Return a batch with the columns of a schema, some of which its bodies give."""
        if batch.schema.names == schema.names:
            return batch
        bodies = self._bodies
        assert bodies is not None
        arrays = dict(zip(batch.schema.names, batch.columns))
        arrays |= zip([field.name for field in bodies.fields], bodies.arrays(broker, batch, undecoded), strict=True)
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def _first_bodies(self) -> pa.BinaryArray | None:
        """Return the bodies of the first messages that there are."""
        client = self._client()
        schema = schema_of(["body"])
        for span in planned_ranges(self._options, client):
            if span.count:
                for batch in rows(client, self._options, self._scan(schema, Limits()), span):
                    return batch.column("body")
        return None


def columns_of(columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the columns that a user named, each once; none: all. Raises UsageError for a text in place of a list."""
    if isinstance(columns, str):
        raise UsageError(f"columns={columns!r}: give a list of names")
    names = tuple(columns or ())
    if len(set(names)) < len(names):
        raise UsageError("columns names something twice")
    return names
