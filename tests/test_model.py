"""Messages as users write them, subscriptions, addresses, and Java's hash of tags and keys as records and indexes have it."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.hot import tag_hash
from halfmoon.model import Message, java_hash, one_line, split_address, split_addresses, subscription, tags_of
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


def test_a_message_travels_with_its_own_properties_and_the_protocol_s():
    message = Message("orders", b"", tag="paid", keys=("k1", "k2"), properties={"colour": "red"}, delay_level=3, wait_store=False)
    assert message.wire_properties() == {"colour": "red", "KEYS": "k1 k2", "TAGS": "paid", "DELAY": "3", "WAIT": "false"}
    assert message.properties == {"colour": "red"}
    assert Message("orders", b"").wire_properties() == {"WAIT": "true"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("t", b"", properties={"TAGS": "x"}), "is used by system"),
        (Message("t", b"", properties={" ": "x"}), "null or blank"),
        (Message("t", b"", properties={"a": " "}), "null or blank"),
        (Message("t", b"", properties={"a": "b\x01"}), "property 'a' contains a separator"),
        (Message("t", b"", properties={"a\x02": "b"}), "contains a separator"),
        (Message("t", b"", tag="a\x02b"), "property 'TAGS' contains a separator"),
        (Message("t", b"", keys="a\x01b"), "property 'KEYS' contains a separator"),
    ],
)
def test_what_a_property_cannot_hold_is_refused(message, reason):
    with pytest.raises(MessageIllegal, match=reason):
        message.wire_properties()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message("t", b"", keys=["o-1", "order 7"]), "key 'order 7' has a blank, .*use 'order-7', or a user property"),
        (Message("t", b"", keys=["a\tb"]), "use 'a-b'"),
        (Message("t", b"", tag="a || b"), r"tag 'a \|\| b' cannot be subscribed to.*use 'a-b', or a user property"),
        (Message("t", b"", tag=" paid"), "use 'paid', or a user property, which SQL92 finds"),
        (Message("t", b"", tag="*"), "use a user property"),
        (Message("t", b"", tag=" "), "use a user property"),
    ],
)
def test_keys_and_tags_that_nothing_finds_are_refused_with_the_alternative(message, reason):
    with pytest.raises(MessageIllegal, match=reason):
        message.wire_properties()


@given(st.text("ab |*\t\u2003", min_size=1))
def test_each_tag_that_is_sent_is_what_a_list_of_tags_reads_it_as(tag):
    try:
        sent = Message("t", b"", tag=tag).wire_properties()["TAGS"]
    except MessageIllegal:
        assert tag == "*" or tag not in {*(part.strip() for part in tag.split("||"))}
    else:
        assert tags_of(sent) == {sent} != {"*"}


@given(st.lists(st.text("ab \t\u2003", min_size=1)))
def test_each_key_that_is_sent_is_found_as_it_was_given(keys):
    try:
        sent = Message("t", b"", keys=keys).wire_properties().get("KEYS", "")
    except MessageIllegal:
        assert any(key.split() != [key] for key in keys)
    else:
        assert sent.split() == keys


def test_one_text_of_keys_may_hold_several_and_a_tag_may_hold_blanks_inside():
    found = Message("t", b"", keys="k1 k2", tag="not paid").wire_properties()

    assert (found["KEYS"], found["TAGS"]) == ("k1 k2", "not paid")
    assert Message("t", b"", keys=["k1", ""]).wire_properties()["KEYS"].split() == ["k1"]


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
