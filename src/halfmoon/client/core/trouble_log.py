"""The log of failures that no caller sees: once at WARNING, then more and more rarely, and when they are over.

Holds one line for each thing that fails (an address, a topic). Logs; never waits.
"""

from __future__ import annotations

import logging

AGAIN_MS, AGAIN_MS_MAX = 30_000, 3_600_000
"""A failure that lasts is logged again after this, then after twice as long, and so on up to an hour."""
KEPT_MAX = 10_000
"""Things that are known to fail; beyond it the oldest is forgotten, and logged as new."""

log = logging.getLogger("halfmoon.client")


class LastingFailure:
    """A failure that lasts: since when (steady), how often it came, and when it is to be logged again."""

    def __init__(self, now: int, first_pause_ms: int = 0) -> None:
        self.since, self.count = now, 0
        self._pause, self._again_at = first_pause_ms, now + first_pause_ms

    def is_due(self, now: int) -> bool:
        """Count a failure, and return whether to log it: after ``first_pause_ms``, then with longer and longer pauses."""
        self.count += 1
        if now < self._again_at:
            return False
        self._pause = min(self._pause * 2, AGAIN_MS_MAX) or AGAIN_MS
        self._again_at = now + self._pause
        return True


class TroubleLog:
    """The failures of one client. ``what`` names the thing that fails, as logged; ``now`` is a steady time."""

    def __init__(self) -> None:
        self._known: dict[str, LastingFailure] = {}

    def __len__(self) -> int:
        return len(self._known)

    def is_failing(self, what: str) -> bool:
        """Whether something is known to fail."""
        return what in self._known

    def failed(self, what: str, reason: object, now: int) -> None:
        """Log a failure that will be retried: when it is new, and while it lasts with longer and longer pauses.

        A logger at DEBUG shows the traceback of a ``reason`` that is an exception.
        """
        traceback = reason if isinstance(reason, BaseException) and log.isEnabledFor(logging.DEBUG) else None
        trouble = self._known.get(what)
        if trouble is None:
            if len(self._known) >= KEPT_MAX:
                del self._known[next(iter(self._known))]
            trouble = self._known[what] = LastingFailure(now)
        if not trouble.is_due(now):
            log.info("%s: %s", what, reason, exc_info=traceback)
        elif trouble.count == 1:
            log.warning("%s: %s; trying again", what, reason, exc_info=traceback)
        else:
            seconds = (now - trouble.since) // 1000
            log.warning("%s: %s; %d times in %d s", what, reason, trouble.count, seconds, exc_info=traceback)

    def recovered(self, what: str) -> None:
        """Log that something works again, if it had failed."""
        if self._known.pop(what, None) is not None:
            log.warning("%s: works again", what)
