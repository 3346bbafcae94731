"""Messages as users write them: what is wrong is refused by the name of its field, and the rest travels as properties."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import MessageIllegal
from halfmoon.model import Message, tags_of


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


WRONG: dict[str, list[Any]] = {
    "topic": [5, b"orders", ["orders"]],
    "body": [5, "paid", {"a": 1}, bytes],
    "tag": [5, 0, b"paid", ["paid"]],
    "keys": [5, None, b"k1", {"k1": 1}, iter(["k1"])],
    "properties": [5, None, [("a", "b")], "a=b"],
    "flag": ["1", None, 1.0, True],
    "wait_store": ["no", None, 0],
    "delay_level": ["3", None, 3.0, True],
    "transaction_id": [5, b"id"],
    "delay": ["5 s", b"5", True, datetime(2026, 1, 1)],
    "deliver_at": ["tomorrow", 1.5e12, timedelta(1), False],
    "msg_id": [5, b"id", ["id"]],
    "attempt": ["2", None, 2.0],
}


def test_every_field_has_a_type_that_is_tested():
    assert [*WRONG] == [*Message.__struct_fields__]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_field_of_a_wrong_type_is_refused_with_its_name_the_type_found_and_the_type_wanted(name: str, value: Any):
    message = Message(**{"topic": "orders", "body": b"paid", name: value})  # type: ignore[arg-type]
    for _ in range(2):  # what fitted is remembered, and nothing else
        with pytest.raises(MessageIllegal, match=rf"^{name} is .* \({type(value).__name__}\): give [a-zA-Z]"):
            message.check_types()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"keys": [1]}, r"keys, an element of which is 1 \(int\): give a text"),
        ({"keys": ("k1", b"k2")}, r"an element of which is b'k2' \(bytes\)"),
        ({"properties": {"a": 1}}, r"properties\['a'\] is 1 \(int\): give a text"),
        ({"properties": {"a": None}}, r"properties\['a'\] is None \(NoneType\)"),
        ({"properties": {1: "a"}}, r"properties, a name in which is 1 \(int\): give a text"),
    ],
)
def test_elements_of_a_wrong_type_are_refused_with_their_place(fields: dict[str, Any], told: str):
    message = Message("orders", b"paid", **fields)
    message.check_types()
    with pytest.raises(MessageIllegal, match=told):
        message.wire_properties()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"delay_level": -1}, "delay_level is 1 to 18, or 0 for none, not -1"),
        ({"flag": 2**31}, "flag is a number of 32 bits"),
        ({"flag": -(2**31) - 1}, "flag is a number of 32 bits"),
    ],
)
def test_a_number_that_no_broker_takes_is_refused(fields: dict[str, Any], told: str):
    with pytest.raises(MessageIllegal, match=told):
        Message("orders", b"paid", **fields).wire_properties()


def test_what_a_field_may_be_passes():
    for fields in (
        {},
        {"body": bytearray(b"a"), "tag": "", "keys": "k1 k2", "delay": 1.5},
        {"body": memoryview(b"a"), "keys": {"k1"}, "delay": timedelta(1)},
        {"delay_level": 3, "keys": ["k1"], "properties": {"a": "b"}, "flag": 7, "wait_store": False},
        {"deliver_at": datetime(2026, 1, 1), "msg_id": "m1", "attempt": 2, "transaction_id": "t"},
    ):
        Message(**{"topic": "orders", "body": b"paid", **fields}).check_types()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"tags": "paid"}, "Message has no argument 'tags': tags of rocketmq-client-python is tag"),
        (
            {"delay_time_level": 3},
            "Message has no argument 'delay_time_level': delay_time_level of rocketmq-client-python is delay_level",
        ),
        ({"propertys": {}}, "Message has no argument 'propertys': did you mean 'properties'?"),
        ({"shard": 1}, "Message has no argument 'shard': it has topic, body, tag"),
    ],
)
def test_an_argument_that_a_message_has_not_is_told_by_the_one_that_was_meant(fields: dict[str, Any], told: str):
    with pytest.raises(TypeError) as refused:
        Message("orders", b"paid", **fields)
    assert str(refused.value).startswith(told)


def test_arguments_that_are_missing_or_too_many_are_a_type_error_as_of_any_class():
    with pytest.raises(TypeError, match="body"):
        Message("orders")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Message("orders", b"paid", *range(20))  # type: ignore[arg-type]
