"""Filters, rule by rule, and against the naive reading of `tests.sql92.reference`: random expressions over random messages."""

from __future__ import annotations

import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon import sql92
from halfmoon.sql92 import FilterVerdict
from halfmoon.sql92.filter import table
from halfmoon.wire.properties import decode
from tests.sql92 import reference

seeds = st.integers(0, 2**64)


def block_of(found: dict[str, str]) -> bytes:
    """Return properties as they are stored; one text of the reference has a separator inside, which a store keeps as it is."""
    return b"".join(f"{name}\x01{text}\x02".encode() for name, text in found.items())


def verdict_of(tree: reference.Tree, found: dict[str, str]) -> FilterVerdict:
    """Return what the naive reading says."""
    try:
        value = reference.evaluate(tree, found)
    except reference.Wrong:
        return FilterVerdict.UNFIT
    return FilterVerdict.NULL if value is None else FilterVerdict.TRUE if value else FilterVerdict.FALSE


@pytest.mark.slow
@settings(max_examples=400)
@given(seeds)
def test_random_expressions_say_of_random_messages_what_a_naive_reading_says(seed):
    random = Random(seed)
    tree = reference.condition(random)
    expression = reference.written(tree, random)
    ready = sql92.compile(expression)
    messages = [reference.properties(random) for _ in range(8)]
    blocks = [block_of(found)[: None if random.random() < 0.5 else -1] for found in messages]
    expected = [verdict_of(tree, found) for found in messages]

    assert [ready.outcome(block).verdict for block in blocks] == expected, expression
    matching = [at for at, verdict in enumerate(expected) if verdict is FilterVerdict.TRUE]
    assert ready.matching(blocks) == matching, expression
    assert [at for at, block in enumerate(blocks) if ready.matches(block)] == matching, expression


TRUE, FALSE, NULL, UNFIT = FilterVerdict.TRUE, FilterVerdict.FALSE, FilterVerdict.NULL, FilterVerdict.UNFIT


@pytest.mark.parametrize(
    ("expression", "found", "verdict"),
    [
        # a property is read as the other side is
        ("a > 5", {"a": "6"}, TRUE),
        ("a > 5", {"a": "5"}, FALSE),
        ("a > 5", {"a": "6.5"}, UNFIT),
        ("a > 5", {"a": "abc"}, UNFIT),
        ("a > 5", {"a": "3000000000"}, UNFIT),
        ("a = 1", {"a": "1.0"}, UNFIT),
        ("a = 1", {"a": "+01"}, TRUE),
        ("a > 2147483648", {"a": "3000000000"}, TRUE),
        ("a > -2147483648", {"a": "3000000000"}, TRUE),
        ("a > 5.0", {"a": "6"}, TRUE),
        ("a > 5.0", {"a": "NaN"}, TRUE),
        ("a < 5.0", {"a": "NaN"}, FALSE),
        ("5 < a", {"a": "6"}, TRUE),
        ("5.0 >= a", {"a": "NaN"}, FALSE),
        ("a = TRUE", {"a": "tRuE"}, TRUE),
        ("a = TRUE", {"a": "yes"}, FALSE),
        ("TRUE = a", {"a": "true"}, UNFIT),
        ("a = '1'", {"a": "1"}, TRUE),
        ("a = '1'", {"a": "1.0"}, FALSE),
        ("a > b", {"a": "10", "b": "9"}, TRUE),
        ("a > b", {"a": "10", "b": "x"}, UNFIT),
        ("a = b", {"a": "10", "b": "10.0"}, FALSE),
        ("a", {"a": "true"}, FALSE),
        ("NOT a", {"a": "true"}, TRUE),
        ("-a = 5", {"a": "5"}, NULL),
        ("a = -5", {"a": "-5"}, TRUE),
        ("9007199254740993 = 9007199254740992.0", {}, TRUE),
        # missing properties
        ("a = 'x'", {}, NULL),
        ("a <> 'x'", {}, NULL),
        ("'x' = a", {}, FALSE),
        ("'x' <> a", {}, TRUE),
        ("a = b", {}, TRUE),
        ("a = b", {"a": "x"}, FALSE),
        ("a = b", {"b": "x"}, NULL),
        ("a > 5", {}, NULL),
        ("NOT (a > 5)", {}, NULL),
        ("a IN ('x')", {}, NULL),
        ("a NOT IN ('x')", {}, NULL),
        ("a IS NULL", {}, TRUE),
        ("a IS NOT NULL", {}, FALSE),
        ("a", {}, NULL),
        ("a CONTAINS 'x'", {}, FALSE),
        ("a NOT CONTAINS 'x'", {}, FALSE),
        ("NOT (a CONTAINS 'x')", {}, TRUE),
        # three values
        ("a > 5 AND FALSE", {}, FALSE),
        ("a > 5 AND TRUE", {}, NULL),
        ("a > 5 OR TRUE", {}, TRUE),
        ("a > 5 OR FALSE", {}, NULL),
        ("NULL", {}, NULL),
        ("TRUE", {}, TRUE),
        # the order decides whether a value that does not fit is looked at
        ("TRUE OR a > 5", {"a": "x"}, TRUE),
        ("a > 5 OR TRUE", {"a": "x"}, UNFIT),
        ("FALSE AND a > 5", {"a": "x"}, FALSE),
        ("b > 5 AND a > 5", {"a": "x"}, UNFIT),
        ("-(a = 5) IS NULL", {"a": "x"}, UNFIT),
        ("-(a = 5) IS NULL", {"a": "5"}, TRUE),
        ("(a = 5) CONTAINS 'x'", {"a": "x"}, UNFIT),
        ("(a = 5) CONTAINS 'x'", {"a": "5"}, FALSE),
        ("(a = 5) CONTAINS ''", {"a": "x"}, FALSE),
        # ranges, lists, searches
        ("a BETWEEN 1 AND 3", {"a": "3"}, TRUE),
        ("a NOT BETWEEN 1 AND 3", {"a": "3"}, FALSE),
        ("a NOT BETWEEN 1 AND 3", {"a": "4"}, TRUE),
        ("a IN ('x', 'it''s')", {"a": "it's"}, TRUE),
        ("a NOT IN ('x')", {"a": "y"}, TRUE),
        ("a CONTAINS 'bc'", {"a": "abcd"}, TRUE),
        ("a STARTSWITH 'bc'", {"a": "abcd"}, FALSE),
        ("a NOT ENDSWITH 'bc'", {"a": "abcd"}, TRUE),
        ("a CONTAINS ''", {"a": "abcd"}, FALSE),
        ("a NOT CONTAINS ''", {"a": "abcd"}, FALSE),
        ("a CONTAINS 'é'", {"a": "café"}, TRUE),
        # what binds first
        ("not a = 1", {"a": "2"}, FALSE),
        ("a = 1 = 1", {"a": "1"}, FALSE),
        # other names of the message
        ("TAGS = 'paid' AND KEYS CONTAINS 'o-1'", {"TAGS": "paid", "KEYS": "o-1 o-2"}, TRUE),
        ("A = 'x'", {"a": "x"}, NULL),
    ],
)  # fmt: skip
def test_an_expression_says_of_a_message(expression, found, verdict):
    ready, block = sql92.compile(expression), block_of(found)

    assert ready.outcome(block).verdict is verdict
    assert ready.matches(block) is (verdict is TRUE)
    assert ready.matching([block, b"", block]) == [at for at in (0, 1, 2) if ready.matches((block, b"", block)[at])]


