"""Ranges to rows: what brokers filter, and how many tasks there are."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from halfmoon.spark.source.partitions import ONE_PER_QUEUE, Range
from halfmoon.spark.source.reading import DataLoss, Scan, _Gaps, cores, range_rows
from halfmoon.spark.source.rows import schema_of


@pytest.mark.parametrize(
    ("texts", "sql", "told"),
    [
        ({}, "", None),
        ({"tags": frozenset({"b", "a"})}, "", ("a||b", "TAG")),
        ({"tags": frozenset({"a"})}, "x = 1", ("a", "TAG")),
        ({"keys": frozenset({"a"})}, "x = 1", ("x = 1", "SQL92")),
        ({"tags": frozenset()}, "", None),
    ],
)
def test_brokers_are_told_what_an_expression_can_say(texts: dict[str, frozenset[str]], sql: str, told: tuple[str, str] | None):
    assert Scan(schema_of(["body"]), texts, sql).selection() == told


def test_a_filter_may_need_columns_that_the_rows_do_not_have():
    assert Scan(schema_of(["body"]), {"tags": frozenset({"a"})}, "x = 1").columns() == ["body", "tags", "properties"]
    assert Scan(schema_of(["tags", "body"]), {"tags": frozenset({"a"})}).columns() == ["tags", "body"]


@pytest.mark.parametrize(("word", "count"), [("3", 3), ("0", None), ("many", None), ("", None)])
def test_tasks_run_beside_each_other_as_the_session_says(monkeypatch: pytest.MonkeyPatch, word: str, count: int | None):
    monkeypatch.setenv("PYSPARK_HALFMOON_CORES", word)

    assert cores() == (count or ONE_PER_QUEUE)  # the planner's machine says nothing of the cluster's


def test_ranges_are_rows():
    rows = range_rows([Range("orders", "a", 0, 3, 9), Range("orders", "b", 1, 0, 2, 7)])

    place = {"topic": "orders", "brokerName": "b", "queueId": 1, "beginOffset": 0, "endOffset": 2}
    assert rows.to_pylist()[1] == {**place, "topicBirthMs": 7}


def test_gaps_are_counted_and_logged_or_the_first_is_an_error(caplog: pytest.LogCaptureFixture):
    span = Range("orders", "a", 0, 0, 10)
    gaps = _Gaps(span, fail=False)
    gaps.add(0, 2)
    gaps.add(5, 6)
    gaps.report()

    assert caplog.messages == ["messages lost, passed over by failOnDataLoss=false: range=orders a queue 0 [0, 10) count=3"]
    with pytest.raises(DataLoss, match="offsets 4 to 6 of orders a queue 0") as lost:
        _Gaps(span, fail=True).add(4, 7)
    assert (lost.value.span, lost.value.begin, lost.value.end) == (span, 4, 7)
