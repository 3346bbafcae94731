"""The core of a server that has none: not yet, or no longer since it was killed."""

from __future__ import annotations

from typing import Any

from halfmoon.effects import CoreEffect
from halfmoon.instant import Instant, Steady


class NullCore:
    """A `halfmoon.ports.Core` that does nothing."""

    def start(self, now: Instant) -> None:
        """Nothing."""

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        """Nothing."""

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Nothing."""

    def feed(self, peer: int, data: bytes) -> None:
        """Nothing."""

    def commit(self, now: Instant) -> bool:
        """Nothing."""
        return False

    def unanswered(self, peer: int) -> bool:
        """Nothing."""
        return False

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Nothing."""

    def lost(self, peer: int, now: Instant) -> None:
        """Nothing."""

    def due(self, now: Instant) -> Steady | None:
        """Never."""
        return None

    def tick(self, now: Instant) -> None:
        """Nothing."""

    def effects(self) -> list[CoreEffect]:
        """None."""
        return []

    def stop(self, now: Instant) -> list[Any]:
        """Nothing to drive."""
        return []
