"""Ranges to rows: what brokers filter, and what becomes of messages that are gone."""

from __future__ import annotations

import pytest

from halfmoon.data.partitions import Range
from halfmoon.data.reading import DataLoss, Gaps, Scan
from halfmoon.data.rows import schema_of
from halfmoon.spark.source.options import SourceOptions, source_options


def options(**given: str) -> SourceOptions:
    """Return the options of a batch of the topic orders."""
    return source_options({"endpoints": "x:1", "topic": "orders", **given}, "batch")


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


def test_gaps_are_counted_and_logged_or_the_first_is_an_error(caplog: pytest.LogCaptureFixture):
    span = Range("orders", "a", 0, 0, 10)
    gaps = Gaps(span, options(failOnDataLoss="false"))
    gaps.add(0, 2)
    gaps.add(5, 6)
    gaps.report()

    assert caplog.messages == ["messages lost, passed over by failOnDataLoss=false: range=orders a queue 0 [0, 10) count=3"]
    with pytest.raises(DataLoss, match="offsets 4 to 6 of orders a queue 0") as lost:
        Gaps(span, options()).add(4, 7)
    assert (lost.value.span, lost.value.begin, lost.value.end) == (span, 4, 7)
