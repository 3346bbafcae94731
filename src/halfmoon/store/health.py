"""`Health`: whether the store can be written: never again, or not at the moment. Logs either once.

No space, a limit on the size of files, no descriptor, no memory for a mapping, no permission: these errors pass with their cause.
The operation changed nothing, is refused, and can be retried. Any other failed write, and a sync that failed after it began or did
not find its file, ends the store: nobody knows what is on the device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from errno import EACCES, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC, ENOTDIR, EPERM, EROFS

from halfmoon.instant import LONG_AGO, Steady

log = logging.getLogger("halfmoon.store.health")

LASTS_MS = 60_000
"""How long after its last occurrence a passing error counts: nothing announces its end."""

_UNOPENED = frozenset((EMFILE, ENFILE, ENOMEM, EACCES, EPERM, EROFS, ENOTDIR))
"""Errors of opening a file, never of syncing one."""
_PASSING = _UNOPENED | {ENOSPC, EDQUOT, EFBIG}


def passes(error: object) -> bool:
    """Whether a write with this error changed nothing and may succeed later."""
    return isinstance(error, OSError) and error.errno in _PASSING


def untried(error: object) -> bool:
    """Whether a sync failed because its file could not be opened: nothing is lost, and the next sync covers it."""
    return isinstance(error, OSError) and error.errno in _UNOPENED


class Health:
    """``failure`` says why the store stopped for good, ``short`` which passing error it met lately; None: none.

    ``stopped`` is called once, when it stops for good.
    """

    def __init__(self, stopped: Callable[[str], None] = lambda failure: None) -> None:
        self._stopped = stopped
        self.failure: str | None = None
        self.short: str | None = None
        self.now = self._until = LONG_AGO
        self._count = 0

    def write_failed(self, what: str, error: Exception) -> str:
        """Note that ``what`` could not be written; return the text of it."""
        text = f"{what} cannot be written: {error}"
        return self._met(text) if passes(error) else self.fail(text)

    def sync_failed(self, error: Exception) -> str:
        """Note that a sync failed; return the text of it."""
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
            log.error("writes are refused, and retried: %s", text)
            self._count = 0
        self.short, self._count, self._until = text, self._count + 1, self.now + LASTS_MS
        return text

    def tick(self, now: Steady) -> None:
        """Forget a passing error that did not occur again."""
        self.now = now
        if self.short is not None and now >= self._until:
            log.warning("did not occur for %d s, after %d times: %s", LASTS_MS // 1000, self._count, self.short)
            self.short = None
