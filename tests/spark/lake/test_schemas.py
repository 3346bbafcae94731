"""Schemas of bodies from a sample of JSON, and from Spark's DDL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from halfmoon.errors import UsageError
from halfmoon.spark.lake import bodies, schemas

TIME = pa.timestamp("us", tz="UTC")


def test_a_sample_gives_the_types_of_its_fields_and_they_decode_it():
    sample = [
        b'{"id": 1, "total": 2.5, "at": "2026-01-31T08:00:00Z", "paid": true, "no": null, "items": [{"n": 1, "at": "2026-01-31"}]}',
        b'{"id": 2, "name": "x", "items": [], "no": null}',
    ]

    schema = schemas.from_sample(sample)

    assert {field.name: field.type for field in schema} == {
        "id": pa.int64(), "total": pa.float64(), "at": TIME, "paid": pa.bool_(), "name": pa.string(),
        "items": pa.list_(pa.struct([("n", pa.int64()), ("at", TIME)])),
    }  # fmt: skip
    found = bodies.Json(schema).decode(pa.array(sample))
    assert (found.bad, found.columns.column("id").to_pylist()) == ({}, [1, 2])


@pytest.mark.parametrize("sample", [[], [b"no"], [b'{"id": 1}', b'{"id": "x"}'], [b"[1]"]], ids=str)
def test_a_sample_that_is_no_json_of_one_shape_is_refused(sample: list[bytes]):
    with pytest.raises(UsageError, match="sample"):
        schemas.from_sample(sample)


@pytest.mark.slow
def test_a_schema_as_text_gives_types_and_which_fields_must_be_there(spark: Any):
    found = schemas.from_ddl("id bigint not null, total decimal(10,2), at timestamp, items array<struct<n:int>>")

    assert found.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert [field.type for field in found][1:3] == [pa.decimal128(10, 2), TIME]
    for text in ("id nosuch", "", "id bigint,"):
        with pytest.raises(UsageError, match=r"cannot be read|must name fields"):
            schemas.from_ddl(text)
