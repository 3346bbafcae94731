"""A clock that tests set."""

from __future__ import annotations

import pytest


class Clock:
    """Milliseconds since the epoch, which pass only when a test says so."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def passes(self, seconds: float) -> None:
        """Let time pass; a negative number sets the clock back."""
        self.now_ms += int(seconds * 1_000)


@pytest.fixture
def clock() -> Clock:
    """A clock that tests set."""
    return Clock()
