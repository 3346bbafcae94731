"""What pages are asked: values within bounds, or words that say what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.console.page import Asked
from halfmoon.errors import UsageError

NOBODY: Any = None


def asked(**values: str) -> Asked:
    return Asked(NOBODY, values, "admin", NOBODY)


def test_texts_are_without_blanks_around_and_have_defaults():
    assert asked(name=" orders ").text("name") == "orders"
    assert asked(name=" ").text("name", "all") == "all"


@pytest.mark.parametrize(
    ("values", "words"),
    [({}, "name is missing"), ({"name": " "}, "name is missing"), ({"name": "x" * 1_000_000}, "1,000,000 characters long")],
)
def test_a_text_that_is_missing_or_too_long_is_said(values: dict[str, str], words: str):
    with pytest.raises(UsageError, match=words):
        asked(**values).text("name")


@pytest.mark.parametrize("text", ["", "x", "1.5", "-1", "11", "²", "9" * 21, "1e3"])
def test_a_number_that_is_none_or_out_of_bounds_is_refused(text: str):
    with pytest.raises(UsageError):
        asked(count=text).number("count", low=0, high=10)


def test_a_number_is_read_and_has_a_default():
    assert asked(count=" 10 ").number("count", low=0, high=10) == 10
    assert asked(count="-3").number("count", low=-5) == -3
    assert asked().number("count", 7) == 7


def test_a_choice_is_one_of_those_that_there_are():
    assert asked(kind="key").choice("kind", ("id", "key")) == "key"
    with pytest.raises(UsageError, match="one of id, key"):
        asked(kind="value").choice("kind", ("id", "key"))


@pytest.mark.parametrize("typed", ["", "order", "orders ", "ORDERS"])
def test_what_needs_its_name_typed_takes_that_name_alone(typed: str):
    asked(typed="orders").confirm("orders")
    with pytest.raises(UsageError, match="type the name exactly: orders"):
        asked(typed=typed).confirm("orders")


def test_a_time_is_read_and_may_be_missing():
    assert asked(since="1970-01-01T00:00:01").moment("since") == 1000
    assert asked(since="1960-01-01").moment("since") == 0
    assert asked().moment("since", "") is None
    assert asked().now_ms - 3_600_000 <= asked().moment("since", "1h") <= asked().now_ms
    for words, values in (("since is missing", {}), ("since: 'soon' is not a time: give an age", {"since": "soon"})):
        with pytest.raises(UsageError, match=words):
            asked(**values).moment("since")


def test_pages_of_rows_have_each_row_once():
    found = [f"topic_{number:03}" for number in range(250)]

    assert asked().rows(reversed(found)) == (found[:100], "topic_099")
    assert asked(after="topic_099").rows(found) == (found[100:200], "topic_199")
    assert asked(after="topic_199").rows(found) == (found[200:], None)
    assert asked(after="topic_900").rows(found) == ([], None)
    assert asked().rows(found[:100]) == (found[:100], None)
    assert asked(after="ab").rows(["xa", "xab", "xb"], lambda each: each[1:]) == (["xb"], None)


def test_what_is_deleted_or_added_meanwhile_moves_nothing_out_of_a_page():
    found = [f"topic_{number:03}" for number in range(250)]
    _, after = asked().rows(found)

    assert asked(after=after).rows(["another", *found[:50], *found[51:99], *found[100:]]) == (found[100:200], "topic_199")
