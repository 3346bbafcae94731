"""Backoff of a topic, an outbox or a connection that failed: it is left alone for a while, longer after each failure."""

from __future__ import annotations

import time


class Backoff:
    """Rest after failures. ``error`` is the last failure, ``told`` the last one that was logged; both are empty while it works."""

    def __init__(self, rest_min_s: float, rest_max_s: float) -> None:
        self._bounds = rest_min_s, rest_max_s
        self.rest_s, self.until_s, self.error, self.told = 0.0, 0.0, "", ""

    @property
    def rests(self) -> bool:
        """Whether the rest is not over."""
        return self.until_s > time.monotonic()

    def failed(self, error: str, *, tell: bool = True) -> bool:
        """Rest, twice as long as the last time. Return whether to log the error: if ``tell``, and if it was not logged before."""
        rest_min_s, rest_max_s = self._bounds
        self.rest_s = min(rest_max_s, self.rest_s * 2) or rest_min_s
        self.until_s, self.error = time.monotonic() + self.rest_s, error
        new = tell and error != self.told
        if new:
            self.told = error
        return new

    def worked(self) -> None:
        """Forget the failures."""
        self.rest_s, self.until_s, self.error, self.told = 0.0, 0.0, "", ""
