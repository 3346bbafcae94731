"""One connection for much data: many requests ahead of their answers, and bodies of answers that are copied once, by the system.

Used by one thread at a time. Never retries; after any error the connection is of no use. `runtime.connections.blocking_connections`
has those for small questions.
"""

from __future__ import annotations

import socket
import time
from itertools import count
from struct import Struct
from typing import Any

from halfmoon.errors import BadHeader, ConnectionLost, NetworkError
from halfmoon.limits import CONNECTION_IDLE_MS, FRAME_BYTES_MAX, HEADER_BYTES_MAX
from halfmoon.runtime.connections.encrypted import OutgoingTls
from halfmoon.runtime.connections.sockets import connect, connection_lost, is_open, limit_waits, request_timeout
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, decode, request_bytes
from halfmoon.wire.signature import Credentials

RECEIVE_BYTES = 4 * 1024 * 1024
"""What the system is asked to keep for us; it may grant less."""
IDLE_S = CONNECTION_IDLE_MS / 4000
"""An idle connection older than this is not used: the server is about to close it."""

_PREFIX = Struct(">iI")


class BulkConnection:
    """A connection to one address. ``timeout_ms`` bounds every wait for bytes. Raises ConnectFailed.

    Use: `ask` any number of times, `flush`, then `head` and `body` for each answer. Answers come in the order that the server
    chooses: the opaque of `ask` says which is which.
    """

    def __init__(
        self,
        address: str,
        timeout_ms: int,
        *,
        serialization: int = JSON,
        credentials: Credentials | None = None,
        tls: OutgoingTls | None = None,
    ) -> None:
        self.address = address
        self._used = time.monotonic()
        self._serialization, self._credentials = serialization, credentials
        self._timeout_ms = timeout_ms
        self._opaque = count(1)
        self._unsent: list[bytes] = []
        self._left = 0
        self._socket = connect(address, timeout_ms, tls)
        limit_waits(self._socket, timeout_ms)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)

    def ask(self, request: Any) -> int:
        """Queue a request; return its opaque. `flush` sends it."""
        opaque = next(self._opaque) & 0x7FFFFFFF
        self._unsent.append(request_bytes(request, b"", opaque, self._serialization, credentials=self._credentials))
        return opaque

    def flush(self) -> None:
        """Send what was asked. Raises ConnectionLost, RequestTimeout."""
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            try:
                self._socket.sendall(data)
            except OSError as exc:
                raise self._failed(exc) from exc

    def head(self) -> Command:
        """Return the next answer without its body, which must be read before the one after it.

        What the server asks of us is left out. Raises ConnectionLost (also for bytes that are no frame), RequestTimeout.
        """
        while True:
            assert self._left == 0
            total, mark = _PREFIX.unpack(self._exactly(_PREFIX.size))
            header_bytes = mark & 0xFFFFFF
            if total < 4 + header_bytes or total + 4 > FRAME_BYTES_MAX or header_bytes > HEADER_BYTES_MAX:
                raise self._lost(f"it sent bytes that are no frame: {total} bytes with a header of {header_bytes}")
            header = self._exactly(header_bytes)
            self._left = total - 4 - header_bytes
            try:
                command = decode(header, b"", mark >> 24)
            except BadHeader as exc:
                raise self._lost(f"it sent bytes that are no frame: {exc}") from exc
            if command.is_response:
                return command
            self.body()

    def body(self) -> bytes:
        """Return the body of the answer whose head was read. Raises ConnectionLost, RequestTimeout."""
        size, self._left = self._left, 0
        return self._exactly(size)

    def alive(self) -> bool:
        """Whether it can be used for something new: it is not old, and the other side has it open as far as is known."""
        return time.monotonic() - self._used <= IDLE_S and is_open(self._socket)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    # ------------------------------------------------------------ inside

    def _exactly(self, size: int) -> bytes:
        if size == 0:
            return b""
        chunks: list[bytes] = []
        try:
            while True:
                chunk = self._socket.recv(size, socket.MSG_WAITALL)
                if not chunk:
                    raise self._lost("closed by the peer")
                self._used = time.monotonic()
                if len(chunk) == size:
                    return chunk if not chunks else b"".join((*chunks, chunk))
                chunks.append(chunk)  # a time-out or a signal came in between
                size -= len(chunk)
        except OSError as exc:
            raise self._failed(exc) from exc

    def _lost(self, reason: str) -> ConnectionLost:
        return connection_lost(self.address, reason)

    def _failed(self, exc: OSError) -> NetworkError:
        if isinstance(exc, BlockingIOError | TimeoutError):
            return request_timeout(self.address, self._timeout_ms)
        return connection_lost(self.address, exc)
