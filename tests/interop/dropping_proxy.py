"""A proxy between the two members of a pair that drops connections, cuts frames, holds bytes back and closes one direction."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from tests.interop.pairs import Pair
from tests.waiting import until

HERE, THERE = "127.0.0.2", "127.0.0.1"
"""Where it listens, which masters are to tell to slaves (``brokerIP2``), and where the masters listen. Ports are the same."""
SETTINGS = {"slave_address": HERE}
TO_MASTER, TO_SLAVE = 0, 1
DIRECTIONS = TO_MASTER, TO_SLAVE
FAULTS = ("drop", "cut", "hold one", "hold both", "shut")
HOLD_S = 0.2, 4.0
"""Shortest and longest time for which bytes are held back."""


LOST_S = 0.3
"""Time for which nothing reaches the slave before `lose_master` kills the master."""


def between(pair: Pair, dice: Random) -> DroppingProxy:
    """Return a proxy between the members of a pair that was made with `SETTINGS`, and has not started."""
    return DroppingProxy([port + 1 for port in pair.ports.values()], dice)


@contextmanager
def complete(pair: Pair, dice: Random) -> Iterator[DroppingProxy]:
    """Start a pair that was made with `SETTINGS`, with a proxy between its members; ``a`` is the master."""
    proxy = between(pair, dice)
    try:
        pair.start("a")
        until(lambda: pair.master() == "a", "a master")
        pair.start("b")
        pair.wait_complete()
        yield proxy
    finally:
        proxy.close()


def lose_master(pair: Pair, proxy: DroppingProxy) -> str:
    """Kill the master, and lose what it sent to its follower just before; wait for the takeover and return who was killed."""
    proxy.hold(TO_SLAVE)
    time.sleep(LOST_S)
    killed = pair.kill_master()
    proxy.drop()
    proxy.release()
    pair.wait_taken_over(killed)
    return killed


class _Link:
    """A connection of a slave and the one to its master: what writes to each, by direction, and the directions that are shut."""

    def __init__(self, to_master: asyncio.StreamWriter, to_slave: asyncio.StreamWriter) -> None:
        self.writers = to_master, to_slave
        self.shut: set[int] = set()

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class DroppingProxy:
    """Passes on what slaves and masters say to each other at replication ports. ``dice`` draw the faults of `strike`. Close it."""

    def __init__(self, ports: Iterable[int], dice: Random) -> None:
        self._ports, self._dice = tuple(ports), dice
        self._links: set[_Link] = set()
        self._cuts: set[int] = set()
        self._gates = asyncio.Event(), asyncio.Event()
        self._accepts = True
        self._servers: list[asyncio.Server] = []
        self.faults: Counter[str] = Counter()
        """Faults so far, by kind; ``link`` counts connections."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="dropping proxy", daemon=True)
        self._thread.start()
        self._run(self._open())
        self.release()

    def close(self) -> None:
        """Drop everything and end."""
        self.refuse()
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    # ------------------------------------------------------------ faults

    def strike(self, fault: str) -> None:
        """Do one of `FAULTS` to a connection that is there; return when it is over."""
        until(lambda: self._links, "a connection of a slave")
        direction = self._dice.choice(DIRECTIONS)
        if fault == "drop":
            self.drop()
        elif fault == "cut":
            self._call(self._cuts.add, direction)
            until(lambda: not self._cuts, "bytes to cut")
        elif fault == "shut":
            self._call(self._shut, direction)
            self.faults["shut"] += 1
        else:
            self.hold(*(DIRECTIONS if fault == "hold both" else (direction,)))
            time.sleep(self._dice.uniform(*HOLD_S))
            self.release()

    def drop(self) -> None:
        """End all connections at once; what was held is lost."""
        self._call(self._drop)
        self.faults["drop"] += 1

    def hold(self, *directions: int) -> None:
        """Pass nothing on in these directions until `release`."""
        for direction in directions:
            self._call(self._gates[direction].clear)
        self.faults["hold both" if len(directions) > 1 else "hold one"] += 1

    def release(self) -> None:
        """Pass on what was held."""
        for gate in self._gates:
            self._call(gate.set)

    def refuse(self) -> None:
        """End all connections, and new ones as soon as they are made, until `accept`."""
        self._accepts = False
        self._call(self._drop)

    def accept(self) -> None:
        """Pass new connections on again."""
        self._accepts = True

    # ------------------------------------------------------------ on the loop

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def _call(self, function: Any, *arguments: Any) -> None:
        async def called() -> None:
            function(*arguments)

        self._run(called())

    async def _open(self) -> None:
        for port in self._ports:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int = port) -> None:
                await self._serve(port, reader, writer)

            self._servers.append(await asyncio.start_server(serve, HERE, port))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _drop(self) -> None:
        while self._links:
            self._links.pop().abort()

    def _shut(self, direction: int) -> None:
        for link in self._links:
            link.shut.add(direction)
            with suppress(OSError):
                link.writers[direction].write_eof()

    async def _serve(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(THERE, port)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(far_writer, writer)
        if not self._accepts:
            link.abort()
            return
        self.faults["link"] += 1
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(link, direction, one)) for direction, one in zip(DIRECTIONS, (reader, far_reader))
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            link.abort()

    async def _pump(self, link: _Link, direction: int, reader: asyncio.StreamReader) -> None:
        """Pass on one direction of a connection until that ends. Bytes come in pieces that are no frames."""
        writer = link.writers[direction]
        with suppress(OSError):
            while data := await reader.read(64 * 1024):
                await self._gates[direction].wait()
                if direction in link.shut:
                    continue
                middle = self._dice.randrange(len(data))
                writer.write(data[:middle])
                await writer.drain()
                if direction in self._cuts:
                    self._cuts.discard(direction)
                    self.faults["cut"] += 1
                    writer.close()  # after what was written
                    await writer.wait_closed()
                    return
                writer.write(data[middle:])
                await writer.drain()
