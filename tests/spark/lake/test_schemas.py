"""Schemas of bodies from Spark's DDL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from halfmoon.errors import UsageError
from halfmoon.spark.lake import schemas

TIME = pa.timestamp("us", tz="UTC")


@pytest.mark.slow
def test_a_schema_as_text_gives_types_and_which_fields_must_be_there(spark: Any):
    found = schemas.from_ddl("id bigint not null, total decimal(10,2), at timestamp, items array<struct<n:int>>")

    assert found.field("id") == pa.field("id", pa.int64(), nullable=False)
    assert [field.type for field in found][1:3] == [pa.decimal128(10, 2), TIME]
    for text in ("id nosuch", "", "id bigint,"):
        with pytest.raises(UsageError, match=r"cannot be read|must name fields"):
            schemas.from_ddl(text)
