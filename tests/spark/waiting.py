"""Waiting in tests: until something holds, with a bound; and a clock that only sleeping moves.

It and `tests.waiting` may be sent to Python workers by value.
"""

from __future__ import annotations

from functools import partial

from tests import waiting

BOUND_S = 240.0
"""Nobody waits longer for anything; then the test fails."""


until = partial(waiting.until, within_s=BOUND_S)
"""As for all tests, with the patience that Spark needs."""


class Clock:
    """Stands in for the module ``time``: what sleeps lets time pass, in seconds; ``sleeps`` has how long each slept."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def monotonic(self) -> float:
        """Return what time it is."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.sleeps.append(seconds)
        self.now += seconds
