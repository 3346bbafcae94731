"""Warnings that others can cause, bounded: so many lines a minute, and one that says how many were left out."""

from __future__ import annotations

import logging
from typing import Any

LINES_A_MINUTE = 100


class Fewer:
    """A logger's warnings. Told the time by `tick`."""

    def __init__(self, log: logging.Logger, now: int) -> None:
        self._log, self._next_ms = log, now + 60_000
        self._left = LINES_A_MINUTE
        self.left_out = 0

    def warning(self, text: str, *arguments: Any) -> None:
        """Write a warning, or count it when there were too many in this minute."""
        if self._left > 0:
            self._left -= 1
            self._log.warning(text, *arguments)
        else:
            self.left_out += 1

    def stepped(self, by_ms: int) -> None:
        """The clock was set: a minute lasts a minute."""
        self._next_ms += by_ms

    def tick(self, now: int) -> None:
        """Begin a new minute when the last one is over."""
        if now >= self._next_ms:
            self._next_ms, self._left = now + 60_000, LINES_A_MINUTE
            if self.left_out:
                self._log.warning("%d more warnings were left out in the last minute", self.left_out)
                self.left_out = 0
