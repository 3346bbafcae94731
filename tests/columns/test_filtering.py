"""What filters look at, with both twins: tags of entries, properties of records, and what a sieve is sure of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.sql92 import compile
from halfmoon.sql92.sieve import program
from tests.columns.test_twins import HOSTS, damaged

tagged = st.tuples(st.binary(max_size=30), st.sampled_from([b"", b"K\x01v\x02"]), st.booleans(), st.integers(-2, 2))


@given(st.data(), st.lists(tagged, max_size=20))
def test_the_same_properties_are_found(twins, data, made):
    python, native = twins
    drafts = [(body, text, 0, 0x10 * wide, 1, HOSTS[1] if wide else HOSTS[0], 0, 0, code) for body, text, wide, code in made]
    records, entries = python.Messages(drafts).encode("T", 0, 0, 50, 1 << 30, 1 << 30, 1, b"\x7f\0\0\1\0\0\x2a\x9f")
    seen, pointers = damaged(bytes(records), data.draw), damaged(bytes(entries), data.draw)
    pointers = pointers[: len(pointers) // 20 * 20]
    base, most = data.draw(st.sampled_from([50, 50, 50, 49])), data.draw(st.sampled_from([1 << 20, 1 << 20, 12, 0]))

    found = python.properties_of(memoryview(seen), base, pointers, most)
    assert native.properties_of(memoryview(seen), base, pointers, most) == found
    if (seen, pointers, base, most) == (bytes(records), bytes(entries), 50, 1 << 20):
        assert found == [draft[1] for draft in drafts]
    for codes in ([1], [0, 2], list(range(-2, 12))):
        assert native.tag_matches(pointers, codes) == python.tag_matches(pointers, codes)
    if pointers == bytes(entries):
        assert python.tag_matches(pointers, [1]) == [index for index, draft in enumerate(drafts) if draft[8] == 1]


EXPRESSIONS = [
    "a > 5", "a <= 2.5", "a = -3", "3 < a", "a = 'x'", "a <> 'x' OR b IS NULL", "a IN ('x', '5')", "a IS NOT NULL",
    "a BETWEEN 1 AND 9 AND b = 'x'", "a CONTAINS 'x'", "b NOT STARTSWITH 'x'", "a ENDSWITH '5' OR c = TRUE", "a > b", "a = b", "a",
    "NOT (a = 'x' AND b > 3)", "(a = 'x') = TRUE", "a = 9223372036854775807", "NULL IS NULL OR a = 'x'", "a < 1e300",
]  # fmt: skip
VALUES = [
    b"",
    b"x",
    b"y",
    b"5",
    b"007",
    b"-3",
    b"2.5",
    b" 5",
    b"123456789",
    b"1234567890",
    b"\xff",
    b"\xd9\xa3",
    b"5\x01x",
    b"true",
]
pairs_of_values = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"ba"]), st.sampled_from(VALUES)), max_size=6)


@given(st.sampled_from(EXPRESSIONS), st.lists(pairs_of_values, max_size=5))
def test_of_what_a_sieve_is_sure_the_expression_says_the_same(twins, expression, messages):
    wanted = compile(expression)
    blocks = [b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs) for pairs in messages]
    matching = {index for index, block in enumerate(blocks) if wanted.matches(block)}
    for twin in twins:
        sure, unsure = twin.Sieve(wanted.needles[0] if len(wanted.needles) == 1 else None, program(wanted.tree)).matching(blocks)
        assert sure == sorted(sure)
        assert unsure == sorted(unsure)
        assert set(sure) <= matching <= set(sure) | set(unsure)
        assert not set(sure) & set(unsure)


def test_a_sieve_knows_of_usual_messages_whether_they_match(twins):
    blocks = [b"a\x01%d\x02b\x01x\x02" % number for number in range(20)]
    for expression in ("a > 5 AND b = 'x'", "a BETWEEN 3 AND 7 OR c IS NULL", "b IN ('x', 'y') AND NOT (a = 3)", "b CONTAINS 'x'"):
        wanted = compile(expression)
        expected = [index for index, block in enumerate(blocks) if wanted.matches(block)]
        assert twins[1].Sieve(None, program(wanted.tree)).matching(blocks) == (expected, [])


def test_many_conditions_on_long_properties_are_left_to_the_closures(twins):
    """They make a table first; a look at all properties for each condition would hold the loop for tens of milliseconds."""
    wanted = compile(" OR ".join(f"a = {number}" for number in range(200)))
    short, long = b"a\x017\x02", b"b\x01x\x02" * 8_000 + b"a\x017\x02"
    sure, unsure = twins[1].Sieve(None, program(wanted.tree)).matching([short, long])

    assert (sure, unsure) == ([0], [1])
    assert wanted.matching([short, long]) == [0, 1]
