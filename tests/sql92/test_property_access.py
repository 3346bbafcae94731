"""Both ways to a property find what the decoder of properties finds, on any bytes."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from halfmoon.sql92.property_access import in_bytes, in_table, mended, same_text, table
from halfmoon.wire.properties import decode

pieces = st.sampled_from(
    [b"a", b"aa", b"b", b"x", b"\x01", b"\x01", b"\x02", b"\x02", b"\x02a\x01", b"\xc3\xa9", b"\xff", b"\xe4\xb8"]
)


@given(st.lists(pieces, max_size=20).map(b"".join))
@example(b"a\x01x\x02a\x01\x02")
@example(b"a\x01\x02a\x01x")
@example(b"\x02a\x01")
@example(b"a\x01x\x01y\x02")
@example(b"aa\x01x\x02a")
def test_a_property_is_found_as_the_decoder_finds_it(block):
    expected = decode(block).get("a")
    found = [in_bytes("a")(block), in_table("a")(table(block))]

    assert found[0] == found[1]
    assert (None if found[0] is None else found[0].decode("utf-8", "replace")) == expected
    assert mended(in_bytes("a"))(block) == (None if expected is None else expected.encode())


def test_many_empty_values_of_one_name_take_no_long_time():
    block = b"a\x01x\x02" + b"a\x01\x02" * 10_000
    began = time.process_time()

    assert in_bytes("a")(block) == b"x"
    assert in_bytes("a")(block[4:]) is None
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(b"x", b"x", True), (b"x", b"y", False), (b"\xff", b"\xfe", True), (b"\xff", "\ufffd".encode(), True), (b"\xff", b"x", False)],
)
def test_texts_that_are_no_utf_8_are_compared_as_they_are_decoded(one, other, same):
    assert same_text(one, other) is same_text(other, one) is same