@pytest.mark.parametrize(
    ("expression", "block", "matches"),
    [
        ("a = '\ufffd'", b"a\x01\xff\x02", True),
        ("a IN ('x\ufffd')", b"a\x01x\xff\x02", True),
        ("a = b", b"a\x01\xff\x02b\x01\xfe\x02", True),
        ("a CONTAINS 'é'", b"a\x01\xe4\xc3\xa9\x02", True),
        ("a = 'x'", b"a\x01x\x02a\x01y\x02", False),
        ("a = 'y'", b"a\x01x\x02a\x01y\x02a\x01\x02", True),
        ("a = 'x'", b"aa\x01x\x02", False),
        ("a = 'x'", b"b\x01a\x01x\x02", False),
        ("a = 'x'", b"", False),
        ("a = 'x'", b"\x02\x01\x02a", False),
    ],
)
def test_odd_bytes_of_properties_are_taken_as_the_decoder_takes_them(expression, block, matches):
    assert sql92.compile(expression).matches(block) is matches


pieces = st.sampled_from(
    [b"a", b"aa", b"b", b"x", b"\x01", b"\x01", b"\x02", b"\x02", b"\x02a\x01", b"\xc3\xa9", b"\xff", b"\xe4\xb8"]
)


@given(st.lists(pieces, max_size=20).map(b"".join))
def test_properties_are_those_that_the_decoder_finds(block):
    assert {name.decode(): value.decode() for name, value in table(block).items()} == decode(block)


def test_why_a_message_cannot_be_evaluated_is_told():
    wanted = sql92.compile("amount > 5")

    assert wanted.outcome(b"amount\x016.5\x02") == (UNFIT, "'6.5' is not a whole number of 32 bits")
    assert len(wanted.outcome(b"amount\x01" + b"x" * 30_000).reason) < 100


def test_a_filter_names_its_properties_and_its_cost():
    wanted = sql92.compile("b = 'x' AND a > 5 OR b IS NULL")

    assert wanted.names == ("a", "b")
    assert (wanted.steps, wanted.scans) == (16, 0)
    assert sql92.compile("a > b OR a > 5.5 OR a CONTAINS 'x' OR a = 5 OR a IN ('x')").scans == 4


def test_the_worst_message_for_the_worst_expression_takes_no_long_time():
    for expression in (
        " OR ".join(["a CONTAINS 'xy'"] * 128),
        " OR ".join(["a = 5.5"] * 128),
        " OR ".join(["a = 5"] * 250),
        " OR ".join(["a > b"] * 64),
    ):
        for text in (b"x" * 16_000, b"1" * 16_000, b"0" * 16_000, b"1" * 16_000 + b"x", b" " * 16_000):
            wanted, block = sql92.compile(expression), b"a\x01" + text + b"\x02b\x01" + text
            began = time.process_time()

            assert not wanted.matches(block)
            assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("'TAGS' = 'a'", ["'TAGS' = 'a' reads no property and is always false; the name of a property has no quotes"]),
        ("a > 1 AND 1 = 1", ["1 = 1 reads no property and is always true"]),
        ("5 BETWEEN 1 AND 3", ["5 >= 1 reads no property and is always true", "5 <= 3 reads no property and is always false"]),
        ("NOT (1 > 2)", ["1 > 2 reads no property and is always false"]),
        ("a", ["a alone is never true: compare it, or write a IS NOT NULL"]),
        ("TRUE", []),
        ("a = 'x' OR b IN ('y') OR c IS NULL OR d CONTAINS 'z' OR e > f", []),
        (" OR ".join(["1 = 2"] * 20), ["1 = 2 reads no property and is always false"] * 8),
    ],
)
def test_conditions_that_say_the_same_of_every_message_are_named(expression, said):
    assert sql92.compile(expression).constants() == said
