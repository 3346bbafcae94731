"""Tests of how many tasks a batch of a stream gets: few messages are not worth many."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.data.reading import Scan
from halfmoon.data.rows import schema_of
from halfmoon.spark.source.options import source_options
from halfmoon.spark.source.reading import RangesPartition
from halfmoon.spark.source.stream import TASK_MESSAGES, StreamReader


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell the planner of four cores."""
    monkeypatch.setenv("PYSPARK_HALFMOON_CORES", "4")


def counts(each: int, **options: str) -> list[int]:
    """Return how many messages each task of a batch has, when each of four queues has so many."""
    given = {"endpoints": "127.0.0.1:1", "topic": "t", **options}
    reader = StreamReader(source_options(given, "stream"), Scan(schema_of(["body"])))
    start, end = (_at({f"{queue}": offset for queue in range(4)}) for offset in (7, 7 + each))
    shares = reader.partitions(start, end)
    return [sum(part.count for part in share.ranges) for share in shares if isinstance(share, RangesPartition)]


def _at(queues: dict[str, int]) -> dict[str, Any]:
    return {"v": 1, "end": {"t": {"broker-a": queues}}}


@pytest.mark.parametrize(
    ("each", "options", "tasks"),
    [
        pytest.param(1, {}, [4], id="few messages are one task"),
        pytest.param(TASK_MESSAGES // 4, {}, [TASK_MESSAGES], id="as many as one task takes"),
        pytest.param(TASK_MESSAGES // 4 + 1, {}, [TASK_MESSAGES // 2 + 2] * 2, id="a task for each so many messages"),
        pytest.param(10 * TASK_MESSAGES, {}, [10 * TASK_MESSAGES] * 4, id="a large batch has a task a core"),
        pytest.param(5, {"minPartitions": "4"}, [5] * 4, id="minPartitions counts for small batches"),
        pytest.param(0, {}, [], id="an empty batch has none"),
    ],
)
def test_a_batch_has_as_many_tasks_as_its_messages_are_worth(each: int, options: dict[str, str], tasks: list[int]):
    assert counts(each, **options) == tasks
