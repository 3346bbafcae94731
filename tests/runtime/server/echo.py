"""A small core that answers what it hears once a turn, and a driver for the simplest operations: what its tests serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from halfmoon.effects import Write
from halfmoon.instant import Instant, Steady
from halfmoon.runtime.clock import Clock
from halfmoon.runtime.server.certificates import RELOAD_S
from halfmoon.runtime.server.server import Server


class Echo:
    """Says back what it hears, once a turn; remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.fed: list[tuple[int, bytes]] = []
        self.commits: list[list[tuple[int, bytes]]] = []
        self.left: list[Any] = []
        self.due_ms: int | None = None  # a date
        self.due_at: Steady | None = None
        self.waiting: set[int] = set()
        self.ticks: list[Steady] = []
        self.endings: list[Any] = []
        self.answer: Callable[[int, bytes], list[Any]] = lambda peer, data: [Write(peer, [data])]

    def start(self, now: Instant) -> None:
        self.told.append("start")

    def connected(self, peer: int, remote: str, now: Instant) -> None:
        self.told.append(("connected", peer, remote))

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        self.told.append(("certified", peer, names))

    def feed(self, peer: int, data: bytes) -> None:
        self.fed.append((peer, data))

    def commit(self, now: Instant) -> bool:
        if self.fed:
            self.commits.append(self.fed)
            joined: dict[int, bytes] = {}
            for peer, data in self.fed:
                joined[peer] = joined.get(peer, b"") + data
            for peer, data in joined.items():
                self.left += self.answer(peer, data)
            self.fed = []
        return False

    def unanswered(self, peer: int) -> bool:
        return peer in self.waiting

    def slow(self, peer: int, *, is_slow: bool) -> None:
        self.told.append(("slow" if is_slow else "reads", peer))

    def lost(self, peer: int, now: Instant) -> None:
        self.told.append(("lost", peer))

    def due(self, now: Instant) -> Steady | None:
        return self.due_at if self.due_ms is None else now.at(self.due_ms)

    def tick(self, now: Instant) -> None:
        self.ticks.append(now.steady)
        self.due_ms = self.due_at = None

    def effects(self) -> list[Any]:
        left, self.left = self.left, []
        return left

    def stop(self, now: Instant) -> list[Any]:
        self.told.append("stop")
        return self.endings


class SmallDriver:
    """Drives operations that only ask for the time or wait for a signal."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    async def run(self, operation: Any) -> Any:
        value: Any = None
        while True:
            try:
                asked = operation.send(value)
            except StopIteration as end:
                return end.value
            if hasattr(asked, "signal"):
                fired = asyncio.Event()
                if not asked.signal.subscribe(fired.set):
                    await fired.wait()
                value = True
            else:
                value = self.clock.now()

    def spawn(self, operation: Any, name: str = "") -> Any:
        return asyncio.ensure_future(self.run(operation))


@asynccontextmanager
async def serving(
    core: Echo, clock: Clock | None = None, *, reload_s: float = RELOAD_S, **options: Any
) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    """A server of a core on a free port, and the address."""
    clock = clock or Clock()
    server = Server(core, [("127.0.0.1", 0)], clock, SmallDriver(clock), **options)
    server.reload_s = reload_s
    (address,) = await server.start()
    try:
        yield server, address
    finally:
        await server.stop(2_000)
