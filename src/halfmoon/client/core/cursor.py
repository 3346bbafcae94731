"""Cursors: where the next page of a list begins, as a text that is handed back as it came. Pure functions."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import UsageError

CURSOR_LENGTH_MAX = 8192
"""Characters of a cursor: room for some hundred brokers."""

Offset = Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)]
"""A number of a place."""


def cursor(places: Mapping[str, Sequence[int | str]]) -> str:
    """Return the cursor that stands for places in lists, by the list's name."""
    return urlsafe_b64encode(msgspec.json.encode(places)).decode().rstrip("=")


def places(text: str, kind: Any) -> dict[str, Any]:
    """Return the places that a cursor stands for, each a tuple of a kind. Raises UsageError for any other text."""
    try:
        packed = text.encode("ascii") if len(text) <= CURSOR_LENGTH_MAX else b""
        json = urlsafe_b64decode(packed + b"=" * (-len(packed) % 4))
        found: dict[str, Any] = json_decoder(dict[str, kind]).decode(json)
    except ValueError:  # those of base64 and msgspec are such
        found = {}
    if not found:
        raise UsageError("this is no place in the list: begin at its first page")
    return found
