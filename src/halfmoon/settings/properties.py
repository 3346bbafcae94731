"""Java properties text, as in RocketMQ's ``broker.conf`` and in the bodies that change a running server. Reads only."""

from __future__ import annotations

import re

from halfmoon.errors import SettingError


def parse_properties(text: str) -> list[tuple[int, str, str]]:
    """Return line number, key and value of each entry of a Java properties text.

    Comments begin with ``#`` or ``!``; key and value are parted by ``=``, ``:`` or a blank; a line that ends with an odd number of
    backslashes goes on in the next. Raises SettingError for a broken ``\\uXXXX``. Follows java.util.Properties.load.
    Differs: blanks at the end of a value are dropped, because nobody means them.
    """
    found = []
    joined, began = "", 0
    for number, raw in enumerate([*re.split("\r\n|\r|\n", text), ""], 1):
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        began = began if joined else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        whole, joined = joined + line, ""
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", whole, re.DOTALL)
        assert match is not None
        found.append((began, _unescape(match[1], began), _unescape(match[2], began).rstrip()))
    return found


def _unescape(text: str, line: int) -> str:
    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] != "u":
            return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code)
        if len(code) != 5:
            raise SettingError(f"line {line}: a broken \\uXXXX escape")
        return chr(int(code[1:], 16))

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text, flags=re.DOTALL)
