"""Limits of filters: what a filter takes lies within them, and plain conditions give the limits that one expects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.data.dataset.filters import NOTHING, Interval, Limits, fields_in, limits_of

TAGS, QUEUE, OFFSET, STORED, BODY = (pc.field(name) for name in ("tags", "queueId", "queueOffset", "storeTimestamp", "body"))
START = datetime(2026, 1, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
NO_BOOL = pa.scalar(None, pa.bool_())
ODD = "x'\"\\\n]], y"


@pytest.mark.parametrize(
    ("expression", "limits"),
    [
        (TAGS == "a", Limits(tags=frozenset("a"))),
        (TAGS == ODD, Limits(tags=frozenset({ODD}))),
        (TAGS.isin(["a", ODD]), Limits(tags=frozenset({"a", ODD}))),
        ((TAGS == "a") | (TAGS == "b"), Limits(tags=frozenset("ab"))),
        ((TAGS == "a") | (QUEUE == 1), Limits()),
        ((TAGS == "a") & (QUEUE >= 1), Limits(Interval(low=1), tags=frozenset("a"))),
        ((TAGS == "a") & TAGS.isin(["b"]), Limits(tags=frozenset())),
        (pc.scalar(2) < QUEUE, Limits(Interval(low=3))),
        (QUEUE.isin([1, 4]), Limits(Interval(1, 4))),
        ((OFFSET >= 5) & (OFFSET < 9), Limits(offsets=Interval(5, 8))),
        ((OFFSET == 5) | (OFFSET == 9), Limits(offsets=Interval(5, 9))),
        (pa.scalar(START, pa.timestamp("ms", "UTC")) < STORED, Limits(stored_us=Interval(low=START_US + 1))),
        (STORED <= START, Limits(stored_us=Interval(high=START_US))),
        (pc.if_else(TAGS.is_valid(), TAGS.isin(["a"]), NO_BOOL), Limits(tags=frozenset("a"))),  # as DuckDB writes IN
        (pc.scalar(False), NOTHING),
        (pa.scalar(None, pa.int32()) == QUEUE, NOTHING),
    ],
    ids=lambda value: str(value) if isinstance(value, pc.Expression) else "",  # sets have no order
)
def test_plain_conditions_limit_what_is_read(expression: pc.Expression, limits: Limits):
    assert limits_of(expression) == limits


@pytest.mark.parametrize(
    "expression",
    [
        None, ~(TAGS == "a"), TAGS != "a", TAGS > "a", TAGS.is_null(), TAGS.isin(["a", None]), QUEUE + 1 == 2, QUEUE < 1.5,
        pc.field("tags", "inner") == "a", pc.utf8_lower(TAGS) == "a", BODY == b"a",
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_understood_limits_nothing(expression: pc.Expression):
    assert limits_of(expression) == Limits()


def test_a_filter_of_very_many_parts_limits_nothing_and_does_not_fail():
    expression = QUEUE == 0
    for _ in range(300):
        expression = (QUEUE == 0) & expression

    assert limits_of(expression) == Limits()


ROWS = st.fixed_dictionaries({
    "tags": st.sampled_from(["a", "b", ODD, "", None]), "queueId": st.integers(0, 3), "queueOffset": st.integers(0, 20),
    "storeTimestamp": st.integers(0, 9).map(lambda s: START + timedelta(seconds=s)), "body": st.binary(max_size=2),
})  # fmt: skip
SCHEMA = pa.schema([
    ("tags", pa.string()), ("queueId", pa.int32()), ("queueOffset", pa.int64()), ("storeTimestamp", pa.timestamp("us", tz="UTC")),
    ("body", pa.binary()),
])  # fmt: skip


def _compared(field: pc.Expression, values: st.SearchStrategy[Any]) -> st.SearchStrategy[pc.Expression]:
    tests = [field.__eq__, field.__ne__, field.__lt__, field.__le__, field.__gt__, field.__ge__]
    single = st.builds(lambda test, value: test(pa.scalar(value)), st.sampled_from(tests), values)
    return st.one_of(single, st.lists(values, min_size=1, max_size=3).map(field.isin), st.just(field.is_valid()))


def filters(start: datetime = START, step: timedelta = timedelta(seconds=1)) -> st.SearchStrategy[pc.Expression]:
    """Return random filters over the columns that limit, and one that does not; times are up to nine steps behind a start."""
    leaves = st.one_of(
        _compared(TAGS, st.sampled_from(["a", "b", ODD, ""])), _compared(QUEUE, st.integers(0, 3)),
        _compared(OFFSET, st.integers(-1, 21)), _compared(STORED, st.integers(0, 9).map(lambda number: start + number * step)),
        _compared(BODY, st.binary(max_size=2)),
    )  # fmt: skip
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.builds(lambda a, b: a & b, inner, inner),
            st.builds(lambda a, b: a | b, inner, inner),
            st.builds(lambda a: ~a, inner),
            st.builds(lambda a, b: pc.if_else(a, b, NO_BOOL), inner, inner),
        ),
        max_leaves=6,
    )


@given(filters(), st.lists(ROWS, min_size=1, max_size=20))
def test_all_that_a_filter_takes_lies_within_its_limits(expression: pc.Expression, rows: list[dict[str, Any]]):
    limits = limits_of(expression)

    for row in pa.Table.from_pylist(rows, SCHEMA).filter(expression).to_pylist():
        assert not limits.nothing
        assert limits.queues.low <= row["queueId"] <= limits.queues.high
        assert limits.offsets.low <= row["queueOffset"] <= limits.offsets.high
        assert (
            limits.stored_us.low <= (row["storeTimestamp"] - START) // timedelta(microseconds=1) + START_US <= limits.stored_us.high
        )
        assert limits.tags is None or row["tags"] in limits.tags


def test_the_columns_that_a_filter_uses_are_known_and_all_of_them_where_it_is_unclear():
    names = ["tags", "queueId", "body"]

    assert fields_in((TAGS == "queueId") & (BODY == b"x"), names) == ["tags", "body"]
    assert fields_in(None, names) == []
    assert fields_in(pc.field("a'\nend: 'b") == 1, names) == names
