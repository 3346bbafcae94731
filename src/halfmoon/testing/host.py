"""Runs a `ports.Core` in virtual time, the way the runtime runs it on sockets: a turn collects bytes, then one commit.

A `CoreHost` is one machine with one process at a time: it can be booted, stopped cleanly, killed and lose its power. `Work` takes
as long as its device does (drawn from the seed), its effect on the disk comes somewhere in between, and what a killed process
had not finished is never told to it. The clock of the machine can be set forward and back. Knows nothing of frames.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from halfmoon.effects import Close, Op, Start, Work, Write
from halfmoon.instant import Instant
from halfmoon.ports import Core
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.server.supervised import supervised
from halfmoon.testing.disk import Stopped
from halfmoon.testing.driver import Calls, Driver, Task
from halfmoon.testing.network import End, Network
from halfmoon.testing.timeline import Timeline, TimelineTimer

STEADY_BEGINS_NS = 1_600_000_000 * 1_000_000_000
"""The date at which steady times begin, so that none can pass for a date."""


class Machine(Protocol):
    """Something with a clock that can be set."""

    clock_ahead_ms: int


def machine_clock(timeline: Timeline, machine: Machine) -> Clock:
    """Return the clock that a process reads on a machine."""
    return Clock(
        lambda: timeline.now_us * 1000 + machine.clock_ahead_ms * 1_000_000, lambda: timeline.now_us * 1000 - STEADY_BEGINS_NS
    )


class CoreHost:
    """One machine that runs a core.

    ``host`` is its name in the network, ``ports`` where it listens. ``work_us`` are the least and the most microseconds that a
    `Work` takes (a sync of its disk); both may be changed while the world runs. ``core`` is the running core or None.
    ``closed`` are the connections that the core had closed. ``on_stopped`` is called when the disk stopped the process in the
    middle of a write (`Stopped`), ``on_disconnected`` with the address of a connection that its operations lost.
    """

    def __init__(
        self,
        timeline: Timeline,
        network: Network,
        host: str,
        ports: list[int],
        name: str,
        *,
        work_us: tuple[int, int] = (100, 3000),
    ) -> None:
        self.host, self.name, self.addresses = host, name, [f"{host}:{port}" for port in ports]
        self.work_us = work_us
        self.clock_ahead_ms = 0
        self.closed: list[Closed] = []
        self.core: Core | None = None
        self.on_stopped: Callable[[], None] = self.kill
        self.on_disconnected: Callable[[str], None] = lambda address: None
        self.lives = 0
        self.peers = count(1)  # never starts again: a peer's number is never used twice
        self._timeline, self._network = timeline, network
        self._random = timeline.split(f"host {name}")
        self._life: _Life | None = None
        self._clock = machine_clock(timeline, self)

    @property
    def address(self) -> str:
        """The main address, ``host:port``."""
        return self.addresses[0]

    def now(self) -> int:
        """Return the machine's clock as its process reads it, milliseconds since the epoch."""
        return self._clock.now()

    def instant(self) -> Instant:
        """Return both times of the machine as its process reads them."""
        return self._clock.instant()

    def step_clock(self, ms: int) -> None:
        """Set this machine's clock forward, or back (below 0)."""
        self.clock_ahead_ms += ms
        self._timeline.note(self.name, f"clock is set {abs(ms)} ms {'back' if ms < 0 else 'forward'}")
        if self._life is not None:
            self._life.set_timer()

    def boot(self, make: Callable[[Instant], Core]) -> Core:
        """Start a process: ``make`` gets the time and returns the core. What it raises comes out here, and nothing runs."""
        assert self.core is None, f"{self.name} runs already"
        self._network.power_on(self.host)
        self._clock = machine_clock(self._timeline, self)
        core = make(self.instant())
        self.core = core
        self.lives += 1
        self._life = _Life(self, core, self._timeline, self._network, self._random)
        self._timeline.note(self.name, "starts")
        self._life.start()
        return core

    def kill(self, *, power: bool = False) -> None:
        """End the process at once: killed (its system closes the connections), or its machine without power."""
        self._timeline.note(self.name, "loses power" if power else "is killed")
        self._end_life()
        if power:
            self._network.power_off(self.host)
        else:
            self._network.kill(self.host)

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.alive = False
            self._life.driver.kill()
            self._life = None
        self.core = None

    def stop(self, ended: Callable[[], None] = lambda: None) -> None:
        """Begin a clean stop; ``ended`` is called when the process has left."""
        assert self._life is not None, f"{self.name} does not run"
        self._timeline.note(self.name, "stops")
        self._life.stop(ended)

    def drive(self, operation: Op[Any], name: str = "") -> Task[Any]:
        """Run an operation inside this process."""
        assert self._life is not None, f"{self.name} does not run"
        return self._life.driver.start(operation, name)


class Closed(NamedTuple):
    """A connection that a core had closed: when, when it last brought bytes (or began), the other side, and the reason."""

    at_ms: int
    heard_ms: int
    remote: str
    reason: str


