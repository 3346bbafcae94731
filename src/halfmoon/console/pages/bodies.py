"""Body of a message for people: as text, as JSON and in hex, each cut to the room of a page. Nothing is executed.

A body may be compressed, and then unpack to a thousand times its bytes: `unpacking` keeps that away from the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import msgspec

from halfmoon.console.page import Facts
from halfmoon.model import StoredMessage

CHARS_MAX = 16_384
"""Characters of one view: HTML may need five for one, and a page has three views in at most 500 KB."""
HEX_BYTES = 4096
JSON_BYTES_MAX = 64 * 1024
"""Largest body that is shown as JSON: nested as deep as it may be, its indents take a thousand times as much."""

P = ParamSpec("P")
T = TypeVar("T")
_thread = ThreadPoolExecutor(1, "bodies")


async def unpacking(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that unpacks bodies in a thread: others are answered meanwhile, and only one at a time takes memory."""
    return await asyncio.get_running_loop().run_in_executor(_thread, lambda: read(*args, **kwargs))


async def body_of(message: StoredMessage) -> Facts:
    """Return the views of a message's body, as `body_facts`."""
    return await unpacking(lambda: body_facts(message.body))


def body_facts(body: bytes) -> Facts:
    """Return the views of a body. ``text`` and ``json`` are None where it is none; ``cut``: the page has less than all of it."""
    facts: Facts = {"size_bytes": len(body), "text": None, "json": None, "no_json": "", "hex": hex_lines(body[:HEX_BYTES])}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return facts | {"cut": len(body) > HEX_BYTES}
    if text.lstrip().startswith(("{", "[")):
        try:
            if len(body) > JSON_BYTES_MAX:
                facts["no_json"] = "It is too large to be shown as JSON."
            else:
                facts["json"] = printable(msgspec.json.format(text))
        except RecursionError:
            facts["no_json"] = "It is nested too deep to be shown as JSON."
        except msgspec.DecodeError:
            pass
    return facts | {"text": printable(text), "cut": max(len(text), len(facts["json"] or "")) >= CHARS_MAX}


def printable(text: str) -> str:
    """Return the beginning of a text; invisible characters other than line ends and tabs are escaped."""
    some = text[:CHARS_MAX]
    if some.isprintable():
        return some
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in some)[:CHARS_MAX]


def hex_lines(body: bytes) -> str:
    """Return a hex dump, sixteen bytes a line: offset, hex, printable ASCII."""
    rows = ((start, body[start : start + 16]) for start in range(0, len(body), 16))
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in range(256))
    return "\n".join(f"{start:08x}  {row.hex(' '):<47}  {row.decode('latin-1').translate(text)}" for start, row in rows)
