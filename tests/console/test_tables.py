"""Columns that say nothing are left out, and rows stand in the order of any column, a page after the other."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from halfmoon.console.page import PAGE_SIZE, Asked
from halfmoon.console.tables import Column, behind, cursor_of, ordered, worth_showing
from halfmoon.errors import UsageError

NOBODY = cast("Any", None)


class Struct(msgspec.Struct):
    name: str
    lag: int | None


ROWS = [{"name": "b", "lag": 5}, {"name": "a", "lag": None}, {"name": "c", "lag": 5}, {"name": "d", "lag": 70}]


def name(row: Any) -> str:
    return str(row["name"] if isinstance(row, dict) else row.name)


def names(rows: Any) -> str:
    return "".join(map(name, rows))


@pytest.mark.parametrize(("sort", "order"), [("lag", "bcda"), ("-lag", "dcba"), ("name", "abcd"), ("-name", "dcba")])
def test_rows_stand_in_the_order_of_a_column_and_those_without_a_value_last(sort: str, order: str):
    assert names(ordered(ROWS, sort, name)) == order
    assert names(ordered([Struct(**row) for row in ROWS], sort, name)) == order


@pytest.mark.parametrize("sort", ["gone", "__class__", "", "keys"])
def test_an_order_that_is_none_is_said(sort: str):
    with pytest.raises(UsageError, match="cannot be sorted by"):
        ordered(ROWS, sort, name)
    with pytest.raises(UsageError, match="cannot be sorted by"):
        ordered([Struct("a", 1)], sort, name)
    with pytest.raises(UsageError, match="cannot be sorted by mixed"):
        ordered([{"name": "a", "mixed": 1}, {"name": "b", "mixed": "x"}], "mixed", name)
    with pytest.raises(UsageError, match="cannot be sorted by list"):
        ordered([{"name": "a", "list": [1]}], "list", name)


@pytest.mark.parametrize("sort", ["lag", "-lag", "name", "-name"])
def test_behind_each_row_stand_the_rows_that_follow_it_also_when_it_is_gone(sort: str):
    rows = ordered(ROWS, sort, name)
    assert len(rows) == len(ROWS)
    for at, row in enumerate(rows):
        cursor = cursor_of(row, sort, name)
        assert behind(rows, sort, name, cursor) == rows[at + 1 :]
        assert behind([each for each in rows if each is not row], sort, name, cursor) == rows[at + 1 :]


@pytest.mark.parametrize("cursor", ["", "x", "[1]", '{"a": 1}', '["x", "y"]', "[1, 2]"])
def test_a_damaged_address_of_the_next_rows_is_said(cursor: str):
    with pytest.raises(UsageError, match="open the first rows again"):
        behind(ROWS, "lag", name, cursor)


def test_pages_in_the_order_of_a_column_have_each_row_once():
    rows = [{"name": f"{number:03}", "lag": number % 7 if number % 3 else None} for number in range(250)]
    found, after = [], ""
    while after is not None:
        page, after = Asked(NOBODY, {"after": after, "sort": "-lag"}, "ada", NOBODY).table(rows, name, "name")
        assert len(page) <= PAGE_SIZE
        found += page

    assert found == ordered(rows, "-lag", name)


def test_columns_that_say_nothing_are_left_out():
    columns = [Column("name", "Name", "name"), Column("lag", "Lag", "number"), Column("tag", "Tag"),
               Column("broker", "Broker", varies=True), Column("act", "Do", "act", own=True)]  # fmt: skip
    one = [{"name": "a", "lag": 0, "tag": "", "broker": "a"}, {"name": "b", "lag": None, "tag": "", "broker": "a"}]
    two = [{"name": "a", "lag": None, "tag": "new", "broker": "a"}, {"name": "b", "lag": None, "tag": "", "broker": "b"}]

    assert [column.key for column in worth_showing(columns, one)] == ["name", "lag", "act"]
    assert [column.key for column in worth_showing(columns, two)] == ["name", "tag", "broker", "act"]
