"""Busy polling: an event loop stays awake while a single client sends its next request right after each reply.

Sleeping and waking costs such a client and its server more than the request itself. An awake loop polls its sockets a few hundred
times a millisecond instead. It sleeps again if the next request does not come soon, so idle and slow clients cost nothing. If other
processes need the core, it sleeps too: the scheduler lets a process that never sleeps wait longest.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

BUSY_POLL_US = 500
"""Time to stay awake for the next request.

A request and its reply take 100 to 350 us; the loop sleeps if a client sends fewer than 2,000 requests a second."""

LOST_NS, PAUSE_NS = 2_000_000, 1_000_000_000
"""Delay between two polls that shows that other processes used the core, and the time without busy polling after it."""

QUICK_MIN = 16
"""Consecutive requests within `BUSY_POLL_US` of each other after which the loop stays awake."""


class BusyPolling:
    """Decision to stay awake. ``call_soon`` is the loop's; ``clock`` returns nanoseconds; ``busy_poll_us`` 0: always sleep."""

    __slots__ = ("_busy_ns", "_call_soon", "_clock", "_looked_ns", "_pauses_until", "_quick", "_until", "is_polling")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], Any],
        clock: Callable[[], int] = perf_counter_ns,
        busy_poll_us: int = BUSY_POLL_US,
    ) -> None:
        self._call_soon, self._clock, self._busy_ns = call_soon, clock, busy_poll_us * 1_000
        self._until = self._quick = self._looked_ns = self._pauses_until = 0
        self.is_polling = False

    def answered(self) -> None:
        """Note that a request of the only active client was answered."""
        now = self._clock()
        self._quick = self._quick + 1 if now < self._until else 0
        self._looked_ns, self._until = now, now + self._busy_ns
        if self._quick >= QUICK_MIN and not self.is_polling and now >= self._pauses_until:
            self.is_polling = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Check in each round of the loop whether to stay awake."""
        now = self._clock()
        if now - self._looked_ns > LOST_NS:
            self._pauses_until = now + PAUSE_NS
        self._looked_ns = now
        if self._quick >= QUICK_MIN and self._pauses_until <= now < self._until:
            self._call_soon(self._look)
        else:
            self.is_polling = False
