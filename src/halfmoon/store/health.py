"""`Health`: whether the store can be written: for good not any more, or not now, as something is short. Logs either, once.

No room, a limit on the size of files, no descriptor, no memory for a mapping, no permission: they pass when their cause does. What
met them changed nothing, is refused, and is tried again. Any other failed write, and a sync that failed after it began or did not
find its file, ends the store: nobody knows what is on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from errno import EACCES, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC, ENOTDIR, EPERM, EROFS

log = logging.getLogger("halfmoon.store.health")

LASTS_MS = 60_000
"""How long after its last error what is short counts as short: nobody tells when it ended."""

_UNOPENED = frozenset((EMFILE, ENFILE, ENOMEM, EACCES, EPERM, EROFS, ENOTDIR))
"""Errors of opening a file, never of syncing one."""
_PASSING = _UNOPENED | {ENOSPC, EDQUOT, EFBIG}


def passes(error: object) -> bool:
    """Whether a write that failed so changed nothing, and may do later."""
    return isinstance(error, OSError) and error.errno in _PASSING


def untried(error: object) -> bool:
    """Whether a sync failed because its file could not be opened: what was written is as it was, and the next sync covers it."""
    return isinstance(error, OSError) and error.errno in _UNOPENED


class Health:
    """``failure`` says why the store stopped for good, ``short`` what it met lately that passes; None: nothing.

    ``stopped`` is called once, when it stops for good.
    """

    def __init__(self, stopped: Callable[[str], None] = lambda failure: None) -> None:
        self._stopped = stopped
        self.failure: str | None = None
        self.short: str | None = None
        self.now = 0
        self._count = self._until_ms = 0

    def write_failed(self, what: str, error: Exception) -> str:
        """``what`` could not be written; return that in words."""
        text = f"{what} cannot be written: {error}"
        return self._met(text) if passes(error) else self.fail(text)

    def sync_failed(self, error: Exception) -> str:
        """A sync failed; return that in words."""
        return self._met(f"a sync cannot begin: {error}") if untried(error) else self.fail(f"a sync failed: {error}")

    def fail(self, failure: str) -> str:
        """Take no more writes, for good; return the first reason."""
        if self.failure is None:
            self.failure = failure
            log.error("the store takes no more messages until the broker restarts: %s", failure)
            self._stopped(failure)
        return self.failure

    def _met(self, text: str) -> str:
        if self.short is None:
            log.error("refused, and tried again: %s", text)
            self._count = 0
        self.short, self._count, self._until_ms = text, self._count + 1, self.now + LASTS_MS
        return text

    def stepped(self, by_ms: int) -> None:
        """The clock was set: what is short is said for as long as it would have been."""
        self.now += by_ms
        self._until_ms += by_ms

    def tick(self, now: int) -> None:
        """Let go of what was not met again."""
        self.now = now
        if self.short is not None and now >= self._until_ms:
            log.warning("not met for %d s, after %d times: %s", LASTS_MS // 1000, self._count, self.short)
            self.short = None
