"""Connections for threads that wait: each carries one request at a time, written and answered in the caller's own thread.

A request that is answered here wakes no other thread and no event loop. A thread takes an idle connection of the address, or makes
one, and gives it back with the answer. Never retries; a connection that failed in any way is closed, and with a lost one go all
that are idle. What servers ask of themselves comes on the connections of `runtime.connections.asyncio_connections`; here it is
dropped.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from halfmoon.errors import BadFrame, BadHeader, ConnectFailed, ConnectionLost
from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.sockets import connect, connection_lost, is_open, limit_waits, request_timeout
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, commands, request_bytes
from halfmoon.wire.frame import Inbox
from halfmoon.wire.signature import Signs, nobody

CONNECTIONS_MAX = 64
"""Connections of one client, to all addresses together; beyond it callers go another way."""
IDLE_S = CONNECTION_IDLE_MS / 4000
"""An idle connection older than this is closed and not used: the server is about to close it, too."""
LOOK_S = 0.2
"""A connection that was idle for longer is looked at before it is used: it may have been closed meanwhile."""

_READ_BYTES = 8 * 1024  # answers are short; a large buffer would be mapped and unmapped for each

log = logging.getLogger("halfmoon.runtime")


class BlockingConnections:
    """Idle connections by address; safe to use from many threads. Belongs to one process."""

    def __init__(
        self,
        *,
        serialization: int = JSON,
        signs: Signs = nobody,
        connections_max: int = CONNECTIONS_MAX,
        reconnected: Callable[[str], object] | None = None,
        steady: Callable[[], float] = time.monotonic,
        tls: OutgoingTls | None = None,
    ) -> None:
        """``reconnected(address)`` is called in a caller's thread when a connection was made to an address that had lost one, or to
        which none could be made: who listens there may have forgotten us. ``steady`` gives the seconds by which connections age.
        With ``tls`` all are encrypted."""
        self._steady, self._tls = steady, tls
        self._serialization, self._signs = serialization, signs
        self._opaque = count(1)
        self._connections_max = connections_max
        self._idle: dict[str, list[_Connection]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False
        self._reconnected = reconnected
        self._lost: set[str] = set()
        """Addresses whose last connection was lost or refused: no more than were ever asked."""

    def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Command | None:
        """Send a request and return its reply, whatever its code; None, and nothing was sent: there is no room for a connection.

        ``timeout_ms`` covers connecting, sending and the reply. Raises ConnectFailed, ConnectionLost, RequestTimeout.
        """
        until = time.monotonic() + timeout_ms / 1000
        connection = self._take(address) or self._open(address, timeout_ms)
        if connection is None:
            return None
        opaque = next(self._opaque) & 0x7FFFFFFF
        try:
            data = request_bytes(request, body, opaque, self._serialization, credentials=self._signs(address))
            reply = connection.ask(data, opaque, until, timeout_ms)
        except BaseException as exc:
            self._drop(connection)
            if isinstance(exc, ConnectionLost):
                self._lost.add(address)
                self._drop_idle(address)
            raise
        self._give(connection)
        return reply

    def tell(self, address: str, request: Any, body: bytes, remark: str | None = None) -> bool:
        """Send a one-way request if that can be done without waiting; return whether it was. Raises nothing of the network."""
        connection = self._take(address)
        if connection is None:
            return False
        opaque = next(self._opaque) & 0x7FFFFFFF
        try:
            sent = connection.tell(request_bytes(
                request, body, opaque, self._serialization, oneway=True, remark=remark, credentials=self._signs(address)
            ))  # fmt: skip
        except BaseException:
            self._drop(connection)
            raise
        if sent:
            self._give(connection)
        else:
            self._drop(connection)
        return sent

    def close(self) -> None:
        """Close what is idle now, and the others as they are given back."""
        self._closed = True
        for address in list(self._idle):
            self._drop_idle(address)

    # ------------------------------------------------------------ inside

    def _take(self, address: str) -> _Connection | None:
        idle = self._idle.get(address)
        while idle:
            try:
                connection = idle.pop()  # the one used last: the others grow old
            except IndexError:
                return None
            age = self._steady() - connection.used
            if age < LOOK_S:
                return connection
            if not connection.alive():
                self._lost.add(address)
            elif age < IDLE_S:
                return connection
            self._drop(connection)
        return None

    def _give(self, connection: _Connection) -> None:
        connection.used = self._steady()
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle.setdefault(connection.address, [])
        idle.append(connection)
        if self._closed:
            self._drop_idle(connection.address)

    def _open(self, address: str, timeout_ms: int) -> _Connection | None:
        with self._lock:
            if self._closed or self._count >= self._connections_max:
                return None
            self._count += 1
        try:
            connection = _Connection(address, timeout_ms, self._tls)
        except BaseException as exc:
            with self._lock:
                self._count -= 1
            if isinstance(exc, ConnectFailed):
                self._lost.add(address)
            raise
        if address in self._lost:
            self._lost.discard(address)
            self._report_reconnected(address)
        return connection

    def _report_reconnected(self, address: str) -> None:
        try:
            if self._reconnected is not None:
                self._reconnected(address)
        except Exception as exc:  # the request can go on all the same
            log.debug("a new connection could not be reported: address=%s reason=%s", address, exc)

    def _drop(self, connection: _Connection) -> None:
        connection.close()
        with self._lock:
            self._count -= 1

    def _drop_idle(self, address: str) -> None:
        idle = self._idle.get(address)
        while idle:
            try:
                self._drop(idle.pop())
            except IndexError:
                return


class _Connection:
    """One connection, used by one thread at a time."""

    def __init__(self, address: str, timeout_ms: int, tls: OutgoingTls | None) -> None:
        self.address = address
        self.used = 0.0  # when it was given back
        self._inbox = Inbox()
        self._limit_ms = 0
        self._socket = connect(address, timeout_ms, tls)

    def ask(self, data: bytes, opaque: int, until: float, timeout_ms: int) -> Command:
        """Write a request and read until its answer is there."""
        try:
            if not timeout_ms // 2 <= self._limit_ms <= timeout_ms:
                self._wait_at_most(timeout_ms)
            self._socket.sendall(data)
            while True:
                if (reply := self._read(opaque)) is not None:
                    return reply
                left = until - time.monotonic()
                if left <= 0:
                    raise request_timeout(self.address, timeout_ms)
                self._wait_at_most(max(1, round(left * 1000)))
        except BlockingIOError:
            raise request_timeout(self.address, timeout_ms) from None
        except (BadFrame, BadHeader) as exc:
            raise connection_lost(self.address, f"it sent bytes that are no frame: {exc}") from exc
        except OSError as exc:
            raise connection_lost(self.address, exc) from exc

    def _read(self, opaque: int) -> Command | None:
        """Read once; return the answer if it is whole then."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:  # the limit of an earlier request, which may have been shorter
            return None
        if not data:
            raise connection_lost(self.address, "closed by the peer")
        self._inbox.feed(data)
        for command in commands(self._inbox):
            if command.flag & 1 and command.opaque == opaque:
                return command
            log.debug("request from server ignored: code=%s from=%s", command.code, self.address)
        return None

    def tell(self, data: bytes) -> bool:
        """Write without waiting; False: it did not take all, and is of no use any more."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            return False

    def alive(self) -> bool:
        """Whether the other side has it open, as far as this one was told."""
        return is_open(self._socket)

    def close(self) -> None:
        """Close it, after what was written."""
        self._socket.close()

    def _wait_at_most(self, timeout_ms: int) -> None:
        limit_waits(self._socket, timeout_ms)
        self._limit_ms = timeout_ms
