"""Rows of one sharding key in one task, so in one queue."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def by_key(rows: DataFrame, *, order: Sequence[str] = (), count: int | None = None) -> DataFrame:
    """Return rows with all of one ``shardingKey`` in one task, and so in one queue in the order in which that task has them.

    ``order`` names columns by which each task sorts its rows: without them the rows of a key that several tasks read come in any
    order. ``count`` tasks, None: as Spark chooses. Rows without a key are spread by their body. For batches and streams alike; it
    costs a shuffle. A sink whose requests are repeated after a failure keeps that order with ``delivery=exactly-once`` only.
    """
    key = F.coalesce(F.col("shardingKey"), F.col("body").cast("string"))
    shared = rows.repartition(key) if count is None else rows.repartition(count, key)
    return shared.sortWithinPartitions(*order) if order else shared
