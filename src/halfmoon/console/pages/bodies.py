"""A message's body for people: as text, as JSON and in hex, each cut to what a page holds. Pure functions; nothing is executed."""

from __future__ import annotations

import re

import msgspec

from halfmoon.console.page import Facts
from halfmoon.conversion import json_decoder

CHARS_MAX = 16_384
"""Characters of one view: HTML may need five for one, and a page has three views in at most 500 KB."""
HEX_BYTES = 4096
INDENT_MAX = 40

_checker = json_decoder(msgspec.Raw)
_OPEN, _CLOSE = ("{", "["), ("}", "]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)


def body_facts(body: bytes) -> Facts:
    """Return the views of a body. ``text`` and ``json`` are None where it is none; ``cut``: the page has less than all of it."""
    facts: Facts = {"size_bytes": len(body), "text": None, "json": None, "no_json": "", "hex": hex_lines(body[:HEX_BYTES])}
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return facts | {"cut": len(body) > HEX_BYTES}
    if text.lstrip().startswith(_OPEN):
        try:
            _checker.decode(body)  # all of it is checked, but nothing of it is built
            facts["json"] = printable(indented(text))
        except RecursionError:
            facts["no_json"] = "It is nested too deep to be shown as JSON."
        except msgspec.DecodeError:
            pass
    return facts | {"text": printable(text), "cut": max(len(text), len(facts["json"] or "")) >= CHARS_MAX}


def printable(text: str) -> str:
    """Return the beginning of a text; but for line ends and tabs, what cannot be seen is escaped, so that nothing deceives."""
    some = text[:CHARS_MAX]
    if some.isprintable():
        return some
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in some)[:CHARS_MAX]


def indented(text: str) -> str:
    """Return JSON with a line for each member, by its tokens alone and hardly further than is shown."""
    parts: list[str] = []
    depth = length = 0
    before = ""
    for found in _TOKEN.finditer(text[: 2 * CHARS_MAX]):
        token = found[0]
        depth -= token in _CLOSE
        if (before in (*_OPEN, ",") or token in _CLOSE) and not (before in _OPEN and token in _CLOSE):
            parts.append("\n" + "  " * min(depth, INDENT_MAX))
        depth += token in _OPEN
        parts.append(": " if token == ":" else token)
        length += len(parts[-1])
        before = token
        if length > CHARS_MAX:
            break
    return "".join(parts).lstrip("\n")


def hex_lines(body: bytes) -> str:
    """Return bytes sixteen a line: their place, each in hex, and those that are printable ASCII."""
    rows = ((start, body[start : start + 16]) for start in range(0, len(body), 16))
    text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in range(256))
    return "\n".join(f"{start:08x}  {row.hex(' '):<47}  {row.decode('latin-1').translate(text)}" for start, row in rows)