class _Life:
    """One run of a process: from boot to its end."""

    def __init__(self, host: CoreHost, core: Core, timeline: Timeline, network: Network, random: Any) -> None:
        self.alive = True
        self._host, self._core, self._timeline, self._network, self._random = host, core, timeline, network, random
        self._ends: dict[int, End] = {}
        self._heard_ms: dict[int, int] = {}
        self._turn_is_due = False
        self._timer: TimelineTimer | None = None
        self._works_running = 0
        self._leaving: Callable[[], None] | None = None
        self._endings = 0
        self.driver = Driver(
            timeline, Calls(timeline, network, host.host, lost=self._disconnected), host.now, f"{host.name}/{host.lives}"
        )

    def start(self) -> None:
        for address in self._host.addresses:
            self._network.listen(address, self._accept)
        self._guarded(lambda: self._core.start(self._host.instant()))

    def stop(self, ended: Callable[[], None]) -> None:
        for address in self._host.addresses:
            self._network.unlisten(address)
        self._leaving = ended

        def begin() -> None:
            operations = self._core.stop(self._host.instant())
            self._endings = len(operations)
            for operation in operations:
                self.driver.start(supervised(operation, self._wake), "stopping").then(self._operation_ended)
            self._commit()

        self._guarded(begin)

    def _operation_ended(self) -> None:
        self._endings -= 1
        self._wake()

    # ---------------------------------------------------------------- turns

    def _wake(self) -> None:
        if not self._turn_is_due and self.alive:
            self._turn_is_due = True
            self._timeline.after_us(self._random.randint(0, 150), self._turn)

    def _turn(self) -> None:
        self._turn_is_due = False
        self._guarded(self._commit)

    def _commit(self) -> None:
        if self._core.commit(self._host.instant()):
            self._carry_out_effects()
            if self.alive and self._core.commit(self._host.instant()):
                self._wake()  # others are read first, and connections may be lost before the rest is handled

    def _ring(self) -> None:
        self._timer = None

        def tick() -> None:
            now = self._host.instant()
            due = self._core.due(now)
            if due is not None and due <= now.steady:
                self._core.tick(now)

        self._guarded(tick)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Let the core do something and carry out what it leaves, unless its process has ended, or ends in it."""
        if not self.alive:
            return
        try:
            action()
            self._carry_out()
        except Stopped as stopped:
            self._timeline.note(self._host.name, f"is stopped in a write to {stopped}")
            self._host.on_stopped()

    def set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._host.instant()
        due = self._core.due(now)
        if due is not None and self.alive:
            wait_ms = max(0, due - now.steady)
            self._timer = self._timeline.after_us(wait_ms * 1000 + self._random.randint(1, 900), self._ring)

    # ---------------------------------------------------------------- effects

    def _carry_out(self) -> None:
        self._carry_out_effects()
        if self._leaving is not None and self.alive and self._endings == 0 and self._works_running == 0:
            ended, self._leaving = self._leaving, None
            self._leave(ended)
        elif self.alive:
            self.set_timer()

    def _carry_out_effects(self) -> None:
        while self.alive and (effects := self._core.effects()):
            for effect in effects:
                if isinstance(effect, Write):
                    if (end := self._ends.get(effect.peer)) is not None:
                        end.send(effect.chunks)
                elif isinstance(effect, Close):
                    if (end := self._ends.get(effect.peer)) is not None:
                        self._host.closed.append(Closed(self._timeline.now, self._heard_ms[effect.peer], end.remote, effect.reason))
                        end.close()
                        self._timeline.after_us(self._random.randint(0, 100), partial(self._lost, effect.peer))
                elif isinstance(effect, Work):
                    self._work(effect)
                else:
                    assert isinstance(effect, Start), effect
                    self.driver.start(supervised(effect.operation, self._wake), effect.name)

    def _leave(self, ended: Callable[[], None]) -> None:
        for end in list(self._ends.values()):
            end.close()
        self._timeline.note(self._host.name, "has left")
        self._host._end_life()
        self._network.kill(self._host.host)
        ended()

    def _work(self, work: Work[Any]) -> None:
        if work.inline and self._random.random() < 0.7:
            work.done(_outcome(work), self._host.instant())
            return
        self._works_running += 1
        low, high = self._host.work_us
        takes_us = self._random.randint(low, high)
        self._timeline.after_us(
            self._random.randint(0, takes_us), partial(self._work_happens, work, self._timeline.now_us + takes_us)
        )

    def _work_happens(self, work: Work[Any], ends_us: int) -> None:
        def happen() -> None:
            self._timeline.after_us(ends_us - self._timeline.now_us, partial(self._worked, work, _outcome(work)))

        self._guarded(happen)

    def _worked(self, work: Work[Any], outcome: Any) -> None:
        def done() -> None:
            self._works_running -= 1
            work.done(outcome, self._host.instant())

        self._guarded(done)

    # ---------------------------------------------------------------- connections

    def _accept(self, end: End) -> None:
        peer = next(self._host.peers)
        self._ends[peer], self._heard_ms[peer] = end, self._timeline.now
        end.on_data = partial(self._data, peer)
        end.on_closed = partial(self._lost, peer)
        self._guarded(lambda: self._core.connected(peer, end.remote, self._host.instant()))

    def _disconnected(self, address: str) -> None:
        if self.alive:
            self._host.on_disconnected(address)

    def _data(self, peer: int, data: bytes) -> None:
        if self.alive and peer in self._ends:
            self._heard_ms[peer] = self._timeline.now
            self._core.feed(peer, data)
            self._wake()

    def _lost(self, peer: int) -> None:
        self._heard_ms.pop(peer, None)
        if self.alive and self._ends.pop(peer, None) is not None:
            self._core.lost(peer, self._host.instant())
            self._wake()


def _outcome(work: Work[Any]) -> Any:
    try:
        return work.run()
    except Exception as exc:
        return exc
