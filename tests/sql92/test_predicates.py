"""Predicates: three values, the order of evaluation, and the short way that says the same."""

from __future__ import annotations

import pytest

from halfmoon.sql92.numbers import Unfit
from halfmoon.sql92.parser import parse
from halfmoon.sql92.predicates import cheapest_first, is_true, may_be_unfit, three_valued
from halfmoon.sql92.property_access import PropertyAccess
from halfmoon.sql92.tree import Logic

ACCESS = PropertyAccess(in_a_table=False, mend=False)
BLOCK = b"a\x017\x02t\x01text\x02"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a = 7", True), ("a <> 7", False), ("missing = 7", None), ("NOT missing = 7", None), ("missing IS NULL", True),
        ("a > 9 OR missing = 1", None), ("a > 9 AND missing = 1", False), ("t CONTAINS 'ex'", True), ("a", False),
    ],
)  # fmt: skip
def test_three_values(expression: str, value: bool | None):
    tree = parse(expression)
    assert three_valued(tree, ACCESS)(BLOCK) is value
    assert bool(is_true(tree, ACCESS)(BLOCK)) is (value is True)


def test_a_value_that_does_not_fit_is_no_match_whatever_stands_beside_it():
    tree = parse("t > 5 OR a = 7")
    with pytest.raises(Unfit):
        three_valued(tree, ACCESS)(BLOCK)
    assert not is_true(tree, ACCESS)(BLOCK)
    assert is_true(parse("a = 7 OR t > 5"), ACCESS)(BLOCK), "an OR ends with its first true part"
    assert may_be_unfit(tree)
    assert not may_be_unfit(parse("t = 'x' AND a IS NULL"))


def test_an_and_begins_with_its_cheapest_part():
    tree = parse("a CONTAINS 'x' AND b > 1.5 AND c = 'y'")
    assert isinstance(tree, Logic)
    assert cheapest_first(tree)[0] == parse("c = 'y'")
