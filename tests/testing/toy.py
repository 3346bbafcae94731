"""The smallest server: answers a query of an offset with the number it counts, and keeps books of how it was run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halfmoon.effects import Call, Close, CoreEffect, Start, Work, Write, sleep
from halfmoon.instant import Instant, Steady
from halfmoon.wire.codes import ONEWAY
from halfmoon.wire.command import Command, decode, encode, reply_command, request_command
from halfmoon.wire.frame import Inbox
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply

ASK = GetMaxOffset(topic="t", queue_id=0)


class Toy:
    """A core. ``on_request`` may be replaced; by default it answers with how many requests came."""

    def __init__(self) -> None:
        self.inboxes: dict[int, Inbox] = {}
        self.fed: list[int] = []
        self.turns: list[list[int]] = []
        self.requests = 0
        self.gone: list[int] = []
        self.ticks: list[int] = []
        self.due_ms: int | None = None
        self.left: list[CoreEffect] = []
        self.on_request: Callable[[int, Command], None] = self.answer
        self.stopping: list[Any] = []

    def start(self, now: Instant) -> None:
        self.started = now

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        assert peer not in self.inboxes
        self.inboxes[peer] = Inbox()

    def feed(self, peer: int, data: bytes) -> None:
        self.fed.append(peer)
        self.inboxes[peer].feed(data)

    def commit(self, now: Instant) -> None:
        self.now = now
        if self.fed:
            self.turns.append(self.fed)
            fed, self.fed = self.fed, []
            for peer in dict.fromkeys(fed):
                for frame in self.inboxes[peer].frames():
                    self.requests += 1
                    self.on_request(peer, decode(frame.header, frame.body, frame.serialization))

    def lost(self, peer: int, now: Instant) -> None:
        self.gone.append(peer)

    def due(self, now: Instant) -> Steady | None:
        return None if self.due_ms is None else now.at(self.due_ms)

    def tick(self, now: Instant) -> None:
        self.ticks.append(now.date)
        self.due_ms = None

    def effects(self) -> list[CoreEffect]:
        left, self.left = self.left, []
        return left

    def stop(self, now: Instant) -> list[Any]:
        return self.stopping

    # ------------------------------------------------------------ what requests do

    def answer(self, peer: int, request: Command) -> None:
        """Answer with the count of requests."""
        if not request.is_oneway:
            self.left.append(Write(peer, [encode(reply_command(request, header=OffsetReply(offset=self.requests)))]))

    def answer_after_work(self, peer: int, request: Command, *, run: Callable[[], int]) -> None:
        """Answer with what a `Work` returned, or -1 when it raised."""

        def done(outcome: int | Exception, now: Instant) -> None:
            offset = -1 if isinstance(outcome, Exception) else outcome
            self.left.append(Write(peer, [encode(reply_command(request, header=OffsetReply(offset=offset)))]))

        self.left.append(Work(run, done, name="toy"))

    def push(self, peer: int) -> None:
        """Ask the client something."""
        command = request_command(ASK, opaque=77)
        assert not command.flag & ONEWAY
        self.left.append(Write(peer, [encode(command)]))

    def hang_up(self, peer: int, request: Command) -> None:
        """Answer and close."""
        self.answer(peer, request)
        self.left.append(Close(peer, "enough"))

    def ask_elsewhere(self, address: str, found: list[Any]) -> None:
        """Start an operation that calls another server and keeps its answer."""

        def operation() -> Any:
            yield from sleep(5)
            found.append((yield Call(address, ASK, b"", 1000)))

        self.left.append(Start(operation(), "ask"))
