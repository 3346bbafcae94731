"""Something that failed and is left alone for a while, longer each time that it fails again: a topic, an outbox, a connection."""

from __future__ import annotations

import time


class Backoff:
    """Its rest. ``error`` is why it rests, ``told`` the error of it that people were told; both are empty while it works."""

    def __init__(self, rest_min_s: float, rest_max_s: float) -> None:
        self._bounds = rest_min_s, rest_max_s
        self.rest_s, self.until_s, self.error, self.told = 0.0, 0.0, "", ""

    @property
    def rests(self) -> bool:
        """Whether it is to be left alone now."""
        return self.until_s > time.monotonic()

    def failed(self, error: str, *, tell: bool = True) -> bool:
        """Rest, twice as long as the last time. Return whether to tell people: if ``tell``, and if they were not told of this."""
        rest_min_s, rest_max_s = self._bounds
        self.rest_s = min(rest_max_s, self.rest_s * 2) or rest_min_s
        self.until_s, self.error = time.monotonic() + self.rest_s, error
        new = tell and error != self.told
        if new:
            self.told = error
        return new

    def worked(self) -> None:
        """Forget what failed."""
        self.rest_s, self.until_s, self.error, self.told = 0.0, 0.0, "", ""
