"""A real broker and name server inside the test's process: on free ports of 127.0.0.1, with a temporary store, in milliseconds.

`LocalCluster` runs both on one event loop in a background thread; clients of any language connect to it. It stops cleanly, can be
killed (no farewell, nothing more is written) and started again on the same ports and data. Not for production: no signals, small
files, one machine.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, Unpack

from halfmoon.programs.configuration import BROKER, NAME_SERVER, configuration
from halfmoon.programs.embedded import SMALL, Programs, both, kill, start, stop
from halfmoon.testing.options import ClusterOptions

T = TypeVar("T")

HOST = "127.0.0.1"
STOP_MS = 10_000
WAIT_S = 60


class LocalCluster:
    """One name server and one broker in this process.

    ``data`` is the store's directory, made when it is missing. ``settings`` are any settings of name server, broker and store, by
    our names or RocketMQ's (``{"flushDiskType": "SYNC_FLUSH"}``); ours that only one of the three has may be keywords, too
    (``flush_disk_type="SYNC_FLUSH"``). ``nameserver`` and ``broker`` are addresses, ``127.0.0.1:port``,
    known once it was started. Use it as a context manager, or call `start` and `stop`. Belongs to one thread.
    """

    def __init__(self, data: Path, settings: Mapping[str, object] | None = None, **named: Unpack[ClusterOptions]) -> None:
        self.data = data
        self.nameserver = ""
        self.broker = ""
        self._settings: dict[str, object] = {**SMALL, **(settings or {}), **named}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._programs: Programs = ()
        self._ports = (0, 0)
        self._held: list[socket.socket] = []

    def __enter__(self) -> LocalCluster:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._let_go()

    def __repr__(self) -> str:
        return f"LocalCluster(nameserver={self.nameserver!r}, broker={self.broker!r}, running={self.running})"

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._loop is not None

    def start(self) -> None:
        """Start both and return when clients may connect; running already: nothing happens.

        Raises:
            SettingError: a setting is unknown or does not fit.
            StoreError: the store does not open.
        """
        if self.running:
            return
        self._let_go()
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
                self._run(stop(self._programs, STOP_MS))
            finally:
                self._end_loop()
                self._hold()

    def kill(self) -> None:
        """End both at once, as kill -9 does: no answer to what came last, no farewell to the name server, nothing is saved."""
        if self.running:
            try:
                self._run(kill(self._programs))
            finally:
                self._end_loop()
                self._hold()

    def restart(self) -> None:
        """Start again on the same ports and data; stops cleanly before, when it runs."""
        self.stop()
        self.start()

    def _hold(self) -> None:
        """Keep the ports until it starts again; nobody listens there.

        Else the system may give one to an outgoing connection, even to one that is just being made to it.
        """
        for port in self._ports:
            held = socket.socket()
            self._held.append(held)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # somebody was quicker
                held.bind((HOST, port))

    def _let_go(self) -> None:
        while self._held:
            self._held.pop().close()

    # ---------------------------------------------------------------- on the loop

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    async def _start(self) -> None:
        ports = {"nameserver.port": self._ports[0], "broker.port": self._ports[1]}
        settings = configuration(
            {**NAME_SERVER, **BROKER},
            host=HOST,
            assignments=[f"{name}={_text(value)}" for name, value in {**self._settings, **ports}.items()],
        )
        self._programs = names, broker = await both(settings, self.data)
        self._ports = (names.port, broker.port)
        self.nameserver, self.broker = names.address, broker.address
        await start(self._programs)

    def _end_loop(self) -> None:
        loop, self._loop = self._loop, None
        assert loop is not None
        assert self._thread is not None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(WAIT_S)
        loop.close()
        self._programs = ()


def _text(value: object) -> object:
    return value.name if isinstance(value, Enum) else value
