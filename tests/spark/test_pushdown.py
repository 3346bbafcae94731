"""Filters narrow what is read, never more than they may."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from halfmoon.spark.plan import Range
from halfmoon.spark.pushdown import TIME_SLACK_MS, pushed

WHOLE = Range("orders", "a", 1, 10, 90)


def cut(*filters: Filter) -> tuple[int, int] | None:
    found = pushed(list(filters)).cut(WHOLE)
    return (found.begin, found.end) if found else None


def test_offsets_narrow_the_range_to_the_message():
    path = ("queueOffset",)

    assert cut(GreaterThanOrEqual(path, 20), LessThan(path, 30)) == (20, 30)
    assert cut(GreaterThan(path, 20), LessThanOrEqual(path, 30)) == (21, 31)
    assert cut(EqualTo(path, 40)) == (40, 41)
    assert cut(In(path, (40, 50))) == (40, 51)
    assert cut(EqualTo(path, 90)) is None


def test_queues_topics_and_brokers_leave_ranges_out():
    assert cut(EqualTo(("queueId",), 1)) == cut(In(("topic",), ("orders", "x"))) == cut(EqualTo(("brokerName",), "a")) == (10, 90)
    assert cut(EqualTo(("queueId",), 2)) is cut(EqualTo(("topic",), "x")) is cut(EqualTo(("brokerName",), "b")) is None
    assert cut(In(("queueId",), (1, 2)), EqualTo(("queueId",), 2)) is None


def test_what_is_not_understood_narrows_nothing():
    for filter in (
        Not(EqualTo(("queueId",), 1)),
        EqualTo(("queueId", "x"), 2),
        EqualTo(("queueId",), 1.5),
        StringStartsWith(("topic",), "x"),
        GreaterThan(("queueId",), 5),
        GreaterThan(("storeTimestamp",), datetime(2030, 1, 1)),
    ):
        found = pushed([filter])
        assert found.cut(WHOLE) == WHOLE
        assert (found.since, found.until, found.texts) == (None, None, {})


def test_times_are_taken_with_room_for_a_clock_that_stepped():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    ms = int(noon.timestamp() * 1000)
    found = pushed([GreaterThanOrEqual(("storeTimestamp",), noon), LessThan(("storeTimestamp",), noon)])

    assert (found.since, found.until) == (ms - TIME_SLACK_MS, ms + 1 + TIME_SLACK_MS)


def test_texts_of_rows_meet():
    found = pushed([In(("tags",), ("a", "b")), EqualTo(("tags",), "b"), EqualTo(("msgId",), "X")])

    assert found.texts == {"tags": frozenset({"b"}), "msgId": frozenset({"X"})}
