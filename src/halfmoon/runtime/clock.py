"""The one clock that all read: milliseconds since the epoch that never step back, and steady ones for durations."""

from __future__ import annotations

import time
from collections.abc import Callable

from halfmoon.instant import Instant


class Clock:
    """The machine's clock. `now` says when something is, `steady` how long it lasts.

    Forward steps of the system's clock are taken at once. When it is set back, time goes on at half speed until the system's
    clock has caught up, so that dates still come and no timestamp is given twice to different moments by much. Either way `now`
    passes otherwise than time does; ``ahead_ns`` grows and shrinks by as much, at each `now`. Only its differences mean something.
    ``seen_ns`` is when `now` was asked last, for `passed_ns`.
    """

    __slots__ = ("_last_ns", "_monotonic", "_wall", "ahead_ns", "seen_ns")

    def __init__(self, wall: Callable[[], int] = time.time_ns, monotonic: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._last_ns, self.seen_ns = wall(), monotonic()
        self.ahead_ns = self._last_ns - self.seen_ns

    def steady(self) -> int:
        """Return milliseconds that no setting of the clock moves, from an unknown beginning."""
        return self._monotonic() // 1_000_000

    def passed_ns(self, since_ns: int) -> int:
        """Return nanoseconds since a value of ``seen_ns``."""
        return self._monotonic() - since_ns

    def now(self) -> int:
        """Return milliseconds since the epoch, never less than any answer before."""
        wall_ns, seen_ns = self._wall(), self._monotonic()
        at_least = self._last_ns + (seen_ns - self.seen_ns) // 2
        self._last_ns = now_ns = wall_ns if wall_ns > at_least else at_least
        self.seen_ns = seen_ns
        self.ahead_ns = now_ns - seen_ns
        return now_ns // 1_000_000

    def instant(self) -> Instant:
        """Return both times, read together. Costs about 500 ns: read it once a turn."""
        date = self.now()
        # Plain integers at run time: to call their types would cost as much again as the tuple.
        return Instant(self.seen_ns // 1_000_000, date)  # type: ignore[arg-type]
