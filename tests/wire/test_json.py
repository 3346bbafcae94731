"""Tests of JSON as Java writes it: raw keys, enums, nulls, both ways; and of texts that would hurt."""

from __future__ import annotations

import json
import time
from enum import IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.limits import FRAME_BYTES_MAX
from halfmoon.model import MessageQueue
from halfmoon.wire.json import COMMAS_MAX, DEPTH_MAX, OBJECTS_MAX, REQUEST, BadBody, Body, from_json, standard, to_json
from halfmoon.wire.table import I32, I64


class Colour(IntEnum):
    """An enum of the tests."""

    RED = 0
    DARK_BLUE = 3


class Inner(Body):
    """A body within a body."""

    queue: MessageQueue | None = None
    big_number: I64 = 0


class Outer(Body):
    """A body of the tests with everything in it."""

    text: str = ""
    number: I32 = 0
    yes: bool = False
    rate: float = 0.0
    colour: Colour | None = None
    names: list[str] = msgspec.field(default_factory=list)
    by_number: dict[int, str] = msgspec.field(default_factory=dict)
    by_queue: dict[MessageQueue, Inner] = msgspec.field(default_factory=dict)
    by_name: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    inner: Inner | None = None


class Plain(Body):
    """A body without queues and enums."""

    text: str = ""
    number: I32 = 0
    names: list[str] = msgspec.field(default_factory=list)
    by_number: dict[int, str] = msgspec.field(default_factory=dict)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
