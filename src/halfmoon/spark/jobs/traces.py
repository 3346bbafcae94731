"""Trace records as rows: what clients with tracing switched on sent to a trace topic. Works on DataFrames; asks no broker.

Follows TraceDataEncoder (RocketMQ 4.9.8), read by `halfmoon.wire.bodies.traces`.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType

from halfmoon.wire.bodies.traces import END_TRANSACTION, PUB, SUB_AFTER, TraceRecord, decode_traces

_SCHEMA = pa.schema([
    ("kind", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("msgId", pa.string()), ("clientGroup", pa.string()),
    ("topic", pa.string()), ("tags", pa.string()), ("keys", pa.string()), ("costMs", pa.int64()), ("success", pa.bool_()),
    ("messageKind", pa.int32()), ("requestId", pa.string()), ("retries", pa.int32()), ("code", pa.int32()), ("state", pa.string()),
    ("fromCheck", pa.bool_()), ("storeHost", pa.string()), ("clientHost", pa.string()),
])  # fmt: skip
EVENT = from_arrow_schema(_SCHEMA)
"""Columns of `events`. ``kind``: Pub, SubBefore, SubAfter, EndTransaction."""

_TIME_MAX_MS = 253_402_300_799_999


def events(traces: DataFrame) -> DataFrame:
    """Return the records in the bodies of a trace topic, one row each. What is no trace record is left out."""
    decoded = arrow_udf(_decoded, ArrayType(EVENT))  # type: ignore[call-overload]
    return traces.select(F.inline(decoded("body")))


def _decoded(bodies: pa.Array) -> pa.Array:
    kind = pa.list_(pa.struct(list(_SCHEMA)))
    return pa.array(
        [[_row(record) for record in decode_traces((body or b"").decode("utf-8", "replace"))] for body in bodies.to_pylist()], kind
    )


def _row(r: TraceRecord) -> dict[str, Any]:
    at = r.at_ms * 1000 if 0 <= r.at_ms <= _TIME_MAX_MS else None
    values = (
        r.kind, at, r.msg_id, r.group, r.topic, r.tags, r.keys, r.cost_ms, r.success, r.message_kind & 0x7FFFFFFF, r.request_id,
        r.retries & 0x7FFFFFFF, r.code & 0x7FFFFFFF, r.state, r.from_check, r.store_host, r.client_host,
    )  # fmt: skip
    return dict(zip(_SCHEMA.names, values))


def spans(records: DataFrame) -> DataFrame:
    """Return spans from `events`: each send, second phase and call of a listener with begin, end and how it ended.

    Columns: msgId, span (send, half, commit or rollback, consume), who (the group), topic, begin, end, costMs, success, retries,
    fromCheck. A call of a listener joins SubBefore and SubAfter by request and message; one without an end is still under way, or
    its client died: success is null.
    """
    sends = records.where(F.col("kind") == PUB).select(
        "msgId",
        F.when(F.col("messageKind") == 1, "half").otherwise("send").alias("span"),
        F.col("clientGroup").alias("who"),
        "topic",
        F.col("at").alias("begin"),
        F.timestamp_millis(F.unix_millis("at") + F.col("costMs")).alias("end"),
        "costMs",
        "success",
        F.lit(0).alias("retries"),
        F.lit(False).alias("fromCheck"),
    )
    decisions = records.where(F.col("kind") == END_TRANSACTION).select(
        "msgId",
        F.lower(F.regexp_replace("state", "_MESSAGE$", "")).alias("span"),
        F.col("clientGroup").alias("who"),
        "topic",
        F.col("at").alias("begin"),
        F.col("at").alias("end"),
        F.lit(0).cast("bigint").alias("costMs"),
        F.lit(True).alias("success"),
        F.lit(0).alias("retries"),
        "fromCheck",
    )
    return sends.unionByName(decisions).unionByName(_calls(records))


def _calls(records: DataFrame) -> DataFrame:
    before = records.where(F.col("kind") == "SubBefore").select("msgId", "requestId", "clientGroup", "at", "retries")
    after = records.where(F.col("kind") == SUB_AFTER).select("msgId", "requestId", "costMs", "success")
    return before.join(after.dropDuplicates(["msgId", "requestId"]), ["msgId", "requestId"], "left").select(
        "msgId",
        F.lit("consume").alias("span"),
        F.col("clientGroup").alias("who"),
        F.lit(None).cast("string").alias("topic"),
        F.col("at").alias("begin"),
        F.timestamp_millis(F.unix_millis("at") + F.col("costMs")).alias("end"),
        "costMs",
        "success",
        "retries",
        F.lit(False).alias("fromCheck"),
    )
