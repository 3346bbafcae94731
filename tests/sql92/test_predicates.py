"""Predicates: three values, and values that do not fit."""

from __future__ import annotations

import pytest

from halfmoon.sql92 import filter, tokens
from halfmoon.sql92.numbers import Unfit
from halfmoon.sql92.parser import parse
from halfmoon.sql92.predicates import SEARCHES, predicate

MESSAGE = {b"a": b"7", b"t": b"text"}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a = 7", True), ("a <> 7", False), ("missing = 7", None), ("NOT missing = 7", None), ("missing IS NULL", True),
        ("a > 9 OR missing = 1", None), ("a > 9 AND missing = 1", False), ("t CONTAINS 'ex'", True), ("a", False),
    ],
)  # fmt: skip
def test_three_values(expression: str, value: bool | None):
    assert predicate(parse(expression))(MESSAGE) is value


def test_a_value_that_does_not_fit_is_no_match_unless_the_result_is_known_before():
    with pytest.raises(Unfit):
        predicate(parse("t > 5 OR a = 7"))(MESSAGE)
    assert predicate(parse("a = 7 OR t > 5"))(MESSAGE) is True


def test_a_new_search_word_is_its_name_and_its_test(monkeypatch):
    assert set(SEARCHES) == tokens.SEARCHES

    monkeypatch.setattr("halfmoon.sql92.parser.SEARCHES", tokens.SEARCHES | {"OUTLASTS"})
    monkeypatch.setitem(SEARCHES, "OUTLASTS", lambda value, text: len(value) > len(text))
    longer = filter.compile("a OUTLASTS 'xx' AND b IS NOT NULL")

    assert [longer.matches(b"a\x01%b\x02b\x011\x02" % value) for value in (b"x", b"xx", b"xxx")] == [False, False, True]
    assert longer.matching([b"a\x01xxx\x02b\x011\x02", b"a\x01xxx\x02", b"a\x01x\x02b\x011\x02"]) == [0]
