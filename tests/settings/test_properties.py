"""Java properties text, as Java reads it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import SettingError
from halfmoon.settings.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", [(1, "a", "b")]),
        ("a = b c ", [(1, "a", "b c")]),
        ("a:b\n! no\n# no\n\nc", [(1, "a", "b"), (5, "c", "")]),
        ("a\\=b=c\\u0041\\t|\\n", [(1, "a=b", "cA\t|")]),
        ("a=1,\\\n   2,\\\r\n 3\rb=4", [(1, "a", "1,2,3"), (4, "b", "4")]),
        ("a=b\\\\\nc=d", [(1, "a", "b\\"), (2, "c", "d")]),
        ("a=b\\", [(1, "a", "b")]),
    ],
)
def test_java_properties_are_read_as_java_reads_them(text: str, found: Any) -> None:
    assert parse_properties(text) == found


def test_a_broken_unicode_escape_is_an_error_with_its_line() -> None:
    with pytest.raises(SettingError, match="line 2"):
        parse_properties("a=b\nc=\\u12")


@given(st.text())
def test_any_text_is_properties_or_a_setting_error(text: str) -> None:
    try:
        parse_properties(text)
    except SettingError:
        pass
