"""`BusyPolling`: keeps an event loop from sleeping while one client, alone, asks again as soon as it is answered (busy polling).

To fall asleep and be woken costs such a client and its server more than the request itself does. A loop that is awake looks at its
sockets a few hundred times a millisecond instead, and everything else goes on as ever. It falls asleep again when the next request
does not come soon, so idle and slow clients cost nothing. Where others want the core as well, it sleeps as they do: who is awake
all the time is put behind those who were not, and waits longest.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

BUSY_POLL_US = 500
"""How long the loop stays awake for the next request. A request and its answer take 100 to 350 us, as fast as the machine is; a
client that asks less than 2,000 times a second lets the loop sleep."""

LOST_NS, PAUSE_NS = 2_000_000, 1_000_000_000
"""A look that comes so late after the one before says that others had the core; for how long the loop sleeps as ever then."""

QUICK_MIN = 16
"""Requests in a row, each at most that long behind the one before, after which the loop stays awake."""


class BusyPolling:
    """Whether to sleep. ``call_soon`` is the loop's; ``clock`` gives nanoseconds; ``busy_poll_us`` 0: always sleep."""

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
        """A request of the one client that is heard was answered."""
        now = self._clock()
        self._quick = self._quick + 1 if now < self._until else 0
        self._looked_ns, self._until = now, now + self._busy_ns
        if self._quick >= QUICK_MIN and not self.is_polling and now >= self._pauses_until:
            self.is_polling = True
            self._call_soon(self._look)

    def _look(self) -> None:
        """Run in each round of the loop while it is awake."""
        now = self._clock()
        if now - self._looked_ns > LOST_NS:
            self._pauses_until = now + PAUSE_NS
        self._looked_ns = now
        if self._quick >= QUICK_MIN and self._pauses_until <= now < self._until:
            self._call_soon(self._look)
        else:
            self.is_polling = False
