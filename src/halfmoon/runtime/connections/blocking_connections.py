"""Connections for threads that wait: written and read in the caller's own thread, mostly one request at a time.

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
from struct import Struct
from typing import Any

from halfmoon.errors import BadHeader, ConnectFailed, ConnectionLost, NetworkError
from halfmoon.limits import CONNECTION_IDLE_MS, FRAME_BYTES_MAX, HEADER_BYTES_MAX
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.sockets import connect, connection_lost, is_open, limit_waits, no_frame, request_timeout
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, command_of, request_bytes
from halfmoon.wire.signature import Signs, nobody
from halfmoon.wire.table import request_text

CONNECTIONS_MAX = 64
"""Connections of one client, to all addresses together; beyond it callers go another way."""
IDLE_S = CONNECTION_IDLE_MS / 4000
"""An idle connection older than this is closed and not used: the server is about to close it, too."""
LOOK_S = 0.005
"""A connection that was idle for longer is checked before its use: a server that was started again has closed it."""

AHEAD_BYTES = 8 * 1024
"""Read at once of an answer: most are short, and a large buffer would be mapped and unmapped for each."""
RECEIVE_BYTES = 4 * 1024 * 1024
"""Receive buffer requested for a connection that reads nothing ahead; the system may grant less."""

_PREFIX = Struct(">iI")

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
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        """Open nothing yet.

        ``reconnected(address)`` is called in a caller's thread when a connection was made to an address that had lost one, or to
        which none could be made: the server there may have forgotten us. ``steady`` gives the seconds by which connections age.
        With ``tls`` all are encrypted. ``ahead_bytes`` are those of `SocketConnection`.
        """
        self._steady, self._tls, self._ahead_bytes = steady, tls, ahead_bytes
        self._serialization, self._signs = serialization, signs
        self._opaque = count(1)
        self._connections_max = connections_max
        self._idle: dict[str, list[SocketConnection]] = {}
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
        connection = self.take(address, timeout_ms)
        if connection is None:
            return None
        try:
            opaque, frame = self.frame(address, request, body)
            reply = connection.ask(frame, opaque, until, timeout_ms)
        except BaseException as exc:
            self.drop(connection)
            if isinstance(exc, ConnectionLost):
                self._lost.add(address)
                self._drop_idle(address)
            raise
        self.give(connection)
        return reply

    def tell(self, address: str, request: Any, body: bytes, remark: str | None = None) -> bool:
        """Send a one-way request if that can be done without waiting; return whether it was. Raises nothing of the network."""
        connection = self._idle_one(address)
        if connection is None:
            return False
        try:
            sent = connection.tell(self.frame(address, request, body, oneway=True, remark=remark)[1])
        except BaseException:
            self.drop(connection)
            raise
        if sent:
            self.give(connection)
        else:
            self.drop(connection)
        return sent

    def close(self) -> None:
        """Close what is idle now, and the others as they are given back."""
        self._closed = True
        for address in list(self._idle):
            self._drop_idle(address)

    # ------------------------------------------------------------ for many requests at a time

    def frame(
        self, address: str, request: Any, body: bytes = b"", *, oneway: bool = False, remark: str | None = None
    ) -> tuple[int, bytes]:
        """Return the opaque and the bytes of a request to an address."""
        opaque = next(self._opaque) & 0x7FFFFFFF
        by = self._signs(address)
        return opaque, request_bytes(request, body, opaque, self._serialization, oneway=oneway, remark=remark, credentials=by)

    def take(self, address: str, timeout_ms: int) -> SocketConnection | None:
        """Return a connection that nobody else uses, an idle one if there is; None: there is no room for another.

        It must be given back, or dropped. Raises ConnectFailed.
        """
        return self._idle_one(address) or self._open(address, timeout_ms)

    def give(self, connection: SocketConnection) -> None:
        """Keep a connection whose requests are all answered for the next use."""
        connection.used = self._steady()
        idle = self._idle.get(connection.address)
        if idle is None:
            idle = self._idle.setdefault(connection.address, [])
        idle.append(connection)
        if self._closed:
            self._drop_idle(connection.address)

    def drop(self, connection: SocketConnection) -> None:
        """Close a connection, for it failed, or requests on it are not answered yet."""
        connection.close()
        with self._lock:
            self._count -= 1

    # ------------------------------------------------------------ inside

    def _idle_one(self, address: str) -> SocketConnection | None:
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
            self.drop(connection)
        return None

    def _open(self, address: str, timeout_ms: int) -> SocketConnection | None:
        with self._lock:
            if self._closed or self._count >= self._connections_max:
                return None
            self._count += 1
        try:
            connection = SocketConnection(address, timeout_ms, self._tls, ahead_bytes=self._ahead_bytes)
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

    def _drop_idle(self, address: str) -> None:
        idle = self._idle.get(address)
        while idle:
            try:
                self.drop(idle.pop())
            except IndexError:
                return


class SocketConnection:
    """Connection to one address, used by one thread at a time, and of no use after an error.

    Use: `send` the frames of requests, then `head` and `body` for each answer. They come in the order that the server chooses:
    their opaque says which is which. ``timeout_ms`` bounds each wait for bytes. ``ahead_bytes`` are read at once where an answer is
    due, since most are short; with 0 the body of an answer is copied once, by the system. Raises ConnectFailed.
    """

    def __init__(self, address: str, timeout_ms: int, tls: OutgoingTls | None = None, *, ahead_bytes: int = AHEAD_BYTES) -> None:
        self.address = address
        self.used = 0.0
        """When it was given back."""
        self._ahead_bytes, self._ahead = ahead_bytes, b""
        self._left = 0
        self._until, self._timeout_ms = 0.0, timeout_ms
        self._socket = connect(address, timeout_ms, tls)
        self._wait_at_most(timeout_ms)
        if not ahead_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

    def ask(self, frame: bytes, opaque: int, until: float, timeout_ms: int) -> Command:
        """Send a request and return its whole answer, which must be there at a steady time.

        Raises ConnectionLost, RequestTimeout.
        """
        self._until, self._timeout_ms = until, timeout_ms
        if not timeout_ms // 2 <= self._limit_ms <= timeout_ms:
            self._wait_at_most(timeout_ms)
        self.send(frame)
        while (reply := self.head()).opaque != opaque:
            self.body()
            self._check_time()
        reply.body = self.body()
        return reply

    def send(self, frames: bytes) -> None:
        """Send requests. Raises ConnectionLost, RequestTimeout."""
        try:
            self._socket.sendall(frames)
        except OSError as exc:
            raise self._failed(exc) from exc

    def tell(self, frame: bytes) -> bool:
        """Send without waiting; False: it did not take all, and is of no use any more."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT) == len(frame)
        except OSError:
            return False

    def head(self) -> Command:
        """Return the next answer without its body, which must be read before the one after it.

        What the server asks of us is left out. Raises ConnectionLost (also for bytes that are no frame), RequestTimeout.
        """
        while True:
            assert self._left == 0
            total, mark = _PREFIX.unpack(prefix := self._exactly(_PREFIX.size))
            header_bytes = mark & 0xFFFFFF
            if total < 4 + header_bytes or total + 4 > FRAME_BYTES_MAX or header_bytes > HEADER_BYTES_MAX:
                raise self._lost(no_frame(prefix, f"{total} bytes with a header of {header_bytes}"))
            header = self._exactly(header_bytes)
            self._left = total - 4 - header_bytes
            try:
                command = command_of(header, b"", mark >> 24)
            except BadHeader as exc:
                raise self._lost(no_frame(prefix, exc)) from exc
            if command.flag & 1:
                return command
            log.debug("request from server ignored: request=%s from=%s", request_text(command.code), self.address)
            self.body()
            self._check_time()

    def body(self) -> bytes:
        """Return the body of the answer whose head was read. Raises ConnectionLost, RequestTimeout."""
        size, self._left = self._left, 0
        return self._exactly(size) if size else b""

    def alive(self) -> bool:
        """Whether the other side has it open, as far as this one was told."""
        return not self._ahead and is_open(self._socket)

    def close(self) -> None:
        """Close it, after what was written."""
        self._socket.close()

    # ------------------------------------------------------------ inside

    def _exactly(self, size: int) -> bytes:
        data = self._ahead
        if len(data) < size:
            chunks = [data] if data else []
            missing = size - len(data)
            while missing > 0:
                if chunks:
                    self._check_time()
                chunk = self._received(missing)
                chunks.append(chunk)
                missing -= len(chunk)
            data = b"".join(chunks)  # of one chunk that is the chunk itself
        self._ahead = data[size:]
        return data[:size]

    def _received(self, missing: int) -> bytes:
        """Return some of the next bytes: at least one, up to ``missing``, or what is read ahead."""
        while True:
            try:
                if missing < self._ahead_bytes:
                    chunk = self._socket.recv(self._ahead_bytes)
                else:
                    chunk = self._socket.recv(missing, socket.MSG_WAITALL)
            except OSError as exc:
                left = self._until - time.monotonic()
                if not isinstance(exc, BlockingIOError) or left <= 0:
                    raise self._failed(exc) from exc
                self._wait_at_most(max(1, round(left * 1000)))  # the limit of an earlier request may have been shorter
                continue
            if not chunk:
                raise self._lost("closed by the peer")
            return chunk

    def _check_time(self) -> None:
        """Raise RequestTimeout where the time of a question is over, though bytes came."""
        if 0 < self._until < time.monotonic():
            raise request_timeout(self.address, self._timeout_ms)

    def _lost(self, reason: str) -> ConnectionLost:
        return connection_lost(self.address, reason)

    def _failed(self, exc: OSError) -> NetworkError:
        if isinstance(exc, BlockingIOError | TimeoutError):
            return request_timeout(self.address, self._timeout_ms)
        return connection_lost(self.address, exc)

    def _wait_at_most(self, timeout_ms: int) -> None:
        limit_waits(self._socket, timeout_ms)
        self._limit_ms = timeout_ms
