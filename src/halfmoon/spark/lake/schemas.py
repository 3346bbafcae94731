"""Schemas of bodies, given as Spark's DDL."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from halfmoon.errors import UsageError


def from_ddl(text: str) -> pa.Schema:
    """Return the schema of a text such as ``id bigint not null, total decimal(10,2)``. A Spark session must be there.

    Raises UsageError for a text that Spark does not read, and for types that have no Arrow type.
    """
    try:
        parsed = StructType.fromDDL(text)
        if not isinstance(parsed, StructType) or not parsed.fields:
            raise UsageError(f"the schema {text[:200]!r} must name fields")
        return from_spark(parsed)
    except UsageError:
        raise
    except Exception as exc:  # Spark raises its parser's error, or a plain one without a session
        raise UsageError(f"the schema {text[:200]!r} cannot be read: {str(exc).strip().splitlines()[0]}") from None


def from_spark(schema: StructType) -> pa.Schema:
    """Return a Spark schema as Arrow's: times in UTC, whether a field may be null kept."""
    return pa.schema([pa.field(f.name, to_arrow_type(f.dataType, timezone="UTC"), f.nullable) for f in schema.fields])
