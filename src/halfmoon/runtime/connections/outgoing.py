"""The outgoing connection of a core that copies from another server, in plain text or TLS: made, and again when it is lost."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from halfmoon.model import split_address
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.server.connection import ServerConnection
from halfmoon.runtime.server.process import STOP_MS, Address
from halfmoon.runtime.server.server import Server
from halfmoon.runtime.tls import HUNG_UP, client_reason

log = logging.getLogger("halfmoon.serve")

CONNECT_S = 5.0
"""Timeout of a connection."""
PAUSE_S = 1.0
"""Pause between connections. Follows DefaultHAClient, which waits 5 s."""


class ConnectingCore(Protocol):
    """Core that has one outgoing connection."""

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection."""

    @property
    def master(self) -> str | None:
        """Address to connect to; None: not known yet."""

    def refused(self, address: str, reason: str) -> None:
        """Note that no connection can be made."""


class Outgoing:
    """A server without ports, whose core is kept connected to the address that it names, from `start` to `stop`.

    With ``tls`` the connection is encrypted, and the core hears of it once the handshake is over.
    """

    pause_s = PAUSE_S

    def __init__(self, server: Server, core: ConnectingCore, tls: OutgoingTls | None = None) -> None:
        self._server, self._core, self._tls = server, core, tls
        self._task: asyncio.Task[None] | None = None
        self.connections_max = 1

    async def start(self) -> list[Address]:
        """Start the server, and begin to connect."""
        await self._server.start()
        self._task = asyncio.get_running_loop().create_task(self._keep())
        return []

    async def stop(self, within_ms: int = STOP_MS) -> None:
        """Make no more connections, and stop the server."""
        await self._end()
        await self._server.stop(within_ms)

    async def abort(self) -> None:
        """End as a killed process does."""
        await self._end()
        await self._server.abort()

    def join(self) -> None:
        """Wait, after the end, for works that threads still carry out. Blocks."""
        self._server.join()

    async def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep(self) -> None:
        while True:
            try:
                if not self._core.is_connected and (address := self._core.master) is not None:
                    await self._connect(address, self._core.refused)
            except Exception:  # our own mistake: the next attempt may go well
                log.exception("connecting failed")
            await asyncio.sleep(self.pause_s)

    async def _connect(self, address: str, refused: Callable[[str, str], None]) -> None:
        server, loop, tls = self._server, asyncio.get_running_loop(), self._tls
        host, port = split_address(address)
        kind = ServerConnection if tls is None else _EncryptedConnection
        context, name = (None, None) if tls is None else (tls.context(address), tls.name(address))
        if not server.places.take(address):
            return
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: kind(server, address, is_counted=True), host, port, ssl=context, server_hostname=name
                )
        except OSError as exc:  # a timeout is one, and a handshake that fails
            server.places.release(address)
            refused(address, _reason(exc, encrypted=tls is not None))
            server.wake()


class _EncryptedConnection(ServerConnection):
    """Connection whose transport encrypts: nothing may be written past it."""

    __slots__ = ()

    def _send(self, data: Any) -> None:
        self.transport.write(data)

    def eof_received(self) -> bool:
        return False  # TLS has no half that stays open


def _reason(exc: OSError, *, encrypted: bool) -> str:
    if encrypted and isinstance(exc, ConnectionAbortedError | ConnectionResetError):
        return HUNG_UP
    system = os.strerror(exc.errno) if exc.errno else ""
    return client_reason(exc) or system or str(exc) or f"no answer within {CONNECT_S:.0f} s"