QUEUES = st.builds(MessageQueue, TEXT, TEXT, st.integers(-1, 2**31 - 1))
INNERS = st.builds(Inner, st.none() | QUEUES, st.integers(-(2**63), 2**63 - 1))
OUTERS = st.builds(
    Outer,
    TEXT,
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.none() | st.sampled_from(Colour),
    st.lists(TEXT, max_size=3),
    st.dictionaries(st.integers(-5, 100), TEXT, max_size=3),
    st.dictionaries(QUEUES, INNERS, max_size=3),
    st.dictionaries(TEXT, st.dictionaries(st.integers(0, 9), st.integers(0, 2**63 - 1), max_size=3), max_size=3),
    st.none() | INNERS,
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def pruned(value: Any) -> Any:
    """Return a value as it is written: objects without their nulls."""
    if isinstance(value, dict):
        return {key: pruned(item) for key, item in value.items() if item is not None}
    return [pruned(item) for item in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- both ways


@given(OUTERS)
def test_a_body_is_read_as_it_was_written_with_raw_keys_and_with_quoted_ones(value):
    assert from_json(Outer, to_json(value)) == value
    assert from_json(Outer, to_json(value, quoted=True)) == value


@given(OUTERS)
def test_with_quoted_keys_any_json_reader_can_read_a_body(value):
    found = json.loads(to_json(value, quoted=True))

    assert found["text"] == value.text
    assert found["byNumber"] == {str(number): text for number, text in value.by_number.items()}
    assert ":null" not in to_json(msgspec.structs.replace(value, text="", names=[], by_number={}, by_queue={}, by_name={})).decode()


@given(JSON_VALUES, st.sampled_from([None, 2]), st.booleans())
def test_standard_json_is_left_as_it_is(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode()

    assert standard(text) == text


@given(JSON_VALUES)
def test_the_tolerant_reader_reads_standard_json_as_any_other_does(value):
    text = json.dumps({"value": value}).encode()

    assert from_json(dict[str, Any], text) == json.loads(text)
    assert json.loads(to_json(from_json(list[Any], json.dumps([value]).encode()))) == [pruned(value)]


def test_keys_of_objects_are_written_in_alphabetical_order_without_blanks():
    value = Outer(text="t", colour=Colour.DARK_BLUE, by_number={1: "b", 0: "a"})

    assert to_json(value) == (
        b'{"byName":{},"byNumber":{1:"b",0:"a"},"byQueue":{},"colour":"DARK_BLUE","names":[],"number":0,"rate":0.0,"text":"t",'
        b'"yes":false}'
    )


@pytest.mark.mission("004-13")
def test_a_queue_is_topic_broker_name_and_number_as_value_and_as_key():
    queue = MessageQueue("t", "b", 3)

    assert to_json([queue]) == b'[{"brokerName":"b","queueId":3,"topic":"t"}]'
    assert to_json({queue: 1}) == b'{{"brokerName":"b","queueId":3,"topic":"t"}:1}'
    assert to_json({queue: 1}, quoted=True) == b'{"{\\"brokerName\\":\\"b\\",\\"queueId\\":3,\\"topic\\":\\"t\\"}":1}'
    assert from_json(list[MessageQueue], to_json([queue])) == [queue]


def test_sets_are_written_as_sorted_lists():
    assert to_json({"codes": frozenset({3, 1, 2})}) == b'{"codes":[1,2,3]}'


def test_an_int64_stays_exact():
    assert from_json(Inner, b'{"bigNumber":9223372036854775807}').big_number == 2**63 - 1


# ---------------------------------------------------------------- raw keys


@pytest.mark.parametrize(
    ("raw", "quoted"),
    [
        ('{0:"a"}', '{"0":"a"}'),
        ('{0:"a",-1:"b"}', '{"0":"a","-1":"b"}'),
        ('{ 0 : "a" ,\n\t1: "b" }', '{ "0" : "a" ,\n\t"1": "b" }'),
        ('{{"q":1}:2}', '{"{\\"q\\":1}":2}'),
        ('{{"a":{"b":[1,2]}}:2,{}:3}', '{"{\\"a\\":{\\"b\\":[1,2]}}":2,"{}":3}'),
        ("{[1,2]:3}", '{"[1,2]":3}'),
        ("{{0:1}:{2:3}}", '{"{0:1}":{"2":3}}'),
        ("{name:1,true:false}", '{"name":1,"true":false}'),
        ('{"t":{0:[{1:2},{"x":{3:4}}]}}', '{"t":{"0":[{"1":2},{"x":{"3":4}}]}}'),
        ('{"a":"{0:1}","b":"\\"{,:"}', '{"a":"{0:1}","b":"\\"{,:"}'),
        ('{{"q":"}\\"{"}:2}', '{"{\\"q\\":\\"}\\\\\\"{\\"}":2}'),
        ('{{\n"q":1}:2}', '{"{\\n\\"q\\":1}":2}'),
        ("[1,2,{}]", "[1,2,{}]"),
        ("{}", "{}"),
        ("", ""),
    ],
)
def test_a_key_that_is_no_string_becomes_the_string_of_its_text(raw, quoted):
    assert standard(raw.encode()).decode() == quoted


def test_object_keys_may_be_pretty_printed_or_strings():
    pretty = b'{"byQueue":{\n{\n\t"brokerName":"b",\n\t"queueId":0,\n\t"topic":"t"\n}:{"bigNumber":1}}}'
    quoted = b'{"byQueue":{"{\\"topic\\":\\"t\\",\\"brokerName\\":\\"b\\",\\"queueId\\":0}":{"bigNumber":1}}}'

    for text in (pretty, quoted):
        assert from_json(Outer, text).by_queue == {MessageQueue("t", "b", 0): Inner(None, 1)}


# ---------------------------------------------------------------- tolerance


@pytest.mark.parametrize(
    ("text", "colour"),
    [
        ('"RED"', Colour.RED),
        ('"dark_Blue"', Colour.DARK_BLUE),
        ("3", Colour.DARK_BLUE),
        ('"GREEN"', None),
        ("7", None),
        ("null", None),
        ("[]", None),
    ],
)
def test_an_enum_is_read_by_name_in_any_case_or_by_number_and_an_unknown_one_is_none(text, colour):
    assert from_json(Outer, f'{{"colour":{text}}}'.encode()).colour is colour


def test_null_counts_as_missing():
    text = b'{"text":null,"names":null,"number":null,"byNumber":{"0":null,"1":"a"}}'

    for cls in (Plain, Outer):
        value = from_json(cls, text)
        assert (value.text, value.names, value.number, value.by_number) == ("", [], 0, {1: "a"})


def test_numbers_and_booleans_may_be_strings():
    value = from_json(Outer, b'{"number":"7","yes":"true","rate":"1.5","byName":{"a":{0:"1"}}}')

    assert (value.number, value.yes, value.rate, value.by_name) == (7, True, 1.5, {"a": {0: 1}})


def test_unknown_keys_are_read_over_and_type_information_means_nothing():
    assert from_json(Plain, b'{"@type":"java.lang.Runtime","text":"t","new":{0:[{}]}}') == Plain("t")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"}",
        b"]",
        b"[]",
        b"1",
        b'"text"',
        b"null",
        b'{"text":1}x',
        b'{"text":[1]}',
        b'{"number":2147483648}',
        b'{"number":"many"}',
        b'{"byNumber":{"a":"b"}}',
        b'{"text":"\xff"}',
        b'{\xff:"a"}',
        b'{"text":"',
        b"{0:}",
        b"{0 1:2}",
        b"{{:1}",
        b"{{}}:1}",
        b'{"byQueue":{1:{}}}',
        b'{"byQueue":{"x":{}}}',
        b'{"byQueue":{{"queueId":"x"}:{}}}',
        b'{"byQueue":7}',
        b'{"inner":{"queue":7}}',
    ],
)
def test_a_bad_body_is_refused(text):
    with pytest.raises(BadBody):
        from_json(Outer, text)


@given(st.binary(max_size=100) | st.text('{}[]:,"\\01ab ', max_size=60).map(str.encode))
def test_any_bytes_are_a_body_or_refused(data):
    for cls in (Plain, Outer):
        try:
            from_json(cls, data)
        except BadBody:
            pass


@pytest.mark.parametrize("cls", [Plain, Outer])
@pytest.mark.parametrize(
    "piece", [b"[", b"{", b'{"a":', b"{0:", b"{{", b"{a", b'{"by_queue":{{"q":', b"[[{"], ids=lambda piece: piece.decode()
)
def test_a_bomb_of_fifty_thousand_nestings_is_refused(cls, piece):
    with pytest.raises(BadBody):
        from_json(cls, piece * 50_000)


def test_a_bomb_inside_a_known_field_is_refused():
    with pytest.raises(BadBody):
        from_json(Outer, b'{"text":"a","unknown":' + b"[" * 50_000 + b"]" * 50_000 + b"}")


def test_raw_keys_nest_to_a_depth_and_no_further():
    deep = b"{0:" * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX

    assert json.loads(standard(deep))
    with pytest.raises(BadBody):
        standard(b"{0:" + deep + b"}")


@pytest.mark.parametrize(
    "text",
    [
        b" " * (FRAME_BYTES_MAX + 1),
        b"[" + b"{}," * OBJECTS_MAX + b"{}]",
        b"[" + b"1," * COMMAS_MAX + b"1,1]",
    ],
    ids=["long", "objects", "elements"],
)
def test_more_than_a_body_may_hold_is_refused_before_it_is_built(text):
    with pytest.raises(BadBody, match=r"more than|longer than"):
        from_json(list[dict[str, int]], text)


def test_files_of_our_own_are_not_bounded():
    text = b"[" + b"{0:1}," * OBJECTS_MAX + b"{}]"

    assert len(from_json(list[dict[str, int]], text, bounds=None)) == OBJECTS_MAX + 1


@pytest.mark.slow
@pytest.mark.parametrize("piece", [b":", b'"', b'"\\', b"{a:1}:", b"x ", b"\\"])
def test_text_that_goes_on_without_sense_is_given_up_within_a_moment(piece):
    text = (b"{" + piece * (FRAME_BYTES_MAX // len(piece)))[:FRAME_BYTES_MAX]

    begin = time.process_time()
    with pytest.raises(BadBody):
        from_json(Outer, text)

    assert time.process_time() - begin < 5, "seconds; one takes well under one, a pass that goes back takes hours"


def test_the_cost_of_raw_keys_grows_with_the_text_alone():
    table = {f"topic-{i}@group": dict.fromkeys(range(4), i) for i in range(20_000)}
    text = to_json({"offsetTable": table})

    begin = time.process_time()
    found = json.loads(standard(text, tokens_max=None))

    assert time.process_time() - begin < 5
    assert found["offsetTable"]["topic-7@group"] == {"0": 7, "1": 7, "2": 7, "3": 7}


@pytest.mark.parametrize(
    "text",
    [
        b" " * (REQUEST.bytes_max + 1), b"[" + b"{}," * REQUEST.objects_max + b"{}]", b"[" + b"1," * REQUEST.commas_max + b"1,1]",
        b"{" + b"a:1 " * (REQUEST.raw_tokens_max // 3) + b"}",
    ],
    ids=["long", "objects", "elements", "words"],
)  # fmt: skip
def test_anybodys_request_may_hold_less_than_a_servers_reply(text):
    with pytest.raises(BadBody, match=r"more than|longer than|too many"):
        from_json(dict[str, int], text, bounds=REQUEST)


def test_what_is_large_must_be_standard_json():
    bounds = REQUEST._replace(raw_bytes_max=20)

    assert from_json(dict[str, int], b'{"a": 1, "b": "2", "c": 3}', bounds=bounds) == {"a": 1, "b": 2, "c": 3}
    assert from_json(dict[str, int], b"{a: 1, b: 2}", bounds=bounds) == {"a": 1, "b": 2}
    with pytest.raises(BadBody):
        from_json(dict[str, int], b"{a: 1, b: 2, c: 3, d: 4}", bounds=bounds)
