"""Schemas of bodies: given as Spark's DDL, as Arrow's, or read from a sample of JSON bodies."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from halfmoon.errors import UsageError

SAMPLE_BYTES_MAX = 64 << 20


def from_ddl(text: str) -> pa.Schema:
    """Return the schema of a text such as ``id bigint not null, total decimal(10,2)``. A Spark session must be there.

    Raises UsageError for a text that Spark does not read, and for types that have no Arrow type.
    """
    try:
        found = StructType.fromDDL(text)
        if not isinstance(found, StructType) or not found.fields:
            raise UsageError(f"the schema {text[:200]!r} must name fields")
        return from_spark(found)
    except UsageError:
        raise
    except Exception as exc:  # Spark raises its parser's error, or a plain one without a session
        raise UsageError(f"the schema {text[:200]!r} cannot be read: {str(exc).strip().splitlines()[0]}") from None


def from_spark(schema: StructType) -> pa.Schema:
    """Return a Spark schema as Arrow's: times in UTC, whether a field may be null kept."""
    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC"), f.nullable) for f in schema.fields])


def from_sample(bodies: Sequence[bytes]) -> pa.Schema:
    """Return the schema that Arrow finds in JSON bodies: whole numbers as bigint, others as double, ISO times as timestamp.

    A field that is null everywhere is left out, for nothing is known of it. Raises UsageError for bodies that are no JSON objects
    or do not agree.
    """
    text = b"\n".join(bodies) + b"\n"
    if not bodies or len(text) > SAMPLE_BYTES_MAX:
        raise UsageError(f"a sample has at least one body, and no more than {SAMPLE_BYTES_MAX >> 20} MiB")
    options = pj.ReadOptions(use_threads=False, block_size=max(len(text), 1 << 16))
    try:
        found = pj.read_json(pa.BufferReader(text), read_options=options).schema
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise UsageError(f"the sample is no JSON of one shape: {exc}") from None
    return pa.schema([pa.field(f.name, _plain(f.type)) for f in found if not pa.types.is_null(f.type)])


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type as Spark and lake formats hold it: times in microseconds of UTC, nothing of type null."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain(f.type)) for f in kind if not pa.types.is_null(f.type)])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind
