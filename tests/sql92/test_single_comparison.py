"""Tests of one property on stored bytes: the usual value at once, anything else by the general test."""

from __future__ import annotations

import operator

from halfmoon.sql92.property_access import in_bytes
from halfmoon.sql92.single_comparison import number, text, texts

BLOCKS = [b"a\x017\x02", b"b\x011\x02a\x0112\x02", b"b\x011\x02", b"a\x01\x02", b"b\x011\x02a\x01-3\x02"]


def test_a_number_is_compared_and_the_unusual_left_to_the_general_test():
    asked = []
    test = number("a", operator.gt, 10, lambda block: asked.append(block) or False)
    assert [bool(test(block)) for block in BLOCKS] == [False, True, False, False, False]
    assert asked == [BLOCKS[0], BLOCKS[3], BLOCKS[4]], "the first pair, an empty value, and a sign"


def test_a_text_is_compared_with_one_or_some():
    one, some = text("a", b"12", in_bytes("a")), texts("a", frozenset({b"7", b"12"}), in_bytes("a"))
    assert [one(block) for block in BLOCKS] == [False, True, False, False, False]
    assert [some(block) for block in BLOCKS] == [True, True, False, False, False]
