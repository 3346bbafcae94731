"""Ranges to rows: how many tasks there are, and ranges as rows themselves."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from halfmoon.data.partitions import ONE_PER_QUEUE, Range
from halfmoon.spark.source.reading import cores, range_rows


@pytest.mark.parametrize(("word", "count"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_tasks_run_beside_each_other_as_the_session_says(monkeypatch: pytest.MonkeyPatch, word: str, count: int | None):
    monkeypatch.setenv("PYSPARK_HALFMOON_CORES", word)

    assert cores() == (count or ONE_PER_QUEUE)  # the planner's machine says nothing of the cluster's


def test_ranges_are_rows():
    rows = range_rows([Range("orders", "a", 0, 3, 9), Range("orders", "b", 1, 0, 2, 7)])

    place = {"topic": "orders", "brokerName": "b", "queueId": 1, "beginOffset": 0, "endOffset": 2}
    assert rows.to_pylist()[1] == {**place, "topicBirthMs": 7}
