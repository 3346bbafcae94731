"""The text of a refusal: where, why, and what to write instead."""

from __future__ import annotations

from halfmoon.sql92.refusals import ExpressionRefused


def test_a_refusal_says_place_reason_and_remedy():
    refused = ExpressionRefused("a == 1", 3, "an operand is missing", "write = once")
    assert str(refused) == "SQL92 filter, at character 4, '= 1': an operand is missing; write = once"
    assert (refused.at, refused.trailing) == (3, False)


def test_a_refusal_at_the_end_says_so():
    assert str(ExpressionRefused("", 0, "it is empty")) == "SQL92 filter, at the end: it is empty"
