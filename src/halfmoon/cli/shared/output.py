"""Output of commands: JSON for programs, tables for people. Writes to standard output and error, asks nobody."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from shutil import get_terminal_size
from typing import Any
from unicodedata import combining, east_asian_width

from halfmoon.cli.shared.app import lines_wanted
from halfmoon.cli.shared.lines import LINE_MAX, plain, say
from halfmoon.errors import HalfmoonError, NoNameServerAnswers, UsageError, kind_of, text_of


def show_json(value: Any, *, rows: str | None = None, flush: bool = True) -> None:
    """Write one value as one line of JSON; without ``flush`` it may wait for more lines.

    With ``--jsonl`` each element of a list is a line, and each of the list that is the member ``rows`` of an object. That there are
    ``more`` rows is said on standard error then.
    """
    of_lists = value[rows] if rows is not None else value if isinstance(value, list) else None
    if of_lists is None or not lines_wanted():
        sys.stdout.write(_json(value) + "\n")
    else:
        sys.stdout.writelines(_json(each) + "\n" for each in of_lists)
        if rows is not None and value.get("more"):
            say("there are more than are shown", error=True)
    if flush:
        sys.stdout.flush()


def _json(value: Any) -> str:
    """Return one line of JSON without control characters: unprintable characters in its texts are ``\\u`` escapes."""
    import msgspec  # only where JSON is asked for

    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half of a surrogate pair, of a file's name that is no UTF-8 for example
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":"))
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]
        for character in text
    )


CELL_MAX = 1_000
"""Longest cell of a table, in characters. JSON has all of them."""

WHOLE = frozenset({
    *("id", "event", "resume by", "msgId", "client id", "access key", "key", "keys"),
    *("topic", "topics", "source", "target", "to", "group", "groups", "deadGroup", "producerGroup", "error", "state of checks"),
})  # fmt: skip
"""Columns that a next command needs, and errors, which say what to do: never shortened and never left out. Where room is short,
others are, first ones last."""


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, width_max: int = sys.maxsize) -> None:
    """Write a table, or the word none; numbers stand to the right.

    On a terminal that is too narrow some columns are left out, which a line below says; where those that `WHOLE` names have no
    room side by side, they stand below one another. Without a terminal a table is as wide as it needs, up to ``width_max``.
    """
    table = [list(row) for row in rows]
    if not table:
        say(f"{title}: none" if title else "none")
        return
    layout = _Layout(columns, table, min(width_max, get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize))
    head = [plain(title)] if title else []
    lines = [*head, styled(layout.text(columns), "1"), "─" * layout.width, *map(layout.text, layout.cells)]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    if layout.left_out:
        say(f"left out, for want of room: {', '.join(layout.left_out)} (a wider terminal or --json shows them)")


class _Layout:
    """Layout of a table: its cells as texts, and the columns of each line."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> None:
        most = [LINE_MAX if name in WHOLE else CELL_MAX for name in columns]
        self.cells = [[_cell(value, most[at]) for at, value in enumerate(row)] for row in rows]
        self._right = {at for at in range(len(columns)) if all(isinstance(row[at], int | float) for row in rows)}
        self._widths = [min(CELL_MAX, max(map(width_of, column))) for column in zip(columns, *self.cells)]
        shown = self._shown(columns, room)
        self._lines = self._side_by_side(shown, room)
        self.left_out = [name for at, name in enumerate(columns) if at not in shown]
        self.width = min(room, max(self._width(line) for line in self._lines))

    def text(self, cells: Sequence[str]) -> str:
        """Return one row."""
        lines = ("  ".join(self._padded(cells[at], at) for at in line).rstrip() for line in self._lines)
        return " " + "\n   ".join(lines)

    def _padded(self, text: str, at: int) -> str:
        space = " " * (self._widths[at] - width_of(text))
        return space + text if at in self._right else text + space

    def _width(self, line: Sequence[int]) -> int:
        return sum(self._widths[at] + 2 for at in line)

    def _shown(self, columns: Sequence[str], room: int) -> list[int]:
        """Return the columns that are shown: those that stay whole, and others if there is room on the lines of these."""
        shown = [at for at, name in enumerate(columns) if name in WHOLE] or [0]
        lines = len(self._side_by_side(shown, room))
        for at in sorted(set(range(len(columns))) - set(shown)):
            more = sorted([*shown, at])
            if len(self._side_by_side(more, room)) == lines:
                shown = more
        return shown

    def _side_by_side(self, shown: Sequence[int], room: int) -> list[list[int]]:
        """Return columns line by line, each line as full as there is room; all but the first are indented by two."""
        lines: list[list[int]] = [[]]
        for at in shown:
            if lines[-1] and self._width([*lines[-1], at]) + 2 * (len(lines) > 1) > room:
                lines.append([])
            lines[-1].append(at)
        return lines


def _cell(value: object, most: int) -> str:
    return f"{value:,}" if type(value) is int else plain(str(value), most)


def styled(text: str, style: str) -> str:
    """Return a text in a style (a number of ECMA-48's SGR) where standard output is a terminal that shows it."""
    if not style or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def say_marked(mark: str, style: str, text: str) -> None:
    """Write one line that begins with a word in a style."""
    sys.stdout.write(styled(mark, style) + plain(text) + "\n")
    sys.stdout.flush()


@contextmanager
def full_screen() -> Iterator[Callable[[Iterable[str]], None]]:
    """Take a terminal's alternate screen; yield the function that draws lines on it."""

    def draw(lines: Iterable[str]) -> None:
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[J")
        sys.stdout.flush()

    sys.stdout.write("\x1b[?1049h\x1b[?25l")
    try:
        yield draw
    finally:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for wide characters, none for combining ones."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


NO_NAME_SERVER = "give its address by --nameserver HOST:PORT, or start one: halfmoon serve; halfmoon doctor says what is wrong"
"""Remedy where no name server answers."""


def report(error: HalfmoonError, *, as_json: bool) -> int:
    """Write an error to standard error and return the exit code: 2 when the caller must change something, else 1."""
    if as_json:
        facts: dict[str, Any] = {"error": str(error), "kind": kind_of(error), "code": getattr(error, "code", None)}
        sys.stderr.write(_json(facts) + "\n")
    else:
        say(f"halfmoon: {text_of(error)}", error=True)
        if isinstance(getattr(error, "reason", error), NoNameServerAnswers):
            say(NO_NAME_SERVER, error=True)
    return 2 if isinstance(error, UsageError) else 1


def body_text(body: bytes, width: int) -> str:
    """Return a body as one line of at most ``width`` columns of a terminal, for people."""
    line = plain(body[: width * 4].decode("utf-8", "backslashreplace"))
    if width_of(line) <= width:
        return line
    ends = accumulate(map(width_of, line))
    return line[: sum(end < width for end in ends)] + "…"
