"""What a tree says in words, and what testing it costs."""

from __future__ import annotations

import pytest

from halfmoon.sql92.parser import parse
from halfmoon.sql92.tree import Name, lines, scans, steps, walk


def test_a_tree_is_walked_from_left_to_right():
    assert [node.name for node in walk(parse("a = 1 AND (b > 2 OR c IS NULL)")) if isinstance(node, Name)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("expression", "cost", "reads"),
    [
        ("a = 'x'", 4, 0),
        ("a > 5", 6, 0),
        ("a > 5.5", 8, 1),
        ("a > b", 15, 2),
        ("a CONTAINS 'x'", 7, 1),
        ("a IN ('x', 'y', 'z')", 4, 0),
    ],
)
def test_costs_are_counted_in_steps_and_scans(expression: str, cost: int, reads: int):
    tree = parse(expression)
    assert (steps(tree), scans(tree)) == (cost, reads)


def test_a_tree_is_shown_in_lines():
    shown = [*lines(parse("a > 5 AND NOT (b IN ('x', 'it''s'))"))]
    assert shown == [(0, "AND"), (1, "a > 5   (a read as a whole number of 32 bits)"), (1, "NOT"), (2, "b IN ('it''s', 'x')")]
