"""Bodies as columns of a dataset: their schema, given or from the first messages, and null rows for those that do not parse."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from halfmoon.data.bodies import BodyDecoder, check_free, decoder
from halfmoon.data.rows import COLUMNS
from halfmoon.errors import UsageError

log = logging.getLogger("halfmoon.data")

INFERRED_MAX = 1_000
"""Bodies from which a schema is inferred."""


class Undecoded:
    """Count of bodies that do not parse in one scan, and the first of them. Safe to use from many threads."""

    def __init__(self, topic: str, kind: str) -> None:
        self._topic, self._kind = topic, kind
        self._lock = threading.Lock()
        self.count = 0
        self.first = ""

    def add(self, broker: str, batch: pa.RecordBatch, bad: dict[int, tuple[str, str]]) -> None:
        """Count the bodies at some rows of a batch, which has queue ids and offsets."""
        with self._lock:
            if not self.count:
                row, (kind, text) = next(iter(bad.items()))
                queue, offset = (batch.column(name)[row].as_py() for name in ("queueId", "queueOffset"))
                self.first = f"broker {broker} queue {queue} offset {offset}: {kind}: {text}"
            self.count += len(bad)

    def report(self) -> None:
        """Log one warning if there were any."""
        if self.count:
            log.warning("bodies do not parse, their rows are null: topic=%s decode=%s count=%d first=%s",
                        self._topic, self._kind, self.count, self.first)  # fmt: skip


class BodyColumns(NamedTuple):
    """Columns that bodies give. ``into`` is the one column that holds all fields; empty: each field is a column."""

    decoder: BodyDecoder
    into: str

    @property
    def fields(self) -> list[pa.Field]:
        """The columns. All may be null: the fields of a body that does not parse are."""
        fields = [pa.field(field.name, field.type) for field in self.decoder.schema]
        return [pa.field(self.into, pa.struct(fields))] if self.into else fields

    def arrays(self, broker: str, batch: pa.RecordBatch, undecoded: Undecoded) -> list[pa.Array]:
        """Return the columns for the bodies of a batch, which also has queue ids and offsets; each has one row a body."""
        columns, good, bad = self.decoder.decode(batch.column("body"))
        arrays: list[pa.Array] = columns.columns
        if bad:
            undecoded.add(broker, batch, bad)
            at = np.zeros(batch.num_rows, np.int64)
            missing = np.ones(batch.num_rows, np.bool_)
            at[good], missing[good] = np.arange(len(good)), False
            arrays = [array.take(pa.array(at, mask=missing)) for array in arrays]
        if not self.into:
            return arrays
        mask = pa.array(missing) if bad else None
        return [pa.StructArray.from_arrays(arrays, fields=list(self.fields[0].type), mask=mask)]


def body_columns(kind: str, schema: pa.Schema | str | None, into: str, first: pa.BinaryArray | None) -> BodyColumns | None:
    """Return the columns of bodies; None: bodies stay bytes. ``first`` are some bodies, from which a schema of JSON is inferred.

    ``kind`` is ``binary``, ``text``, ``json`` (``schema`` is Arrow's) or ``avro`` (``schema`` is its JSON). Without a schema and
    without bodies, JSON has no columns.

    Raises:
        UsageError: the kind is unknown, the schema is missing or unfit, or a field has the name of another column.
    """
    if kind == "json" and schema is None:
        schema = inferred(first)
        if not len(schema):
            return None
    found = decoder(kind, None if isinstance(schema, str) else schema, schema if isinstance(schema, str) else "")
    if found is not None:
        check_free([into] if into else found.schema.names, COLUMNS)
    return None if found is None else BodyColumns(found, into)


def inferred(bodies: pa.BinaryArray | None) -> pa.Schema:
    """Return the fields of the JSON objects among some bodies, in the order in which they appear.

    A field that is always null is text. Texts that look like times stay texts: the next one may not look like one.

    Raises:
        UsageError: a field has values of types that do not go together.
    """
    texts = [text for body in (bodies.to_pylist() if bodies is not None else ())[:INFERRED_MAX] if (text := _object(body))]
    if not texts:
        return pa.schema([])
    data = b"\n".join(texts)
    try:
        options = pj.ReadOptions(use_threads=False, block_size=max(len(data), 1 << 16))
        found = pj.read_json(pa.BufferReader(data), read_options=options).schema
    except pa.ArrowInvalid as exc:
        raise UsageError(f"no schema fits all of the first bodies: {exc}. Give schema=, with the fields that are wanted") from None
    return pa.schema([pa.field(field.name, _kept(field.type)) for field in found])


def _object(body: bytes | None) -> bytes | None:
    """Return a body that is a JSON object, in one line; None: it is not one."""
    try:
        value: Any = json.loads(body or b"")
        return json.dumps(value).encode() if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _kept(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_kept(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _kept(field.type)) for field in kind])
    return kind
