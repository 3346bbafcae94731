"""`Marks`: how far the messages of the timer topic are delivered, whatever the clock showed. Reads and writes nothing.

Messages are delivered by (due, queue offset), and all up to the last one are, but for what is parked later. A message that is
parked to be due before that, for the clock was set back, begins a new mark: the one before counts below its queue offset only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MARKS_MAX = 16
"""One for each time that the clock was set back, until it has caught up. At the bound the two oldest become one that says less:
what was delivered in between comes again after a start."""


class Mark(NamedTuple):
    """Messages below the queue offset ``end``, from that of the mark before on, are delivered up to this due time and offset."""

    end: int
    due: int
    offset: int


class Marks:
    """The marks of one timer: those that a start found, and one that goes on."""

    def __init__(self, found: Sequence[Mark]) -> None:
        self._before, self._last = list(found), (-1, -1)
        self._shorten()

    def at(self, end: int) -> tuple[Mark, ...]:
        """Return the marks, the last of which counts below ``end``: what is parked from there on says nothing yet."""
        return (*self._before, Mark(max(end, self._begin), *self._last))

    @property
    def _begin(self) -> int:
        return self._before[-1].end if self._before else 0

    def parked(self, due: int, offset: int, begun: Sequence[tuple[int, int]]) -> None:
        """Note a parked message; ``begun`` are those whose delivery has begun, in order: they will count as delivered."""
        behind = self._last[0]
        if begun and due <= begun[-1][0]:
            behind = max([behind, *(each for each, at in begun if at >= self._begin)])
        if due <= behind:
            self._before.append(Mark(offset, *self._last))
            self._last = (-1, -1)
            self._shorten()

    def _shorten(self) -> None:
        while len(self._before) >= MARKS_MAX:
            first, second = self._before[:2]
            self._before[:2] = [Mark(second.end, *min(first[1:], second[1:]))]

    def delivered(self, pairs: Sequence[tuple[int, int]], next_due: int | None) -> None:
        """Messages are delivered, in order; those that wait are due from ``next_due`` on (None: none waits)."""
        for due, offset in pairs if self._before else pairs[-1:]:
            place = next((place for place, mark in enumerate(self._before) if offset < mark.end), None)
            if place is None:
                self._last = max(self._last, (due, offset))
            else:
                mark = self._before[place]
                self._before[place] = Mark(mark.end, *max(mark[1:], (due, offset)))
        if self._before:
            furthest = max([self._last, *(mark[1:] for mark in self._before)])
            if next_due is None or next_due > furthest[0]:  # the clock has reached where it was: one mark says it all
                self._before, self._last = [], furthest
