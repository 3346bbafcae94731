"""A real broker and name server inside the test's process: on free ports of 127.0.0.1, with a temporary store, in milliseconds.

`LocalCluster` runs both on one event loop in a background thread; clients of any language connect to it. It stops cleanly, can be
killed (nothing more is written, no farewell) and started again on the same ports and data. Not for production: one machine, no
signals, small files.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from halfmoon.broker.broker import Broker
from halfmoon.broker.settings import BrokerSettings
from halfmoon.effects import CoreEffect, Work
from halfmoon.nameserver.nameserver import NameServer
from halfmoon.nameserver.settings import NameServerSettings
from halfmoon.ports import Core
from halfmoon.shell.aio import Connections
from halfmoon.shell.clock import Clock
from halfmoon.shell.disk import RealDisk, RealLock
from halfmoon.shell.drive import Driver
from halfmoon.shell.serve import Server
from halfmoon.store.settings import StoreSettings

T = TypeVar("T")

HOST = "127.0.0.1"
STORE = {"commit_log_file_bytes": 16 * 1024**2, "queue_file_bytes": 200_000, "hash_slots": 5_000, "index_entries_max": 20_000}
"""Small files, so that a start costs milliseconds and a test little space; messages up to 4 MiB still fit."""

STOP_MS = 10_000
PORT_TRIES = 5


class LocalCluster:
    """One name server and one broker in this process.

    ``data`` is the store's directory. ``broker_settings`` and ``store_settings`` override fields of `BrokerSettings` and
    `StoreSettings` (``{"flush_disk_type": "SYNC_FLUSH"}``). Use it as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self, data: Path, *, broker_settings: dict[str, Any] | None = None, store_settings: dict[str, Any] | None = None
    ) -> None:
        self.data = data
        self.nameserver = ""
        self.broker = ""
        self._broker_settings, self._store_settings = broker_settings or {}, store_settings or {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ports: tuple[int, int] | None = None
        self._servers: list[Server] = []
        self._cores: list[_Mortal] = []
        self._disk: _HeldDisk | None = None
        self._connections: Connections | None = None
        self._driver: Driver | None = None

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._loop is not None

    def start(self) -> None:
        """Start both and return when clients may connect. Raises OSError when no port is free, StoreError for a bad store."""
        if self.running:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="halfmoon-local", daemon=True)
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Stop both cleanly: everything is synced, the store is closed. Stopped already: nothing happens."""
        if self.running:
            try:
                self._run(self._stop(STOP_MS))
            finally:
                self._end_loop()

    def kill(self) -> None:
        """End both at once, as kill -9 does: no farewell to clients or name server, nothing more is written."""
        if self.running:
            for core in self._cores:
                core.alive = False
            try:
                self._run(self._stop(0))
            finally:
                self._end_loop()

    def restart(self) -> None:
        """Start again on the same ports and data; stops cleanly before, when it runs."""
        self.stop()
        self.start()

    # ---------------------------------------------------------------- on the loop

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    async def _start(self) -> None:
        for attempt in range(PORT_TRIES):
            ports = self._ports or (free_port(), free_port())
            try:
                await self._start_at(*ports)
            except OSError:
                await self._stop(0)
                if self._ports is not None or attempt == PORT_TRIES - 1:
                    raise
            else:
                self._ports = ports
                return

    async def _start_at(self, nameserver_port: int, broker_port: int) -> None:
        clock = Clock()
        self.nameserver, self.broker = f"{HOST}:{nameserver_port}", f"{HOST}:{broker_port}"
        self._connections = Connections()
        self._driver = Driver(self._connections, clock)
        self._serve(NameServer(NameServerSettings(port=nameserver_port)), nameserver_port, clock)
        await self._servers[-1].start()
        settings = BrokerSettings(**{"address": HOST, "port": broker_port, "nameserver": self.nameserver, **self._broker_settings})
        self.data.mkdir(parents=True, exist_ok=True)
        self._disk = _HeldDisk(self.data)
        core = Broker(settings, StoreSettings(**{**STORE, **self._store_settings}), self._disk, Random(), clock.now())
        self._serve(core, broker_port, clock)
        await self._servers[-1].start()

    def _serve(self, core: Core, port: int, clock: Clock) -> None:
        mortal = _Mortal(core)
        self._cores.append(mortal)
        self._servers.append(Server(mortal, [(HOST, port)], clock, self._driver))

    async def _stop(self, within_ms: int) -> None:
        servers, self._servers = self._servers, []
        for server in reversed(servers):
            await server.stop(within_ms)
        self._cores.clear()
        if self._driver is not None:
            await self._driver.close()
        if self._connections is not None:
            await self._connections.close()
        if self._disk is not None:
            self._disk.let_go()
            self._disk = None

    def _end_loop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(10)
        loop.close()


class _Mortal:
    """A core that can be killed: then it is told nothing more, and nothing that it left is done."""

    def __init__(self, core: Core) -> None:
        self.core, self.alive = core, True
        self.feed = core.feed  # only accumulates

    def start(self, now: int) -> None:
        self.core.start(now)

    def connected(self, peer: int, remote: str, now: int) -> None:
        if self.alive:
            self.core.connected(peer, remote, now)

    def commit(self, now: int) -> None:
        if self.alive:
            self.core.commit(now)

    def lost(self, peer: int, now: int) -> None:
        if self.alive:
            self.core.lost(peer, now)

    def due(self) -> int | None:
        return self.core.due() if self.alive else None

    def tick(self, now: int) -> None:
        if self.alive:
            self.core.tick(now)

    def effects(self) -> list[CoreEffect]:
        if not self.alive:
            return []
        return [self._guarded(effect) if isinstance(effect, Work) else effect for effect in self.core.effects()]

    def stop(self, now: int) -> list[Any]:
        return self.core.stop(now) if self.alive else []

    def _guarded(self, work: Work[Any]) -> Work[Any]:
        def run() -> Any:
            return work.run() if self.alive else None

        def done(outcome: Any, now: int) -> None:
            if self.alive:
                work.done(outcome, now)

        return Work(run, done, work.inline, work.name)


class _HeldDisk(RealDisk):
    """A disk that gives its locks back when its process is said to have died."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._locks: list[RealLock] = []

    def lock(self, path: str) -> RealLock:
        self._locks.append(super().lock(path))
        return self._locks[-1]

    def let_go(self) -> None:
        for lock in self._locks:
            lock.release()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        port: int = found.getsockname()[1]
        return port


