"""Rows of the source's schema made by hand, for jobs that work on DataFrames."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from halfmoon.data.rows import COLUMNS, SCHEMA

BEGIN_MS = 1_780_000_000_000


def at(ms: int) -> datetime:
    """Return a time so many ms behind `BEGIN_MS`."""
    return datetime.fromtimestamp((BEGIN_MS + ms) / 1000, UTC)


def row(**values: Any) -> dict[str, Any]:
    """Return one row; what is not named has a plain value. ``store`` is ms behind `BEGIN_MS`."""
    store = at(values.pop("store", 0))
    whole = {
        "topic": "orders", "brokerName": "broker-a", "queueId": 0, "queueOffset": 0, "commitOffset": 0, "msgId": "m", "keys": None,
        "tags": None, "properties": {}, "bornTimestamp": store, "bornHost": "10.0.0.1:1", "storeTimestamp": store, "sysFlag": 0,
        "flag": 0, "reconsumeTimes": 0, "preparedTransactionOffset": 0, "body": b"",
    }  # fmt: skip
    assert set(whole) == set(COLUMNS)
    assert values.keys() <= whole.keys()
    return whole | values


def frame(session: SparkSession, rows: Iterable[dict[str, Any]]) -> DataFrame:
    """Return rows as a DataFrame of one partition."""
    return session.createDataFrame(pa.Table.from_pylist(list(rows), schema=SCHEMA)).coalesce(1)
