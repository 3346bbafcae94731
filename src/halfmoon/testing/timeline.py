"""Virtual time from a seed: a heap of events and one source of chance. No wall clock, no thread, no socket, ever.

A `Timeline` is told what happens when (`at`, `after`) and runs it in order of time, ties in order of asking. Everything random in
a simulation comes from generators that `Timeline.split` makes out of the seed and a name, so a seed is a whole history and a new
user of chance does not disturb the others. Time is kept in microseconds and shown in milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

START_MS = 1_700_000_000_000
"""When every simulated history begins, milliseconds since the epoch."""

HISTORY_LINES_MAX = 200_000
"""Lines of history that a world keeps; older ones are forgotten, so that long runs stay small."""


SAME_INSTANT_MAX = 100_000
"""Events that may happen without time passing; a history has a few hundred at most."""


class TooManyEvents(RuntimeError):
    """A run handled more events than it may: something goes round without time passing."""


class TimelineTimer:
    """One thing that will happen; ``cancel`` keeps it from happening."""

    __slots__ = ("_action",)

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """Forget the action."""
        self._action = None

    def fire(self) -> None:
        """Do it, once."""
        action, self._action = self._action, None
        if action is not None:
            action()


class Timeline:
    """Time and chance of one simulated history.

    ``now`` is milliseconds since the epoch, ``now_us`` microseconds; both move only inside `run` and `run_until`.
    """

    def __init__(self, seed: int, *, start_ms: int = START_MS) -> None:
        self.seed = seed
        self.now_us = start_ms * 1000
        self.steps = 0
        self.history: deque[str] = deque(maxlen=HISTORY_LINES_MAX)
        self._start_us = self.now_us
        self._root = Random(seed).getrandbits(64)
        self._events: list[tuple[int, int, TimelineTimer]] = []
        self._number = 0
        self._watchers: list[Callable[[], None]] = []

    @property
    def now(self) -> int:
        """The time, in whole milliseconds since the epoch."""
        return self.now_us // 1000

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds of virtual time since the beginning."""
        return (self.now_us - self._start_us) // 1000

    def split(self, name: str) -> Random:
        """Return a generator of its own for a name: the same seed and name give the same numbers."""
        return Random(f"{self._root}/{name}")

    def note(self, who: str, what: str) -> None:
        """Write a line of history."""
        self.history.append(f"{(self.now_us - self._start_us) / 1000:>12.3f} {who:<12} {what}")

    def watch(self, look: Callable[[], None]) -> None:
        """Have ``look`` called after each event, to see what is there then; it changes nothing."""
        self._watchers.append(look)

    def after_us(self, delay_us: int, action: Callable[[], None]) -> TimelineTimer:
        """Let something happen in ``delay_us`` microseconds."""
        timer = TimelineTimer(action)
        self._number += 1
        heappush(self._events, (self.now_us + max(0, delay_us), self._number, timer))
        return timer

    def after(self, delay_ms: int, action: Callable[[], None]) -> TimelineTimer:
        """Let something happen in ``delay_ms`` milliseconds."""
        return self.after_us(delay_ms * 1000, action)

    def run(self, ms: int) -> None:
        """Let ``ms`` milliseconds pass and everything happen that belongs into them."""
        self._run_to(self.now_us + ms * 1000, lambda: False)

    def run_until(self, reached: Callable[[], bool], within_ms: int) -> bool:
        """Run until ``reached()`` is true after some event; return False when ``within_ms`` passed first."""
        return reached() or self._run_to(self.now_us + within_ms * 1000, reached)

    def _run_to(self, end_us: int, reached: Callable[[], bool]) -> bool:
        events, same_instant = self._events, 0
        while events and events[0][0] <= end_us:
            at_us, _, timer = heappop(events)
            same_instant = same_instant + 1 if at_us == self.now_us else 0
            if same_instant > SAME_INSTANT_MAX:
                raise TooManyEvents(f"more than {SAME_INSTANT_MAX} events at {self.now_us} us")
            self.now_us = at_us
            self.steps += 1
            timer.fire()
            for look in self._watchers:
                look()
            if reached():
                return True
        self.now_us = max(self.now_us, end_us)
        return False
