"""Payloads as bytes and back: what travels arrives equal, everything else is refused with the place inside the payload."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.events.encoding.codec import BYTES, JSON, MSGPACK, TEXT, Codecs
from halfmoon.events.encoding.codec_check import DEPTH_MAX
from halfmoon.events.errors import PayloadRefused
from halfmoon.limits import BODY_BYTES_MAX

MISSION = pytest.mark.mission


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    HI = "hi"


class Text(str):
    """A text that is more than a text, as web frameworks have them."""


class Count(int):
    pass


@dataclass
class Line:
    book: str
    price: Decimal
    count: int = 1


@dataclass
class Order:
    number: int
    at: datetime
    lines: list[Line] = field(default_factory=list)
    colour: Colour = Colour.RED
    note: str | None = None


class Box(msgspec.Struct):
    id: UUID
    size: Size
    label: str | msgspec.UnsetType = msgspec.UNSET


class Paid(TypedDict):
    order_id: int
    amount: Decimal


class Mail(pydantic.BaseModel):
    to: str
    at: datetime
    tries: int = 0


class Strict(pydantic.BaseModel, strict=True):
    at: datetime = pydantic.Field(alias="sentAt")


@pydantic.dataclasses.dataclass
class Checked:
    count: int = pydantic.Field(gt=0)


ORDER = Order(7, datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC), [Line("b-1", Decimal("12.50"), 2)])


def refused(payload: Any, match: str, **options: Any) -> None:
    with pytest.raises(PayloadRefused, match=match):
        Codecs().encode(payload, **options)


def there_and_back(payload: Any, content_type: str | None = None, into: Any = None) -> Any:
    codecs = Codecs()
    encoded = codecs.encode(payload, content_type=content_type)
    return codecs.decode(encoded.content_type, encoded.version, encoded.body, into=into)


# ---------------------------------------------------------------- what travels arrives equal

ints = st.integers(-(2**63), 2**64 - 1)
scalars = st.none() | st.booleans() | ints | st.floats(allow_nan=False, allow_infinity=False) | st.text()
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=25
)
packed = st.recursive(
    scalars | st.binary(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text() | ints, inner, max_size=5),
    max_leaves=25,
)
wild = st.recursive(
    scalars | st.binary() | st.floats() | st.integers() | st.text(st.characters(codec=None)) | st.decimals() | st.datetimes()
    | st.complex_numbers() | st.just(object()),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text() | st.integers() | st.none() | st.floats(), inner, max_size=4)
    | st.tuples(inner, inner),
    max_leaves=12,
)  # fmt: skip


@given(plain)
@MISSION("002-04")
def test_plain_data_arrives_equal_as_json(payload: Any):
    assert there_and_back(payload) == payload


@pytest.mark.slow
@given(packed)
def test_plain_data_arrives_equal_as_msgpack(payload: Any):
    assert there_and_back(payload, MSGPACK) == payload


@given(st.binary(min_size=1))
def test_bytes_arrive_as_they_were(payload: bytes):
    assert there_and_back(payload) == payload
    assert there_and_back(bytearray(payload)) == payload
    assert there_and_back(memoryview(payload)) == payload


@given(st.text(min_size=1))
def test_texts_arrive_as_they_were(payload: str):
    assert there_and_back(payload, TEXT) == payload


@given(wild, st.sampled_from([JSON, MSGPACK]))
def test_whatever_is_given_is_carried_or_refused_and_nothing_is_lost_silently(payload: Any, content_type: str):
    codecs = Codecs()
    try:
        encoded = codecs.encode(payload, content_type=content_type)
    except PayloadRefused:
        return
    assert simple(codecs.decode(encoded.content_type, 1, encoded.body)) == simple(payload)


def simple(value: Any) -> Any:
    """What arrives of a value: tuples as lists, Decimals and moments as the texts they are written as."""
    if isinstance(value, list | tuple):
        return [simple(one) for one in value]
    if isinstance(value, dict):
        return {name: simple(one) for name, one in value.items()}
    if isinstance(value, Decimal | datetime):
        return msgspec.to_builtins(value)
    return value


@pytest.mark.parametrize(
    ("payload", "into"),
    [
        (ORDER, Order),
        (Box(UUID(int=5), Size.BIG), Box),
        (Box(UUID(int=5), Size.BIG, "x"), Box),
        (Mail(to="a", at=datetime(2026, 1, 1, tzinfo=UTC)), Mail),
        (Checked(3), Checked),
        (Strict(sentAt=datetime(2026, 1, 1, tzinfo=UTC)), Strict),
        ([Mail(to="a", at=datetime(2026, 1, 1, tzinfo=UTC)), Mail(to="b", at=datetime(2026, 1, 2, tzinfo=UTC))], list[Mail]),
        ({"m": ORDER}, dict[str, Order]),
        ({"order_id": 1, "amount": Decimal("1.10")}, Paid),
        ({1: "a"}, dict[int, str]),
        ((1, 2), tuple[int, int]),
        ({1, 2}, set[int]),
        (date(2026, 1, 2), date),
        (timedelta(seconds=90), timedelta),
    ],
)
@MISSION("002-04")
def test_a_reader_that_names_the_type_gets_it_back(payload: Any, into: Any):
    if not isinstance(payload, dict) or 1 not in payload:
        assert there_and_back(payload, JSON, into) == payload
    assert there_and_back(payload, MSGPACK, into) == payload


def test_without_a_type_plain_data_arrives_and_the_message_only_hints_at_the_class():
    encoded = Codecs().encode(ORDER)

    assert encoded.type_name.endswith("Order")
    assert there_and_back(ORDER) == {
        "number": 7, "at": "2026-02-03T04:05:06.000789Z", "lines": [{"book": "b-1", "price": "12.50", "count": 2}], "colour": "red",
        "note": None,
    }  # fmt: skip
    assert Codecs().encode({"a": 1}).type_name == ""


@pytest.mark.parametrize(
    ("payload", "arrives"),
    [
        ((1, (2,)), [1, [2]]),
        (frozenset([3]), [3]),
        (OrderedDict(a=1), {"a": 1}),
        (Text("x"), "x"),
        ({Text("x"): Count(4)}, {"x": 4}),
        ([Colour.RED, Size.BIG, Word.HI], ["red", 3, "hi"]),
        ({Word.HI: 1}, {"hi": 1}),
        (-0.0, 0.0),
        (None, None),
        ("", ""),
    ],
)
def test_what_arrives_of_other_kinds_of_data(payload: Any, arrives: Any):
    assert there_and_back(payload, JSON) == there_and_back(payload, MSGPACK) == arrives


# ---------------------------------------------------------------- what does not travel is refused


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"a": [1, {"price": math.nan}]}, r"payload\.a\[1\]\.price: nan "),
        ([math.inf], r"payload\[0\]: inf "),
        ({"n": 2**64}, r"payload\.n: the number has more than 64 bits"),
        ({"n": -(2**63) - 1}, r"payload\.n: the number has more than 64 bits"),
        ({"file": {"data": b"x"}}, r"payload\.file\.data: JSON holds no bytes.*msgpack"),
        ({1: 2}, r"payload\[1\]: a int cannot be a key"),
        ({"a": {None: 2}}, r"payload\.a\[None\]: a NoneType cannot be a key"),
        ({"t": "ab\ud800"}, r"payload\.t: the text has an unpaired surrogate at character 2"),
        ({"\ud800": 1}, r"payload\['.ud800'\]: the text has an unpaired"),
        ({"with blank": math.nan}, r"payload\['with blank'\]: nan"),
        ({"f": object()}, r"payload\.f: object cannot be encoded"),
        ({"f": print}, r"payload\.f: builtin_function_or_method cannot be encoded"),
        ({"f": threading.Lock()}, r"payload\.f: lock cannot be encoded"),
        ({"f": 1j}, r"payload\.f: complex cannot be encoded"),
        ({"f": Order}, r"payload\.f: type cannot be encoded"),
        ({"d": Decimal("NaN")}, r"payload\.d: NaN"),
        (Line("b", Decimal("Infinity")), r"payload\.price: Infinity"),
        (Box(UUID(int=1), Size.BIG, "\udfff"), r"payload\.label: the text has an unpaired"),
        (["a", "b", range(3)], r"payload\[2\]: range cannot be encoded"),
    ],
)  # fmt: skip
@MISSION("002-04")
def test_what_json_cannot_hold_is_refused_with_its_place(payload: Any, place: str):
    refused(payload, place)


def test_a_payload_that_contains_itself_is_refused():
    circle: list[Any] = []
    circle.append({"again": circle})
    refused(circle, "contains itself")
    line = Line("x", Decimal(1))
    line.book = line  # type: ignore[assignment]
    refused(line, "contains itself")


def test_depth_has_a_bound():
    def nested(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert there_and_back(nested(DEPTH_MAX)) == nested(DEPTH_MAX)
    refused(nested(DEPTH_MAX + 1), "inside each other")
    refused(nested(100_000), "inside each other")


def test_msgpack_names_are_texts_and_ints():
    assert there_and_back({1: {"a": b"\x00"}}, MSGPACK) == {1: {"a": b"\x00"}}
    refused({1.5: 1}, r"payload\[1.5\]: a float cannot be a key; use a text or an int", content_type=MSGPACK)
    refused({True: 1}, r"payload\[True\]: a bool cannot be a key", content_type=MSGPACK)


def test_a_body_has_a_bound_and_at_least_one_byte():
    assert len(Codecs().encode(b"x" * BODY_BYTES_MAX).body) == BODY_BYTES_MAX
    refused(b"x" * (BODY_BYTES_MAX + 1), "4194305 bytes, over the 4194304")
    refused("x" * BODY_BYTES_MAX, "over the 4194304")
    refused(b"", "no bytes")
    refused("", "no bytes", content_type=TEXT)


@pytest.mark.parametrize(
    ("payload", "content_type", "match"),
    [
        ({"a": 1}, BYTES, "dict is not bytes"),
        (1, TEXT, "int is no text"),
        ("\ud800", TEXT, "surrogate"),
        ({"a": 1}, "application/x-python-pickle", "unknown; use one of application/json"),
        ({"a": 1}, "text/plain; charset=latin-1", "unknown"),
    ],
)
def test_a_content_type_must_be_known_and_fit(payload: Any, content_type: str, match: str):
    refused(payload, match, content_type=content_type)


@pytest.mark.parametrize("version", [0, -1, 1.0, True, "1", 10**7])
def test_a_version_is_a_number_from_one(version: Any):
    refused({}, "version", version=version)


def test_a_model_that_cannot_be_written_is_refused():
    class Raw(pydantic.BaseModel):
        data: bytes

    class Loose(pydantic.BaseModel):
        value: Any

    refused(Raw(data=b"\xff"), "cannot be encoded as application/json")
    refused({"m": Loose(value=[1, math.nan])}, r"payload\.m\.value\[1\]: nan")


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("body", [b"", b"{", b'{"a":', b"\xff", b"nan", b"[1,]", b"[" * 100_000, b"{'a': 1}"])
def test_bytes_that_are_no_json_are_refused(body: bytes):
    with pytest.raises(PayloadRefused, match="TP_A/EC_B: the bytes are not application/json"):
        Codecs().decode(JSON, 1, body, topic="TP_A", code="EC_B")


@given(st.binary(), st.sampled_from([JSON, MSGPACK, BYTES, TEXT, "application/unknown"]))
def test_reading_bytes_of_anybody_gives_data_or_a_refusal(body: bytes, content_type: str):
    try:
        Codecs().decode(content_type, 1, body)
    except PayloadRefused:
        pass


@pytest.mark.parametrize(
    ("body", "into"),
    [(b'{"to":1}', Mail), (b'{"count":0}', Checked), (b'{"number":"x"}', Order), (b"1", Paid), (b'{"a":1}', threading.Thread)],
)
def test_what_does_not_fit_the_readers_type_is_refused(body: bytes, into: Any):
    with pytest.raises(PayloadRefused, match="does not match "):
        Codecs().decode(JSON, 1, body, into=into)


@pytest.mark.parametrize("name", ["Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'])
def test_content_types_are_read_as_their_authors_write_them(name: str):
    assert Codecs().decode(name, 1, b"[1]") == [1]
