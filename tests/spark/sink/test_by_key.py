"""Rows of one sharding key stay together, in the order asked for."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from halfmoon.spark import by_key

pytestmark = pytest.mark.slow


def test_all_rows_of_a_key_are_in_one_task_in_their_order(spark: Any):
    rows = spark.range(200).selectExpr("cast(id as string) body", "if(id % 5 = 0, null, cast(id % 3 as string)) shardingKey", "id")
    found = by_key(rows, order=["id"], count=4).withColumn("task", F.spark_partition_id()).collect()

    tasks: dict[str, set[int]] = {}
    for row in found:
        tasks.setdefault(row.shardingKey or row.body, set()).add(row.task)
    assert all(len(of_key) == 1 for of_key in tasks.values())
    for task in {row.task for row in found}:
        ids = [row.id for row in found if row.task == task]
        assert ids == sorted(ids)
    assert len(found) == 200
