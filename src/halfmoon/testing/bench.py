"""`Bench`: a core alone, without time and network: connections are numbers, frames go in, commands come out. Nothing is random.

Where `CoreHost` runs a core as a machine does, a bench does one thing at a time, so that a test sees each step. Tests call the
verbs of a core here.
"""

from __future__ import annotations

from typing import Any

from halfmoon.effects import Close, Work, Write
from halfmoon.instant import Instant, instant
from halfmoon.wire.command import Command, decode
from halfmoon.wire.frame import Inbox


class Bench:
    """A core, its clock, and what its peers were sent.

    ``received`` are the commands for each peer, ``closed`` the reasons of connections that the core closed. While ``held_back`` is
    a list, works are kept in it instead of being run.
    """

    def __init__(self, now: int) -> None:
        self.now, self._steady_begins_ms = now, now
        self.held_back: list[Work[Any]] | None = None

    @property
    def instant(self) -> Instant:
        """Both times: the date ``now``, and a steady time that begins at 0 and that `set_clock` does not move."""
        return instant(self.now, self.now - self._steady_begins_ms)

    def set_clock(self, by_ms: int) -> None:
        """Set the clock of the core's machine forward, or back (below 0)."""
        self.now, self._steady_begins_ms = self.now + by_ms, self._steady_begins_ms + by_ms

    def begin(self, core: Any) -> None:
        """Start a core; nobody is connected to it."""
        self.core = core
        self.inboxes: dict[int, Inbox] = {}
        self.received: dict[int, list[Command]] = {}
        self.closed: dict[int, str] = {}
        core.start(self.instant)
        self.run_effects()

    def stop(self) -> list[Any]:
        """Stop the core cleanly; return the operations that it leaves."""
        operations: list[Any] = self.core.stop(self.instant)
        self.run_effects()
        return operations

    def connect(self, peer: int, remote: str | None = None) -> int:
        """Connect a peer, and return it."""
        self.core.connected(peer, remote or f"10.0.0.{peer}:5000", self.instant)
        self.inboxes[peer], self.received[peer] = Inbox(), []
        return peer

    def feed(self, peer: int, data: bytes) -> None:
        """Let bytes of a peer arrive; it is connected before, where it is not."""
        if peer not in self.inboxes:
            self.connect(peer)
        self.core.feed(peer, data)

    def turn(self) -> None:
        """Let the core handle what arrived."""
        while self.core.commit(self.instant):
            self.run_effects()
        self.run_effects()

    def wait(self, ms: int) -> None:
        """Let time pass, with every tick that the core asks for."""
        until = self.now + ms
        while (due := self.core.due(self.instant)) is not None and self.now + (wait_ms := due - self.instant.steady) <= until:
            self.now += max(0, wait_ms)
            self.core.tick(self.instant)
            self.run_effects()
        self.now = until

    def lose(self, peer: int) -> None:
        """Lose the connection of a peer."""
        self.core.lost(peer, self.instant)
        self.run_effects()

    def run_effects(self) -> None:
        """Carry out what the core leaves, and what that leaves."""
        while effects := self.core.effects():
            for effect in effects:
                if isinstance(effect, Write):
                    self._write(effect)
                elif isinstance(effect, Close):
                    self.closed[effect.peer] = effect.reason
                elif isinstance(effect, Work):
                    if (held := self.held(effect)) is None:
                        self.run_work(effect)
                    else:
                        held.append(effect)

    def _write(self, effect: Write) -> None:
        self.inboxes[effect.peer].feed(b"".join(bytes(chunk) for chunk in effect.chunks))
        for serialization, header, body in self.inboxes[effect.peer].frames():
            self.received[effect.peer].append(decode(header, bytes(body), serialization))

    def held(self, work: Work[Any]) -> list[Work[Any]] | None:
        """Return where a work is kept instead of being run, or None."""
        return self.held_back

    def run_work(self, work: Work[Any]) -> None:
        """Run a work, and tell the core what came of it."""
        try:
            result = work.run()
        except Exception as exc:
            result = exc
        work.done(result, self.instant)
