"""Tests that a long batch read a column at a time is what the drafts of the hot road say, or is left to it."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon import hot
from halfmoon.store import arrays
from halfmoon.store.long_items import COUNT_MIN, LongItems, long_count, long_items
from halfmoon.wire.record import encode_batch


@pytest.fixture(autouse=True, scope="module")
def numpy():
    """numpy, loaded as the index does it."""
    arrays.load()


SUFFIX = b"CLUSTER\x01c\x02"
MAX = 32767
NAMES = ["KEYS", "TAGS", "WAIT", "UNIQ_KEY", "a", "TAG", "WAITS", "KEYS\x01TAGS", ""]

pairs = st.tuples(st.sampled_from(NAMES), st.sampled_from(["x", "true", "AB", "ä", "中" * 30, ""]))
texts = st.lists(pairs, min_size=1, max_size=4).map(
    lambda found: "".join(f"{name}\x01{value}\x02" for name, value in found).encode()
)
items = st.tuples(st.binary(max_size=12) | st.just(b"a\x02TAGS\x01b\x02"), texts, st.integers(-(2**31), 2**31 - 1))


def read(body: bytes, count_max: int = 1000) -> LongItems | None:
    return long_items(body, count_max, MAX - len(SUFFIX))


def drafts(body: bytes) -> list | None:
    return hot.batch_drafts(body, SUFFIX, 0, 5, b"h" * 8, 0, 1000, MAX)


def same(found: LongItems, wanted: list) -> None:
    assert found.body_bytes.tolist() == [len(body) for body in found.bodies]
    assert found.properties_bytes.tolist() == [len(text) for text in found.properties]
    rows = zip(found.bodies, found.properties, found.flags.tolist(), found.tag_hashes.tolist(), strict=True)
    assert [(body, text + SUFFIX, flag, code) for body, text, flag, code in rows] == [(d[0], d[1], d[2], d[8]) for d in wanted]


@settings(max_examples=150, deadline=None)
@given(st.lists(items, min_size=1, max_size=8), st.data())
def test_a_long_batch_is_what_its_drafts_say(found, data):
    messages = (found * COUNT_MIN)[: COUNT_MIN + 9]
    body = encode_batch(messages)
    if damaged := data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]

    read_at_once, wanted = read(body), drafts(body)
    assert long_count(body, 1000, MAX - len(SUFFIX)) == (None if read_at_once is None else len(read_at_once.bodies))

    if read_at_once is not None:
        same(read_at_once, wanted)
    else:
        assert damaged or wanted is None


@pytest.mark.parametrize("other", [
    b"DELAY\x013\x02", b"TIMER_DELAY_MS\x013\x02", b"TRAN_MSG\x01true\x02", b"CLUSTER\x01x\x02", b"INNER_REPEAT\x012\x02",
    b"DELAY\x02", b"WAIT\x01true\x02WAIT\x01true\x02", b"a\x01\xff\x02", b"a\x01b", b"", b"a\x01" + b"b" * (MAX - 10) + b"\x02",
])  # fmt: skip
@pytest.mark.parametrize("place", [0, 40, 99])
def test_what_is_not_plain_is_left_to_the_plain_road(other: bytes, place: int):
    messages = [(b"%d" % k, b"UNIQ_KEY\x01%d\x02" % k, k) for k in range(100)]
    assert read(encode_batch(messages)) is not None

    messages[place] = (b"x", other, 0)

    assert read(encode_batch(messages)) is None


def test_a_batch_with_all_kinds_of_tags_has_their_codes():
    for tags in (["A"], ["AB", "CD"], ["A", "long" * 30, "ä"], ["long" * 30], ["A", ""]):
        messages = [(b"x", f"TAGS\x01{tags[k % len(tags)]}\x02".encode() * (k % 3 > 0) + b"a\x01b\x02", 0) for k in range(100)]
        body = encode_batch(messages)

        same(read(body), drafts(body))


def test_the_last_of_several_tags_counts():
    body = encode_batch([(b"x", b"TAGS\x01%d\x02TAGS\x01%d\x02" % (k, k % 7), 0) for k in range(100)])

    same(read(body), drafts(body))


@pytest.mark.parametrize("count", [0, 1, COUNT_MIN - 1])
def test_a_short_batch_is_left_to_the_plain_road(count: int):
    assert read(encode_batch([(b"x", b"a\x01b\x02", 0)] * count)) is None


def test_a_batch_of_too_many_is_left_to_the_plain_road():
    body = encode_batch([(b"x", b"a\x01b\x02", 0)] * 101)
    assert read(body, 101) is not None
    assert read(body, 100) is None


@pytest.mark.parametrize("size", [0, 1, -1, 21, 2**31 - 1, -(2**31)])
def test_sizes_that_cannot_be_do_not_go_on_for_ever(size: int):
    body = encode_batch([(b"x", b"a\x01b\x02", 0)] * 100)
    assert read(size.to_bytes(4, "big", signed=True) + body[4:]) is None
    at = len(body) // 100 * 50
    assert read(body[:at] + size.to_bytes(4, "big", signed=True) + body[at + 4 :]) is None


@pytest.mark.parametrize("messages", [
    [(b"\x02" * 20_000, b"a\x01b\x02", 0)] * 200, [(b"x", b"\x02" * 30_000, 0)] * 130,
])  # fmt: skip
def test_what_would_take_much_memory_in_columns_is_left_to_the_plain_road(messages: list):
    body = encode_batch(messages)

    tracemalloc.start()
    try:
        assert read(body) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < len(body)


def test_bodies_of_any_bytes_are_read_in_columns():
    body = encode_batch([(Random(1).randbytes(20_000), b"a\x01b\x02", 0)] * 200)

    same(read(body), drafts(body))
