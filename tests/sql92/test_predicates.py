"""Predicates: three values, and values that do not fit."""

from __future__ import annotations

import pytest

from halfmoon.sql92.numbers import Unfit
from halfmoon.sql92.parser import parse
from halfmoon.sql92.predicates import predicate

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
