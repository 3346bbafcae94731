"""Bodies about delayed messages, and the handle that recalls one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import PeerError
from halfmoon.wire.bodies.delays import RecallHandle, TimerCheckpoint, parse_recall_handle, recall_handle

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


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=7, max_size=7))
def test_a_timer_checkpoint_is_read_as_it_was_written(numbers: list[int]) -> None:
    checkpoint = TimerCheckpoint(*numbers)
    assert TimerCheckpoint.decode(checkpoint.encode()) == checkpoint
    assert TimerCheckpoint.decode(checkpoint.encode()[:32]) == TimerCheckpoint(*numbers[:4]), "before it had a version"


@pytest.mark.parametrize("size", [0, 31, 33, 55, 57])
def test_bytes_that_are_no_timer_checkpoint_are_refused(size: int) -> None:
    with pytest.raises(PeerError):
        TimerCheckpoint.decode(bytes(size))
