"""What a payload may hold, and where what it may not hold stands."""

from __future__ import annotations

import pytest

from halfmoon.events.encoding.codec_check import check, exact


class Text(str):
    def __str__(self) -> str:
        return "another"


def test_msgpack_holds_bytes_and_ints_as_keys() -> None:
    check({7: b"x", "a": [memoryview(b"y")]}, with_bytes=True)


def test_a_text_of_a_subclass_counts_as_its_characters() -> None:
    assert exact(Text("paid")) == "paid"
    assert type(exact(Text("paid"))) is str
    with pytest.raises(TypeError, match="object"):
        exact(object())
