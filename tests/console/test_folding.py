"""JSON folds into a tree that says what was written, is text, and stays small."""

from __future__ import annotations

import re
from html import unescape
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.console.folding import CHARS_MAX, NODES_MAX, folded

values = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists, max_leaves=20)


def text_of(html: object) -> str:
    return unescape(re.sub(r"<[^>]+>", " ", str(html)))


def test_a_tree_shows_names_values_and_counts_and_is_open_at_its_top():
    tree = folded('{"order": 4711, "price": 1.50, "items": [{"sku": "lamp"}], "note": null, "none": {}}')
    assert text_of(tree).split() == [
        "{5}", "order", ":", "4711", "price", ":", "1.50", "items", ":", "[1]", "{1}", "sku", ":", '"lamp"', "note", ":", "null",
        "none", ":", "{}",
    ]  # fmt: skip
    assert str(tree).count("<details open>") == 2
    assert str(tree).count("<details>") == 1


def test_numbers_and_repeated_names_stand_as_they_were_written():
    shown = text_of(folded('{"a": 12345678901234567890.10, "a": 1e400, "a": 0.1000}'))
    assert [number in shown for number in ("12345678901234567890.10", "1e400", "0.1000")] == [True] * 3


@pytest.mark.parametrize("text", ["", "x", "1", '"a"', "[]", "{}", "[1", "[" * 5000 + "]" * 5000])
def test_where_nothing_folds_there_is_no_tree(text: str):
    assert folded(text) is None


def test_a_tree_is_small():
    assert folded(str([0] * (NODES_MAX - 1))) is not None
    assert folded(str([0] * NODES_MAX)) is None
    assert folded('["' + "x" * CHARS_MAX + '"]') is None


def test_markup_and_invisible_characters_are_text():
    tree = str(folded('{"<b>\\u202e": "<script>alert(1)</script>\\u0000"}'))
    assert "<script>" not in tree
    assert "\u202e" not in tree
    assert "\\u202e" in tree


@given(st.text(max_size=200))
def test_whatever_the_text_the_tree_is_well_formed(text: str):
    for each in (text, f'["{text}"]'):
        if (tree := folded(each)) is not None:
            ElementTree.fromstring(str(tree).replace(" open>", ">"))
