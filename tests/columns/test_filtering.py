"""What filters look at, with both twins: tags of entries, properties of records, and what a bulk filter is sure of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.sql92 import compile
from halfmoon.sql92.parser import parse
from tests.columns.test_twins import HOSTS, damaged

PLENTY = 1 << 40
tagged = st.tuples(st.binary(max_size=30), st.sampled_from([b"", b"K\x01v\x02"]), st.booleans(), st.integers(-2, 2))


@given(st.data(), st.lists(tagged, max_size=20))
def test_the_same_properties_are_found(twins, data, made):
    python, native = twins
    drafts = [(body, text, 0, 0x10 * wide, 1, HOSTS[1] if wide else HOSTS[0], 0, 0, code) for body, text, wide, code in made]
    records, entries = python.Messages(drafts).encode("T", 0, 0, 50, 1 << 30, 1 << 30, 1, b"\x7f\0\0\1\0\0\x2a\x9f")
    seen, pointers = damaged(bytes(records), data.draw), damaged(bytes(entries), data.draw)
    pointers = pointers[: len(pointers) // 20 * 20]
    base = data.draw(st.sampled_from([50, 50, 50, 49]))

    found = python.BulkFilter(None).records(memoryview(seen), base, pointers, PLENTY, 1, 1, 9)[:4]
    assert native.BulkFilter(None).records(memoryview(seen), base, pointers, PLENTY, 1, 1, 9)[:4] == found
    if (seen, pointers, base) == (bytes(records), bytes(entries), 50):
        assert found == ([], list(range(len(drafts))), [draft[1] for draft in drafts], len(drafts))
    for codes in ([1], [0, 2], list(range(-2, 12))):
        for most in (100, 1):
            assert native.tag_matches(pointers, codes, most) == python.tag_matches(pointers, codes, most)
    if pointers == bytes(entries):
        assert python.tag_matches(pointers, [1], 3) == [index for index, draft in enumerate(drafts) if draft[8] == 1][:3]


def stored(twin, blocks, bodies=(b"",), between=0):
    """Return an area of records with these properties, its offset, and their entries; other records lie between."""
    others = [(b"", b"", 0, 0, 1, HOSTS[0], 0, 0, 0)] * between
    drafts = [
        each for at, block in enumerate(blocks) for each in [(bodies[at % len(bodies)], block, 0, 0, 1, HOSTS[0], 0, 0, 0), *others]
    ]
    records, entries = twin.Messages(drafts).encode("T", 0, 0, 0, 1 << 40, 1 << 30, 1, HOSTS[0])
    step = 20 * (1 + between)
    return memoryview(records), 0, b"".join(entries[at : at + 20] for at in range(0, len(entries), step))


def test_records_of_all_sizes_are_copied_as_they_lie(twins):
    """Together, one by one where others lie between, and large ones in two pieces; in whichever order the entries name them."""
    blocks = [b"n\x01%d\x02" % number + b"x" * (number * 7 % 300) for number in range(300)]
    for between in (0, 3, 40):
        area, _, entries = stored(twins[0], blocks, (b"", b"B" * 600, b"B" * 3000, b"B" * 70_000), between)
        for order in (range(300), range(299, -1, -1), sorted(range(300), key=lambda number: number * 7919 % 300)):
            pointers = b"".join(entries[at * 20 : at * 20 + 20] for at in order)
            for twin in twins:
                found = twin.BulkFilter(None).records(area, 0, pointers, PLENTY, 1, 1, 9)[:4]
                assert found == ([], list(range(300)), [blocks[at] for at in order], 300), between


def test_no_more_properties_are_given_out_at_once_than_are_tested_soon(twins):
    few, many = [b"x" * 30_000] * 60, [b"a\x011\x02"] * 1_000
    for twin in twins:
        for blocks, count in ((few, 9), (many, 512)):
            found = twin.BulkFilter(None).records(*stored(twin, blocks), PLENTY, 1, 1, 9)
            assert (found[1], len(found[2]), found[3]) == (list(range(count)), count, count)


def test_a_bulk_filter_ends_with_the_message_that_uses_up_the_steps(twins):
    records = stored(twins[0], [b"a\x01%d\x02" % number for number in range(100)])
    for twin in twins:
        bulk_filter = twin.BulkFilter(None)
        whole = bulk_filter.records(*records, PLENTY, 50, 100, 9)
        assert whole[3] == 100
        assert 100 * (50 + 4) < whole[4] < 100 * (50 + 12)
        *_, looked, spent = bulk_filter.records(*records, 1_000, 50, 100, 9)
        assert 10 < looked < 20
        assert 1_000 <= spent < 1_100
        assert bulk_filter.records(*records, -7, 50, 100, 9)[3] == 1  # a reader always gets on


def test_of_messages_that_the_compiled_twin_is_sure_of_others_are_not_paid(twins):
    records = stored(twins[0], [b"a\x01%d\x02" % (number % 7) for number in range(100)])
    sure, unsure, _, looked, spent = twins[1].BulkFilter(parse("a = 3")).records(*records, PLENTY, 1_000, 1, 9)
    assert (sure, unsure, looked) == (list(range(3, 63, 7)), [], 60)  # and the others are of no use
    assert 0 < spent < 60


EXPRESSIONS = [
    "a > 5", "a <= 2.5", "a = -3", "3 < a", "a = 'x'", "a <> 'x' OR b IS NULL", "a IN ('x', '5')", "a IS NOT NULL",
    "a BETWEEN 1 AND 9 AND b = 'x'", "a CONTAINS 'x'", "b NOT STARTSWITH 'x'", "a ENDSWITH '5' OR c = TRUE", "a > b", "a = b", "a",
    "NOT (a = 'x' AND b > 3)", "(a = 'x') = TRUE", "a = 9223372036854775807", "NULL IS NULL OR a = 'x'", "a < 1e300",
    "a IS NULL AND b IS NULL OR c > 1 OR ba = 'x' OR d = 'x' AND e > 4", "a = '\ufffd'", "a NOT IN ('\ufffd', 'x')",
    "a CONTAINS '\ufffd'",
    "5 >= a", "a STARTSWITH '5' AND b = c", "a CONTAINS ''", "-a = 5", "a = -2.5",
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


@given(st.sampled_from(EXPRESSIONS), st.lists(pairs_of_values, max_size=5) | st.lists(pairs_of_values, min_size=16, max_size=24))
def test_of_what_a_bulk_filter_is_sure_the_expression_says_the_same(twins, expression, messages):
    wanted = compile(expression)
    blocks = [b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs) for pairs in messages]
    matching = {index for index, block in enumerate(blocks) if wanted.matches(block)}
    for twin in twins:
        bulk_filter = twin.BulkFilter(wanted.tree)
        sure, unsure = bulk_filter.matching(blocks)
        assert sure == sorted(sure)
        assert unsure == sorted(unsure)
        assert set(sure) <= matching <= set(sure) | set(unsure)
        assert not set(sure) & set(unsure)
        again = bulk_filter.records(*stored(twin, blocks), PLENTY, 1, 1, 99)
        assert again[:2] == (sure, unsure)
        assert again[2:4] == ([blocks[index] for index in again[1]], len(blocks))


def test_a_bulk_filter_knows_of_usual_messages_whether_they_match(twins):
    blocks = [b"a\x01%d\x02b\x01x\x02" % number for number in range(20)]
    for expression in ("a > 5 AND b = 'x'", "a BETWEEN 3 AND 7 OR c IS NULL", "b IN ('x', 'y') AND NOT (a = 3)", "b CONTAINS 'x'"):
        wanted = compile(expression)
        expected = [index for index, block in enumerate(blocks) if wanted.matches(block)]
        assert twins[1].BulkFilter(wanted.tree).matching(blocks) == (expected, [])


def test_a_node_that_the_compiled_twin_does_not_know_leaves_it_unsure(twins):
    class Prime:
        """A predicate that somebody added to the tree."""

    assert twins[1].BulkFilter(Prime()).matching([b"a\x017\x02"]) == ([], [0])


def test_many_conditions_on_long_properties_are_left_to_the_predicates(twins):
    """A look at all properties for each condition would hold the loop for tens of milliseconds."""
    wanted = compile(" OR ".join(f"a = {number}" for number in range(200)))
    short, long = b"a\x017\x02", b"b\x01x\x02" * 8_000 + b"a\x017\x02"
    sure, unsure = twins[1].BulkFilter(wanted.tree).matching([short, long])

    assert (sure, unsure) == ([0], [1])
    assert wanted.matching([short, long]) == [0, 1]
