"""Lines of output for people: one call writes one line, whatever texts of others it contains. Loads nothing, so servers use it.

All that a command writes goes through `say` here, or through the tables and the JSON of `halfmoon.cli.shared.output`.
"""

from __future__ import annotations

import select
import sys
from contextlib import suppress
from io import TextIOWrapper, UnsupportedOperation

LINE_MAX = 16_384
"""Longest line, in characters."""


def plain(text: str, length_max: int = LINE_MAX) -> str:
    """Return a text as one line without control characters: unprintable characters become dots, and a cut is marked."""
    more = len(text) - length_max
    if more > 0:
        text = text[:length_max]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else "\u00b7" for character in text)
    return text if more <= 0 else f"{text} … and {more:,} characters more"


def take_all_characters() -> None:
    """Have standard output escape characters that its encoding lacks, as standard error does."""
    if isinstance(sys.stdout, TextIOWrapper):
        with suppress(OSError):  # a file that cannot tell where it is stays as it is
            sys.stdout.reconfigure(errors="backslashreplace")


def check_reader() -> None:
    """Raise BrokenPipeError, as a write would, if standard output is a pipe without a reader."""
    with suppress(UnsupportedOperation):  # a replacement of standard output has no descriptor
        pipe = select.poll()
        pipe.register(sys.stdout.fileno(), 0)
        if any(seen & select.POLLERR for _, seen in pipe.poll(0)):
            raise BrokenPipeError


def say_failing(failing: list[str]) -> None:
    """Name the brokers that failed, on standard error: their part is missing in the output."""
    for text in failing:
        say(f"not reported: {text}", error=True)


def say(text: str = "", *, error: bool = False) -> None:
    """Write one line to standard output, or to standard error."""
    stream = sys.stderr if error else sys.stdout
    stream.write(plain(text) + "\n")
    stream.flush()
