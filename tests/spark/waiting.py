"""Waiting in tests: until something holds, with a bound; and a clock that only sleeping moves.

Imports nothing of tests, so that it may be sent to Python workers by value.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

BOUND_S = 240.0
"""Nobody waits longer for anything; then the test fails."""


def until(found: Callable[[], T | None], what: str = "what the test waits for") -> T:
    """Wait until a function gives something true, and return it. Raises TimeoutError after `BOUND_S`."""
    end = time.monotonic() + BOUND_S
    while not (value := found()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {BOUND_S:.0f} s for {what}")
        time.sleep(0.02)
    return value


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
