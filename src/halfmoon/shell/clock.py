"""The one clock that servers and clients read: milliseconds since the epoch that never step back. Holds nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """The machine's clock, made safe to compute deadlines from.

    Forward steps of the system's clock are taken at once. When it is set back, time goes on at half speed until the system's
    clock has caught up, so that deadlines still come and no timestamp is given twice to different moments by much.
    """

    __slots__ = ("_last_ns", "_monotonic", "_seen_ns", "_wall")

    def __init__(self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._last_ns, self._seen_ns = wall(), monotonic()

    def now(self) -> int:
        """Return milliseconds since the epoch, never less than any answer before. Costs about 200 ns: read it once a turn."""
        wall_ns, seen_ns = self._wall(), self._monotonic()
        at_least = self._last_ns + (seen_ns - self._seen_ns) // 2
        self._last_ns = now_ns = wall_ns if wall_ns > at_least else at_least
        self._seen_ns = seen_ns
        return now_ns // 1_000_000
