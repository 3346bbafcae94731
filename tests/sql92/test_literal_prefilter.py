"""What a matching message must contain: never too much (random expressions show that), and as much as is sure."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon import sql92
from halfmoon.sql92 import Verdict
from tests.sql92 import reference
from tests.sql92.test_filter import block_of, verdict_of


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.integers(0, 2**64))
def test_every_message_that_matches_contains_a_literal(seed):
    random = Random(seed)
    tree = reference.condition(random, depth=2)
    literals = sql92.compile(reference.written(tree, random)).literals
    for _ in range(20):
        found = reference.properties(random)
        if verdict_of(tree, found) is Verdict.TRUE and literals:
            assert any(literal in block_of(found) for literal in literals)


@pytest.mark.parametrize(
    ("expression", "literals"),
    [
        ("a > 5 AND b = 'x'", (b"b\x01x",)),
        ("'x' = b", (b"b\x01x",)),
        ("b STARTSWITH 'x'", (b"b\x01x",)),
        ("b CONTAINS 'x'", (b"b\x01",)),
        ("b NOT STARTSWITH 'x'", (b"b\x01",)),
        ("NOT (b STARTSWITH 'x')", ()),
        ("a > 5", (b"a\x01",)),
        ("5 > a", (b"a\x01",)),
        ("a = 5", (b"a\x01",)),
        ("a <> 'x'", (b"a\x01",)),
        ("'x' <> a", ()),
        ("a = b", ()),
        ("a IS NULL", ()),
        ("a IS NOT NULL", (b"a\x01",)),
        ("a IN ('x', 'y')", (b"a\x01x", b"a\x01y")),
        ("a NOT IN ('x', 'y')", (b"a\x01",)),
        ("a = 'x' OR b = 'y'", (b"a\x01x", b"b\x01y")),
        ("a = 'x' OR b IS NULL", ()),
        ("a IN ('x', 'y') AND b = 'zz'", (b"b\x01zz",)),
        ("TRUE", ()),
        ("a = '\ufffd'", ()),
    ],
)
def test_the_literals_of_an_expression(expression, literals):
    assert sql92.compile(expression).literals == literals


def test_too_many_texts_are_no_literals():
    listed = ", ".join(f"'{number}'" for number in range(17))

    assert sql92.compile(f"a IN ({listed})").literals == (b"a\x01",)
    assert sql92.compile(" OR ".join(f"a = '{number}'" for number in range(17))).literals == ()
