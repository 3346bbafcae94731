"""Decoders of bodies into columns: JSON, Avro, text, or none. Bodies that do not decode are separated, with the reason.

Arrow reads many JSON bodies at a time. One bad body fails the whole run, so a failed run is halved until the bad ones are alone: a
bad body costs about two further passes over its run.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

try:
    import fastavro
except ImportError:  # comes with the extra `lake`
    fastavro = None  # type: ignore[assignment]

from halfmoon.errors import UsageError

REASON_CHARS_MAX = 300
RUN_BYTES_MAX = 256 << 10
"""Bytes of bodies that are joined for Arrow; a single body may be longer. Short runs keep the cost of a bad body small."""

AVRO_OBJECT = b"\xc3\x01"
"""Marks a single Avro object with its schema's fingerprint before it. Follows Avro 1.11, single-object encoding."""


class Decoded(NamedTuple):
    """Columns of the bodies that decoded, their indexes in order, and for each other index a kind of fault and its text."""

    columns: pa.RecordBatch
    good: NDArray[np.int64]
    bad: dict[int, tuple[str, str]]


class BodyDecoder(Protocol):
    """Decoder of bodies."""

    schema: pa.Schema

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the decoded bodies. Never raises because of a body."""
        ...


def decoder(kind: str, schema: pa.Schema | None, avro: str = "") -> BodyDecoder | None:
    """Return the decoder of a kind: ``json`` (of a schema), ``avro`` (of a schema's JSON), ``text``; ``binary`` needs none.

    Raises:
        UsageError: the kind is unknown, a schema is missing or has a type that the kind cannot give.
    """
    if kind == "binary":
        return None
    if kind == "text":
        return Text()
    if kind == "json":
        if schema is None or not len(schema):
            raise UsageError("decode=json needs a schema: fields with types")
        return Json(schema)
    if kind == "avro":
        return Avro(avro)
    raise UsageError(f"decode={kind[:50]!r} is unknown; there are binary, text, json and avro")


class Text:
    """Bodies as UTF-8 text, in a column ``text``."""

    schema = pa.schema([("text", pa.string())])

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the bodies as texts; those that are not UTF-8 are bad."""
        return _by_runs(bodies, self.schema, self._run)

    def _run(self, bodies: pa.BinaryArray) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_arrays([bodies.cast(pa.string())], schema=self.schema)
        except pa.ArrowInvalid:
            raise _Undecodable("not UTF-8", "the body is not UTF-8") from None


class Json:
    """Bodies that are JSON objects with the fields of a schema.

    A missing field is null; it is an error where the schema forbids null. Other fields are ignored. ``NaN`` and ``Infinity`` are
    numbers, unlike in strict JSON.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        for field in schema:
            _check_type(field.name, field.type)
        self._read = pa.schema([pa.field(f.name, pa.string() if pa.types.is_date(f.type) else f.type) for f in schema])
        self._needed = [field.name for field in schema if not field.nullable]

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the fields of the bodies."""
        return _by_runs(bodies, self.schema, self._run)

    def _run(self, bodies: pa.BinaryArray) -> pa.RecordBatch:
        """Read the bodies as one text.

        Each goes from { to }, so two neighbours meet as ``}`` and ``{``, which no JSON value can hold with only a line break
        between: every body is whole values, and as many values as bodies are one a body.
        """
        text = pc.binary_join_element_wise(_objects(bodies), "", "\n")
        table = self._lines(text)
        if table.num_rows != len(bodies):
            raise _Undecodable("not JSON", "the body holds more than one JSON value")
        columns = [self._column(table, field) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _lines(self, text: pa.StringArray) -> pa.Table:
        data = text.buffers()[2]
        try:
            return pj.read_json(
                pa.BufferReader(data),
                read_options=pj.ReadOptions(use_threads=False, block_size=max(data.size, 1 << 16)),
                parse_options=pj.ParseOptions(explicit_schema=self._read, unexpected_field_behavior="ignore"),
            )
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
            raise _json_fault(str(exc)) from None

    def _column(self, table: pa.Table, field: pa.Field) -> pa.Array:
        column = table.column(field.name)
        if field.name in self._needed and column.null_count:
            raise _Undecodable("missing field", f"field {field.name} is missing or null")
        if pa.types.is_date(field.type):
            try:
                column = column.cast(field.type)
            except pa.ArrowInvalid:
                raise _Undecodable("wrong type", f"field {field.name} is not a date (example: 2026-01-31)") from None
        return pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)


class Avro:
    """Bodies that are one Avro record each, written with one schema, with or without the header of a single object."""

    def __init__(self, text: str) -> None:
        if fastavro is None:
            raise UsageError("decode=avro needs fastavro: pip install 'halfmoon[lake]'")
        try:
            parsed: Any = fastavro.parse_schema(json.loads(text))
            fields = parsed["fields"]
            self._parsed = parsed
            self._mark = AVRO_OBJECT + bytes.fromhex(
                fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
            )
        except (
            ValueError,
            TypeError,
            KeyError,
            RecursionError,
            fastavro.schema.SchemaParseException,
            fastavro.schema.UnknownType,
        ) as exc:
            raise UsageError(f"the Avro schema cannot be read: {exc}") from None
        self._uuids = '"uuid"' in text
        known: dict[str, pa.DataType | None] = {parsed["name"]: None}
        self.schema = pa.schema([_avro_field(field, known) for field in fields])

    def decode(self, bodies: pa.BinaryArray) -> Decoded:
        """Return the fields of the bodies, read one after the other."""
        rows: dict[int, Any] = {}
        bad: dict[int, tuple[str, str]] = {}
        for i, body in enumerate(bodies.to_pylist()):
            try:
                rows[i] = self._record(body or b"")
            except _Undecodable as exc:
                bad[i] = (exc.kind, exc.text)
        decoded, batches = list(rows), []
        waiting = [decoded] if decoded else []
        while waiting:  # a value may fit Avro's type and not its column: halve the rows until the one with it is alone
            run = waiting.pop()
            try:
                batches.append(self._columns([rows[i] for i in run]))
            except _Undecodable as exc:
                if len(run) == 1:
                    bad[run[0]] = (exc.kind, exc.text)
                else:
                    waiting += [run[len(run) // 2 :], run[: len(run) // 2]]
        good = np.array([i for i in decoded if i not in bad], np.int64)
        return Decoded(_combined(batches, self.schema), good, dict(sorted(bad.items())))

    def _columns(self, rows: list[Any]) -> pa.RecordBatch:
        try:
            values = [[row[field.name] for row in rows] for field in self.schema]
            if self._uuids:
                values = [[_without_uuids(value) for value in column] for column in values]
            columns = [pa.array(column, field.type) for column, field in zip(values, self.schema, strict=True)]
            return pa.RecordBatch.from_arrays(columns, schema=self.schema)
        except (pa.ArrowException, OverflowError, ValueError, TypeError) as exc:
            raise _Undecodable("wrong type", f"a value does not fit its column: {exc}") from None

    def _record(self, body: bytes) -> Any:
        at = io.BytesIO(body)
        if body.startswith(AVRO_OBJECT):
            if not body.startswith(self._mark):
                raise _Undecodable("another schema", "the body was written with another Avro schema")
            at.seek(len(self._mark))
        try:
            row = fastavro.schemaless_reader(at, self._parsed, None)
        except Exception as exc:  # the reader may raise anything for foreign bytes: the body is at fault, and is kept
            raise _Undecodable("not Avro", f"{type(exc).__name__}: {exc}") from None
        if at.tell() != len(body):
            raise _Undecodable("not Avro", f"{len(body) - at.tell()} bytes follow the record")
        return row


# ---------------------------------------------------------------- runs of bodies


class _Undecodable(Exception):
    """Error: a run of bodies does not decode. For a run of one body it is the reason."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text[:REASON_CHARS_MAX]


def _by_runs(bodies: pa.BinaryArray, schema: pa.Schema, run: Callable[[pa.BinaryArray], pa.RecordBatch]) -> Decoded:
    """Decode runs of bodies, halving those that fail, in order."""
    batches: list[pa.RecordBatch] = []
    good: list[NDArray[np.int64]] = []
    bad: dict[int, tuple[str, str]] = {}
    waiting = _runs(bodies)[::-1]
    while waiting:
        begin, end = waiting.pop()
        try:
            batches.append(run(bodies.slice(begin, end - begin)))
            good.append(np.arange(begin, end))
        except _Undecodable as exc:
            if end - begin == 1:
                bad[begin] = (exc.kind, exc.text)
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
    return Decoded(_combined(batches, schema), np.concatenate(good) if good else np.empty(0, np.int64), bad)


def _combined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    chunks = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    return chunks[0] if chunks else pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def _runs(bodies: pa.BinaryArray) -> list[tuple[int, int]]:
    """Return index ranges whose bodies together stay under `RUN_BYTES_MAX`, or are a single one."""
    if not len(bodies):
        return []
    lengths = pc.fill_null(pc.binary_length(bodies), 0).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    stretch = (np.cumsum(lengths) - lengths) // RUN_BYTES_MAX
    cuts = [0, *(np.flatnonzero(np.diff(stretch)) + 1).tolist(), len(bodies)]
    return list(pairwise(cuts))


def _objects(bodies: pa.BinaryArray) -> pa.StringArray:
    """Return bodies as texts that begin with { and end with }, without blanks around them."""
    if bodies.null_count:
        raise _Undecodable("empty", "there is no body")
    try:
        texts = bodies.cast(pa.string())
    except pa.ArrowInvalid:
        raise _Undecodable("not UTF-8", "the body is not UTF-8") from None
    if not _from_brace_to_brace(texts):
        texts = pc.utf8_trim(texts, " \t\r\n")
        if not _from_brace_to_brace(texts):
            raise _Undecodable("not JSON", "the body is not a JSON object")
    return texts


def _from_brace_to_brace(texts: pa.StringArray) -> bool:
    return bool(pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py())


def _json_fault(text: str) -> _Undecodable:
    """Return Arrow's error about one body, with one of a few kinds."""
    fault = text.removeprefix("JSON parse error: ").removesuffix(" in row 0")
    if "changed from" in fault or "convert JSON" in fault:
        return _Undecodable("wrong type", fault)
    return _Undecodable("field twice" if "twice" in fault else "not JSON", fault)


# ---------------------------------------------------------------- types


def _check_type(name: str, kind: pa.DataType, *, inside: bool = False) -> None:
    """Refuse types that Arrow's JSON reader does not give."""
    types = pa.types
    if types.is_struct(kind):
        for field in kind:
            _check_type(f"{name}.{field.name}", field.type, inside=True)
    elif types.is_list(kind):
        _check_type(f"{name}[]", kind.value_type, inside=True)
    elif types.is_date(kind) and inside:
        raise UsageError(f"field {name}: a date inside another field cannot be read from JSON; read it as a string")
    elif not (
        types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_string(kind)
        or types.is_timestamp(kind) or types.is_decimal128(kind) or types.is_date(kind)
    ):  # fmt: skip
        raise UsageError(f"field {name}: {kind} cannot be read from JSON; read it as a string")


_AVRO = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "int-date": pa.date32(),
    "long-timestamp-millis": pa.timestamp("us", tz="UTC"),
    "long-timestamp-micros": pa.timestamp("us", tz="UTC"),
    "string-uuid": pa.string(),
}


def _without_uuids(value: Any) -> Any:
    """Return a value with UUIDs as text: Arrow takes all other values of Avro's reader."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _without_uuids(member) for name, member in value.items()}
    return [_without_uuids(member) for member in value] if isinstance(value, list) else value


def _avro_field(field: Any, known: dict[str, pa.DataType | None]) -> pa.Field:
    kind, nullable = _without_null(field["type"])
    return pa.field(field["name"], _avro_type(field["name"], kind, known), nullable)


def _without_null(kind: Any) -> tuple[Any, bool]:
    if not isinstance(kind, list):
        return kind, False
    others = [branch for branch in kind if branch != "null"]
    return (others[0] if len(others) == 1 else kind), "null" in kind


def _avro_type(name: str, kind: Any, known: dict[str, pa.DataType | None]) -> pa.DataType:
    """Return the column type of an Avro type. ``known``: the types named so far, None while one is not complete."""
    if isinstance(kind, str):
        column_type = _AVRO.get(kind) or known.get(kind)
    elif isinstance(kind, dict):
        if "name" in kind:
            known[kind["name"]] = None
        column_type = _avro_complex(name, kind, known)
        if "name" in kind:
            known[kind["name"]] = column_type
    else:
        column_type = None
    if column_type is None:
        raise UsageError(f"Avro field {name}: type {str(kind)[:100]} has no column type here")
    return column_type


def _avro_complex(name: str, kind: dict[str, Any], known: dict[str, pa.DataType | None]) -> pa.DataType | None:
    base = str(kind.get("type"))
    if base == "record" and kind["fields"]:
        return pa.struct([_avro_field(field, known) for field in kind["fields"]])
    if base == "array":
        return pa.list_(_avro_type(f"{name}[]", _without_null(kind["items"])[0], known))
    if base == "map":
        return pa.map_(pa.string(), _avro_type(f"{name}{{}}", _without_null(kind["values"])[0], known))
    if base == "enum":
        return pa.string()
    if base in ("bytes", "fixed") and kind.get("logicalType") == "decimal":
        return _avro_decimal(name, kind)
    logical = f"{base}-{kind.get('logicalType', '')}"
    if logical in _AVRO or logical in fastavro.read.LOGICAL_READERS:
        return _AVRO.get(logical)  # None: the reader would give values that no column here takes
    if base == "fixed":
        return pa.binary() if kind["size"] else None  # an array of values without bytes could be of any length that a body claims
    return _AVRO.get(base)  # the reader passes over logical types that it does not know


def _avro_decimal(name: str, kind: dict[str, Any]) -> pa.DataType:
    precision, scale = kind.get("precision"), kind.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= 38 and precision):
        raise UsageError(f"Avro field {name}: decimals have a precision of 1 to 38 and a scale up to it")
    return pa.decimal128(precision, scale)


# ---------------------------------------------------------------- names


def check_free(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise UsageError for a name that a column has, whatever its case: to Spark and Delta, ID and id are the same."""
    columns = {name.casefold(): name for name in taken}
    for name in names:
        if name.casefold() in columns:
            raise UsageError(
                f"{name} of the body has the name of the column {columns[name.casefold()]}: give "
                "into=COLUMN to keep the body's fields in one column"
            )


def check_names(schema: Iterable[pa.Field], place: str = "the schema") -> None:
    """Raise UsageError when fields of a schema, or of a field inside it, have the same name but for capital letters."""
    known: dict[str, str] = {}
    for field in schema:
        other = known.get(field.name.casefold())
        if other is not None:
            raise UsageError(f"{place} names a field twice: {other} and {field.name} are the same to Spark and Delta")
        known[field.name.casefold()] = field.name
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            check_names(kind, f"field {field.name}")
