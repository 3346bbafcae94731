"""Progress line of a long run, on standard error. Shown on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_EVERY_S = 0.2


class ProgressLine:
    """Line of progress. ``what`` is its first word, such as ``checked``."""

    def __init__(self, what: str) -> None:
        self._what, self._shown = what, False
        self._began = self._last = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()

    def show(self, done_bytes: int, all_bytes: int) -> None:
        """Show the bytes that are done, of all."""
        now = time.monotonic()
        if not sys.stderr.isatty() or now - self._last < _EVERY_S:
            return
        self._last, self._shown = now, True
        rate = done_bytes / max(now - self._began, 0.001) / 1e6
        share = 100 * done_bytes // max(all_bytes, 1)
        sys.stderr.write(f"\r\x1b[K{self._what} {done_bytes / 1e6:,.0f} of {all_bytes / 1e6:,.0f} MB, {share} %, {rate:,.0f} MB/s")
        sys.stderr.flush()

    def clear(self) -> None:
        """Remove the line, before other output."""
        if self._shown:
            self._shown = False
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
