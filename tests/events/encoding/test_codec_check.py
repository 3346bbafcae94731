"""What a payload may hold, and where what it may not hold stands."""

from __future__ import annotations

from enum import StrEnum

import pytest

from halfmoon.events.encoding.codec_check import DEPTH_MAX, INT_MAX, INT_MIN, NotEncodable, check, exact


class Size(StrEnum):
    BIG = "big"


class Text(str):
    def __str__(self) -> str:
        return "another"


@pytest.mark.parametrize("payload", [None, True, INT_MIN, INT_MAX, 0.5, "ä", [], {}, (1, [2]), {"a": [{"b": Size.BIG}]}, {1, 2}])
def test_plain_data_can_be_encoded(payload: object) -> None:
    check(payload, with_bytes=False)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"items": [{"price": float("nan")}]}, r"payload\.items\[0\]\.price: nan"),
        ([INT_MAX + 1], r"payload\[0\]: the number has more than 64 bits"),
        ({"a b": {7: 1}}, r"payload\['a b'\]\[7\]: a int cannot be a key; use a text$"),
        (b"x", "payload: JSON holds no bytes"),
        ("a\udc00", "payload: the text has an unpaired surrogate at character 1"),
    ],
)
def test_what_cannot_be_encoded_is_named_with_its_place(payload: object, text: str) -> None:
    with pytest.raises(NotEncodable, match=text):
        check(payload, with_bytes=False)


def test_msgpack_holds_bytes_and_ints_as_keys() -> None:
    check({7: b"x", "a": [memoryview(b"y")]}, with_bytes=True)


def test_nesting_has_a_bound_that_finds_circles() -> None:
    nested: list[object] = []
    for _ in range(DEPTH_MAX - 1):
        nested = [nested]
    check(nested, with_bytes=False)
    circle: list[object] = []
    circle.append(circle)
    for payload in ([nested], circle):
        with pytest.raises(NotEncodable, match="contains itself"):
            check(payload, with_bytes=False)


def test_a_text_of_a_subclass_counts_as_its_characters() -> None:
    assert exact(Text("paid")) == "paid"
    assert type(exact(Text("paid"))) is str
    with pytest.raises(TypeError, match="object"):
        exact(object())
