"""The words of an expression, and where the next characters are none."""

from __future__ import annotations

import pytest

from halfmoon.sql92.refusals import LENGTH_MAX, ExpressionRefused
from halfmoon.sql92.tokens import Tokens


def kinds(expression: str) -> list[str]:
    tokens = Tokens(expression)
    taken = []
    while tokens.now.kind != "end":
        taken.append(tokens.take().kind)
    return taken


def test_words_signs_and_comments():
    assert kinds("a >= 1.5 and not b <> 'it''s' -- done") == ["name", ">=", "double", "AND", "NOT", "name", "<>", "text"]
    assert kinds("a = 7L /* a * comment */ OR $b IN ('x')") == ["name", "=", "whole", "OR", "name", "IN", "(", "text", ")"]


def test_many_texts_are_taken_at_once():
    tokens = Tokens(", 'a' , 'b''c', 'd' )")
    assert tokens.take_texts() == ["'a'", "'b''c'", "'d'"]
    assert tokens.now.kind == ")"


@pytest.mark.parametrize(
    ("expression", "at", "reason"),
    [("a = 'x", 4, "has no end"), ("a /* b", 2, "a comment has no end"), ("a % 2", 2, "no arithmetic")],
)
def test_what_is_no_word_is_refused_with_its_place(expression: str, at: int, reason: str):
    with pytest.raises(ExpressionRefused, match=reason) as refused:
        kinds(expression)
    assert refused.value.at == at


def test_an_expression_has_a_bound():
    with pytest.raises(ExpressionRefused):
        Tokens("a" * (LENGTH_MAX + 1))
