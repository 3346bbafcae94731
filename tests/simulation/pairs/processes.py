"""`Process` can be paused: nothing in it happens meanwhile, and all of it when it goes on. `PairNetwork` knows of that."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast

from halfmoon.errors import ConnectFailed
from halfmoon.instant import Instant
from halfmoon.runtime.clock import Clock
from halfmoon.testing.host import STEADY_BEGINS_NS, CoreHost
from halfmoon.testing.network import End, Network
from halfmoon.testing.timeline import START_MS, Timeline, TimelineTimer

WHOLE = 1_000_000


class Process:
    """What one process does later. ``clock_ahead_ms`` sets its date; its steady clock runs ``clock_ppm`` parts too fast."""

    def __init__(self, timeline: Timeline, hosts: tuple[str, ...], clock_ppm: int = 0) -> None:
        self.hosts, self.is_paused, self.clock_ahead_ms, self.clock_ppm = hosts, False, 0, clock_ppm
        self._timeline, self._held = timeline, list[TimelineTimer]()
        self.clock = Clock(self._wall_ns, self._steady_ns)

    def _wall_ns(self) -> int:
        return self._timeline.now_us * 1000 + self.clock_ahead_ms * 1_000_000

    def _steady_ns(self) -> int:
        now_ns = self._timeline.now_us * 1000
        return now_ns - STEADY_BEGINS_NS + (now_ns - START_MS * 1_000_000) * self.clock_ppm // WHOLE

    def after_us(self, delay_us: int, action: Callable[[], None]) -> TimelineTimer:
        """Let something happen in the process after a time, or when it goes on."""
        timer = TimelineTimer(action)
        self._timeline.after_us(delay_us, lambda: self._fire(timer))
        return timer

    def _fire(self, timer: TimelineTimer) -> None:
        if self.is_paused:
            self._held.append(timer)
        else:
            timer.fire()

    def go_on(self) -> None:
        """End a pause: what became due happens in its order."""
        self.is_paused, held = False, self._held
        self._held = []
        for timer in held:
            self._timeline.after_us(0, partial(self._fire, timer))

    def timeline(self) -> Timeline:
        """Return the timeline as this process sees it."""
        return cast(Timeline, _ProcessTimeline(self, self._timeline))


class _ProcessTimeline:
    def __init__(self, process: Process, timeline: Timeline) -> None:
        self._process, self._whole = process, timeline
        self.after_us = process.after_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def after(self, delay_ms: int, action: Callable[[], None]) -> TimelineTimer:
        return self._process.after_us(delay_ms * 1000, action)


class PairNetwork(Network):
    """A network in which a way may be blocked in one direction, and a paused process reads nothing."""

    def __init__(self, timeline: Timeline) -> None:
        super().__init__(timeline)
        self.blocked: set[tuple[str, str]] = set()
        """Pairs of hosts: nothing gets from the first to the second."""
        self.processes: dict[str, Process] = {}

    def apart(self, one: str, other: str) -> bool:
        """Return whether nothing passes from one host to another now."""
        process = self.processes.get(other)
        return (process is not None and process.is_paused) or (one, other) in self.blocked or super().apart(one, other)

    def connect(self, host: str, address: str, done: Callable[[End | ConnectFailed], None]) -> None:
        """Connect; a paused process hears of it when it goes on."""
        process = self.processes.get(host)
        super().connect(host, address, done if process is None else lambda found: _tell(process, done, found))

    def block(self, ways: Iterable[tuple[str, str]], *, is_blocked: bool) -> None:
        """Block ways, or open them; what waited is delivered then."""
        self.blocked = self.blocked | set(ways) if is_blocked else self.blocked - set(ways)
        if not is_blocked:
            self.wake()

    def wake(self) -> None:
        """Deliver what nothing holds any more."""
        for end in [end for ends in self._ends.values() for end in ends]:
            self._wake(end)
            self._wake(end.other)


def _tell(process: Process, done: Callable[[End | ConnectFailed], None], found: End | ConnectFailed) -> None:
    process.after_us(0, lambda: done(found))


class ProcessHost(CoreHost):
    """A host whose core runs in a `Process`, with the clock of that."""

    def __init__(self, process: Process, network: PairNetwork, host: str, ports: list[int], name: str) -> None:
        super().__init__(process.timeline(), network, host, ports, name, work_us=(100, 4000))
        self._process = process

    def now(self) -> int:
        """Return the date."""
        return self._process.clock.now()

    def instant(self) -> Instant:
        """Return both times."""
        return self._process.clock.instant()

    def wake(self) -> None:
        """Have the core take a turn."""
        if self._life is not None:
            self._life._wake()

    def attach(self, end: End) -> None:
        """Give the core a connection that this process has made."""
        if self._life is not None:
            self._life._accept(end)
