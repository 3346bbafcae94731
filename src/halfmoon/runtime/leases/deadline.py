"""Deadline of one call to a lease's store: all that the call waits for shares it."""

from __future__ import annotations

import time

from halfmoon.errors import LeaseUnavailable


class Deadline:
    """End of a call, on the steady clock. ``address`` is what errors name."""

    def __init__(self, timeout_ms: int, address: str) -> None:
        self.timeout_ms, self.address = timeout_ms, address
        self._end = time.monotonic() + timeout_ms / 1000

    def left_s(self) -> float:
        """Return the seconds that are left, more than 0. Raises LeaseUnavailable when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise self.passed()
        return left

    def share(self, count: int, address: str) -> Deadline:
        """Return the deadline of the next of ``count`` attempts, at another address, which share what is left."""
        return Deadline(int(self.left_s() * 1000 / count), address)

    def passed(self) -> LeaseUnavailable:
        """Return the error of a call that took too long."""
        return LeaseUnavailable(f"{self.address}: no answer within {self.timeout_ms} ms", self.address)
