"""Check rates: a token bucket for each producer group, and the half messages of throttled groups.

Reads no clock and sends nothing (see `halfmoon.broker.transactions.checks`).
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from math import ceil

import msgspec

from halfmoon.instant import Steady

CHECK_BYTES = 16 * 1024
"""A check of a larger message counts as several, so that a connection does not get more than it can transmit."""
_PASSED_MAX = 4096


class TokenBucket(msgspec.Struct):
    """How many checks a group may be sent now: filled at a rate per second up to its size. A large check leaves a debt."""

    rate: float
    size: float
    tokens: float
    filled_at: Steady

    def level(self, now: Steady) -> float:
        """How many tokens there are."""
        return min(self.size, self.tokens + (now - self.filled_at) * self.rate / 1000)

    def take(self, now: Steady, size_bytes: int = 0) -> bool:
        """Take the tokens for a check of so many bytes; False: there is not even one."""
        self.tokens = self.level(now)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= max(1.0, size_bytes / CHECK_BYTES)
        return True

    def due(self) -> Steady:
        """When there will be a token."""
        return self.filled_at + max(0, ceil((1 - self.tokens) * 1000 / self.rate))


class ThrottledGroups:
    """Half messages of throttled groups, by hash of the group, in order; 8 bytes each."""

    def __init__(self) -> None:
        self._waiting: dict[int, array[int]] = {}
        self._passed: dict[int, int] = {}
        self._due: list[tuple[Steady, int]] = []
        """A heap of (time, hash of a group): one entry for each group, except the one that is being checked."""

    def __contains__(self, group: int) -> bool:
        return group in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def due(self) -> Steady | None:
        """When the first group goes on; None: no group waits."""
        return self._due[0][0] if self._due else None

    def begin(self, group: int, index: int, due: Steady) -> None:
        """Throttle a group, which goes on at an index later."""
        self._waiting[group], self._passed[group] = array("q", [index]), 0
        heappush(self._due, (due, group))

    def add(self, group: int, index: int) -> None:
        """Add a half message of a group, unless it waits already or was passed."""
        waiting = self._waiting[group]
        if index > waiting[-1]:
            waiting.append(index)

    def next(self, now: Steady) -> int | None:
        """Take the group that is due first; `go_on` puts it back."""
        return heappop(self._due)[1] if self._due and self._due[0][0] <= now else None

    def first(self, group: int) -> int | None:
        """Return the next index of a group; None: there is none, and the group is no longer throttled."""
        waiting, passed = self._waiting[group], self._passed[group]
        if passed < len(waiting):
            return waiting[passed]
        del self._waiting[group], self._passed[group]
        return None

    def pass_on(self, group: int) -> None:
        """Skip the half message that was next."""
        self._passed[group] += 1
        if self._passed[group] > _PASSED_MAX:  # the last one stays: `add` looks at it
            gone = min(self._passed[group], len(self._waiting[group]) - 1)
            del self._waiting[group][:gone]
            self._passed[group] -= gone

    def go_on(self, group: int, due: Steady) -> None:
        """Put back the group that was taken; it goes on at a time."""
        heappush(self._due, (due, group))
