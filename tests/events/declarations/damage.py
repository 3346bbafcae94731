"""Files of declarations with a few bytes changed, and how reading them is refused."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from halfmoon.events.errors import DeclarationRefused


def damaged(data: st.DataObject, text: bytes) -> bytes:
    """Return the text with a few bytes of it replaced, taken out or put in."""
    for _ in range(data.draw(st.integers(1, 4))):
        at, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 20))
        piece = data.draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"<", b">", b'"', b"&", b"[", b"]", b"=", b"\n", b"{}"]))
        )
        text = text[:at] + piece + text[at + length :]
    return text


def refusal_of(reading: Callable[[], object]) -> DeclarationRefused | None:
    """Return how reading was refused; None: it was not."""
    try:
        reading()
    except DeclarationRefused as exc:
        return exc
    return None
