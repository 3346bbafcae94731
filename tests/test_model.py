"""Subscriptions, addresses, and Java's hash of tags and keys as records and indexes have it."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import UsageError
from halfmoon.hot import tag_hash
from halfmoon.model import java_hash, one_line, split_address, split_addresses, subscription
from halfmoon.wire import properties

SLOTS = 5_000_000


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("TagT", 2598938),
        ("orderCreated", 1918589882),
        ("中文", 646394),
        ("polygenelubricants", -(2**31)),
    ],
)
def test_the_worked_hashes_are_java_s(text, value):
    assert java_hash(text) == value


@given(st.text(max_size=30))
def test_a_hash_counts_utf_16_units_in_32_signed_bits(text):
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + 256 * high + low) % 2**32

    assert java_hash(text) == (value - 2**32 if value >= 2**31 else value)


@pytest.mark.parametrize(("value", "data"), [(2598919, "000000000027a807"), (-1829193424, "ffffffff92f8b930")])
def test_a_tag_hash_is_extended_by_its_sign_in_a_queue_entry(value, data):
    assert pack(">q", value).hex() == data


def test_the_hash_with_its_sign_extended_belongs_to_a_known_key():
    assert abs(java_hash("TopicTest#order-1")) == 1829193424


@pytest.mark.parametrize(("key", "slot"), [("T#k1", 2539445), ("TopicTest#order-1", 4193424)])
def test_a_key_of_the_index_lies_in_its_worked_slot(key, slot):
    assert abs(java_hash(key)) % SLOTS == slot


@pytest.mark.mission("001-05")
def test_a_subscription_of_several_tags_has_each_tag_and_each_hash():
    found = subscription("t", " TagA || TagT ||")

    assert found.tags == {"TagA", "TagT"}
    assert found.codes == {2598919, 2598938}


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=12))
def test_the_hash_of_bytes_is_the_same(tag):
    assert tag_hash(tag.encode()) == java_hash(tag)


def test_any_text_becomes_one_line_that_a_property_can_hold():
    assert one_line("  a\x01b\x02\n c\ud800 \u4e2d") == "a b c \u4e2d"
    assert one_line("x" * 9, 4) == "xxxx"
    assert one_line("abc  def", 4) == "abc"
    assert properties.decode(properties.encode({"why": one_line("\x01\x02z")})) == {"why": "z"}


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a:1", ("a", 1)), ("[::1]:9876", ("::1", 9876)), ("::1:9876", ("::1", 9876)), ("x.y:65535", ("x.y", 65535))],
)
def test_an_address_is_split_at_its_last_colon(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:x", "a:-1"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(UsageError, match="not an address of the form host:port"):
        split_address(address)
    with pytest.raises(UsageError):
        split_addresses(f"a:1;{address or 'b'}")


def test_addresses_are_joined_by_semicolons_or_commas():
    assert split_addresses(" a:1; b:2,c:3;; ") == split_addresses(["a:1", "b:2 ", "c:3"]) == ["a:1", "b:2", "c:3"]
