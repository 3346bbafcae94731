"""Tests of the bodies by name: each keeps its content both ways in both key forms; and of settings as text."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.model import ConsumeType, MessageModel, MessageQueue
from halfmoon.wire import bodies
from halfmoon.wire.bodies import (
    CONFIG_LINES_MAX,
    BadBody,
    ConsumeFromWhere,
    ConsumeResult,
    MessageRequestMode,
    QueueData,
    config_text,
    from_json,
    parse_config_text,
    to_json,
)

BODIES = [
    value for name in bodies.__all__ if isinstance(value := getattr(bodies, name), type) and issubclass(value, msgspec.Struct)
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@cache
def strategy(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a field's type."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return TEXT
    if kind in (str, bool):
        return TEXT if kind is str else st.booleans()
    if kind is int:
        return st.integers(0, 2**62)
    if kind is float:
        return st.floats(allow_nan=False, allow_infinity=False)
    if kind is MessageQueue:
        return st.builds(MessageQueue, TEXT, TEXT, st.integers(0, 99))
    if kind is QueueData:  # a route of more queues than a client takes is refused
        return st.builds(QueueData, TEXT, st.integers(-9, 99), st.integers(-9, 99), st.integers(0, 7), st.integers(0, 7))
    if kind in (ConsumeType, MessageModel, ConsumeFromWhere, ConsumeResult, MessageRequestMode):
        return st.sampled_from(list(kind))
    if origin is list:
        return st.lists(strategy(parts[0]), max_size=2)
    if origin is tuple:
        return st.tuples(*map(strategy, parts))
    if origin is dict:
        return st.dictionaries(strategy(parts[0]), strategy(parts[1]), max_size=2)
    if type(None) in parts:
        return st.none() | strategy(next(part for part in parts if part is not type(None)))
    if hasattr(kind, "__metadata__"):
        low, high = kind.__metadata__[0].ge, kind.__metadata__[0].le
        return st.integers(low, high)
    assert issubclass(kind, msgspec.Struct), kind
    return st.builds(kind, **{field.name: strategy(field.type) for field in msgspec.structs.fields(kind)})


def refuse_nulls_and_types(value: Any) -> None:
    """Fail when JSON has a null or a class name anywhere."""
    assert value is not None
    if isinstance(value, dict):
        assert "@type" not in value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        refuse_nulls_and_types(item)


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
@settings(max_examples=12)
@given(data=st.data())
def test_a_body_keeps_its_content_with_raw_and_with_quoted_keys_and_carries_no_nulls_or_types(cls, data):
    value = data.draw(strategy(cls))

    for quoted in (False, True):
        assert from_json(cls, to_json(value, quoted=quoted)) == value
    refuse_nulls_and_types(msgspec.json.decode(to_json(value, quoted=True)))


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_an_empty_object_is_a_body_with_its_defaults(cls):
    assert from_json(cls, b"{}") == cls()


def test_the_names_of_the_package_are_all_there():
    assert all(hasattr(bodies, name) for name in bodies.__all__)
    assert len(bodies.__all__) == len(set(bodies.__all__))


# ---------------------------------------------------------------- settings as text


def test_settings_are_lines_of_name_and_value():
    text = config_text({"brokerName": "broker-a", "a.b": "x=y:z", "empty": ""})

    assert text == b"brokerName=broker-a\na.b=x=y:z\nempty=\n"
    assert parse_config_text(text) == {"brokerName": "broker-a", "a.b": "x=y:z", "empty": ""}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"", {}),
        (b"# a=b\n! c=d\n\n  \n", {}),
        (b" a = b \r\n c : d ", {"a": "b", "c": "d"}),
        (b"a", {"a": ""}),
        (b"=b", {}),
        (b"a\\=b\\:c=d\\\\e\\", {"a=b:c": "d\\e"}),
        (b"a=1\na=2", {"a": "2"}),
    ],
)
def test_settings_are_read_as_java_properties(text, found):
    assert parse_config_text(text) == found


def test_a_line_end_inside_a_value_cannot_smuggle_a_setting_in():
    assert parse_config_text(config_text({"a": "b\nc=d"})) == {"a": "b c=d"}


@given(st.binary(max_size=100))
def test_any_bytes_are_settings_or_refused(data):
    try:
        parse_config_text(data)
    except BadBody:
        pass


def test_more_lines_than_any_broker_has_are_refused():
    with pytest.raises(BadBody):
        parse_config_text(b"a=b\n" * (CONFIG_LINES_MAX + 1))
