"""Applications that are killed as ``kill -9`` does it, anywhere in a program; another process of the group answers the checks.

The program runs in a forked child, whose transport hands each request to the parent's bus.
"""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from halfmoon.effects import Op
from halfmoon.model import Message, SendResult
from halfmoon.testing.events.transport import InMemory
from tests.events.machine.application import GROUP, Application
from tests.events.machine.dbapi import Connections
from tests.events.machine.sessions import Sessions
from tests.events.machine.verbs import verb


class Stored(NamedTuple):
    """A half message as the child knows it: ``number`` is its place among those of the parent."""

    message_id: str
    result: SendResult
    number: int


class PipeTransport(InMemory):
    """A `Transport` in the child. ``deadly``: whether it dies ``before`` or ``after`` its next request."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self.deadly = ""

    def settled_by(self, settle: Any) -> bool:
        """Return False: nobody looks, the publisher's threads decide."""
        return False

    def start(self, answer: Any) -> None:
        """Nobody asks the child."""

    def close(self, flush_ms: int) -> None:
        """Nothing is under way."""

    def new_id(self) -> str:
        return secrets.token_hex(16).upper()

    def prepare(self, messages: Sequence[Message], timeout_ms: int, check_after_s: int | None = None) -> Op[list[Stored]]:
        yield from ()
        (message,) = messages
        self._request("prepare", message, check_after_s)
        return [self._pipe.recv()]

    def decide(self, half: Stored, *, commit: bool) -> None:
        self._request("decide", half, commit)

    def leave(self, half: Stored) -> None:
        """The child answers no checks anyway."""

    def _request(self, *request: Any) -> None:
        if self.deadly == "before":
            die()
        self.tell(*request)
        if self.deadly == "after":
            die()

    def tell(self, *what: Any) -> None:
        """Send something to the parent."""
        with self._lock:
            self._pipe.send(what)


class Told(dict[str, str]):
    """Claims of the child, each told to its parent before it goes on."""

    def __init__(self, tell: Callable[..., None]) -> None:
        super().__init__()
        self._tell = tell

    def __setitem__(self, name: str, claim: str) -> None:
        super().__setitem__(name, claim)
        self._tell("claim", name, claim)


class Mortal(Application):
    """An application each of whose programs ends with the death of its process."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.traits = self.traits | {"mortal"}  # type: ignore[misc]  # each object is of one driver
        self.patience_s = 0.0  # the process that would find the outcome by itself is dead

    def _drive(self, program: Any) -> None:
        if self.carrier is not self.bus:  # in the child
            super()._drive(program)
            return
        near, far = Pipe()
        if (child := os.fork()) == 0:
            try:
                self._live(far, program)
            except Exception as mistake:
                far.send(("mistake", repr(mistake)))
            finally:
                die()
        program.close()
        far.close()
        self._serve(near)
        os.waitpid(child, 0)
        self.store.cut_off()
        self.store.end_prepared()

    def _live(self, pipe: Connection, program: Any) -> None:
        """Run a program with a publisher of the child's own."""
        self.carrier = PipeTransport(pipe)
        self.claims = Told(self.carrier.tell)
        self.publisher = self._publisher()
        self.publisher.start()
        self._drive(program)

    def _serve(self, pipe: Connection) -> None:
        """Do what the child asks for until it is dead."""
        member = self.bus.transport(GROUP)
        member.start(lambda stored: None)
        stored: list[Any] = []
        while True:
            try:
                kind, *request = pipe.recv()
            except (EOFError, ConnectionResetError):
                break
            if kind == "prepare":
                message, check_after_s = request
                stored += member.run(member.prepare([message], 1_000, check_after_s))
                try:
                    pipe.send(Stored(stored[-1].message_id, stored[-1].result, len(stored) - 1))
                except BrokenPipeError:
                    continue
            elif kind == "decide":
                member.decide(stored[request[0].number], commit=request[1])
            elif kind == "mistake":
                self.intruders.append(request[0])
            else:
                self.claims[request[0]] = request[1]
                self.counts["paired"] += request[1] == "paired"
        self.bus.kill(member)

    async def _whole(self, program: Sequence[str]) -> None:
        await self.steps(program)


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


class MortalSessions(Mortal, Sessions):
    """Sessions of SQLAlchemy."""


class MortalConnections(Mortal, Connections):
    """Connections of a driver."""


@verb("mortal", weight=2)
async def die_now(app: Application) -> None:
    die()


@verb("mortal", weight=2)
async def die_before_the_next_request(app: Application) -> None:
    app.carrier.deadly = "before"


@verb("mortal", weight=2)
async def die_after_the_next_request(app: Application) -> None:
    app.carrier.deadly = "after"
