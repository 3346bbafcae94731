"""Bodies about delayed messages, and the handle that recalls one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.wire.bodies.delays import RecallHandle, parse_recall_handle, recall_handle

WORD = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=20)


@given(topic=WORD, broker=WORD, at=st.integers(0, 10**17), key=WORD)
def test_a_handle_is_read_as_it_was_written_a_millisecond_later(topic: str, broker: str, at: int, key: str) -> None:
    assert parse_recall_handle(recall_handle(topic, broker, at, key)) == RecallHandle(topic, broker, at + 1, key)


@pytest.mark.parametrize(
    "text", ["", "x", "djEgVA==", recall_handle("T", "b", 17, ""), recall_handle("T", "b", 10**19, "k"), "é", "a" * 5000]
)
def test_what_is_no_handle_is_none(text: str) -> None:
    assert parse_recall_handle(text) is None


@given(st.text())
def test_any_text_is_a_handle_or_none(text: str) -> None:
    parse_recall_handle(text)
