"""Reads timer messages shortly before they are due, so that many that are due at once only have to be stored then.

Decoding a record costs five times what storing the message does. Delivers nothing, and what it holds may be dropped at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from halfmoon.broker.delay.delivery import Due
from halfmoon.store.entries import QueueEntry
from halfmoon.store.timer.index import TimerIndex

AHEAD_MS = 2000
"""How long before its time a message is read."""
READY_MAX, READY_BYTES_MAX = 16_384, 16 * 1024 * 1024
"""Bounds of what is held; later messages are read when they are due."""
SLICE, GAP_MS = 64, 4
"""Messages read at a time, and the pause after that: connections get more than half of the time."""

Pair = tuple[int, int]
"""(due, queue offset) of a message."""


class Prefetched(NamedTuple):
    """A message that was read: its queue entry and the message; None: it can never be delivered, and that was logged."""

    entry: QueueEntry
    message: Due | None


class ReadAhead:
    """Messages that were read ahead. ``read(pair, now)`` reads one, or returns None; ``end`` returns the end of the queue."""

    ready_max = READY_MAX
    ready_bytes_max = READY_BYTES_MAX

    def __init__(self, index: TimerIndex, read: Callable[[Pair, int], Prefetched | None], end: Callable[[], int]) -> None:
        self._index, self._read, self._end = index, read, end
        self._ready: dict[Pair, Prefetched] = {}
        self._bytes = 0
        self._reached: Pair = (-1, -1)
        """Everything up to here has been looked at."""
        self.due: int | None = 0
        """When `run` wants to be called; None: not before a message is parked or delivered."""

    def __len__(self) -> int:
        return len(self._ready)

    def get(self, pair: Pair) -> Prefetched | None:
        """Return a message that was read."""
        return self._ready.get(pair)

    def parked(self, pair: Pair) -> None:
        """Note a parked message."""
        if pair <= self._reached:
            self._reached = (pair[0], pair[1] - 1)
        wanted = pair[0] - AHEAD_MS
        if self.due is None or wanted < self.due:
            self.due = wanted

    def gone(self, pairs: Iterable[Pair]) -> None:
        """Remove messages that no longer wait."""
        full = self._full
        for pair in pairs:
            ready = self._ready.pop(pair, None)
            if ready is not None:
                self._bytes -= ready.entry.size
        if full and not self._full:
            self.due = 0

    def wait(self, until: int) -> None:
        """Do nothing before a time."""
        if self.due is not None:
            self.due = max(self.due, until)

    def run(self, now: int) -> int:
        """Read some messages; return how many. Sets ``due``."""
        end, count = self._end(), 0
        for pair in islice(self._index.walk(self._reached), SLICE + len(self._ready) + 1):
            if self._full:
                self.due = None
                return count
            if count == SLICE or pair[0] > now + AHEAD_MS or pair[1] >= end:
                self.due = max(now + GAP_MS, pair[0] - AHEAD_MS)
                return count
            self._reached = pair
            if pair in self._ready:
                continue
            count += 1
            ready = self._read(pair, now)
            if ready is not None:
                self._ready[pair] = ready
                self._bytes += ready.entry.size
        self.due = None
        return count

    @property
    def _full(self) -> bool:
        return len(self._ready) >= self.ready_max or self._bytes >= self.ready_bytes_max
