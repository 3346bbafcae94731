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
from struct import Struct
from typing import Any

from halfmoon.errors import BadFrame, BadHeader, ConnectionLost, NetworkError, RequestTimeout
from halfmoon.limits import CONNECTION_IDLE_MS
from halfmoon.model import split_address
from halfmoon.runtime.connections.connect_errors import unreached
from halfmoon.wire.codes import JSON
from halfmoon.wire.command import Command, commands, request_bytes
from halfmoon.wire.frame import Inbox

CONNECT_TIMEOUT_MS = 3000
LINKS_MAX = 64
"""Connections of one client, to all addresses together; beyond it callers go another way."""
IDLE_S = CONNECTION_IDLE_MS / 4000
"""An idle connection older than this is closed and not used: the server is about to close it, too."""
LOOK_S = 0.2
"""A connection that was idle for longer is looked at before it is used: it may have been closed meanwhile."""

_READ_BYTES = 8 * 1024  # answers are short; a large buffer would be mapped and unmapped for each
_TIMEVAL = Struct("@ll")

log = logging.getLogger("halfmoon.runtime")


class Direct:
    """Idle connections by address; safe to use from many threads. Belongs to one process."""

    def __init__(
        self, *, serialization: int = JSON, links_max: int = LINKS_MAX, again: Callable[[str], object] | None = None
    ) -> None:
        """``again(address)`` is called in a caller's thread when a connection was made to an address that had lost one, or to
        which none could be made: who listens there may have forgotten us."""
        self._serialization = serialization
        self._opaque = count(1)
        self._links_max = links_max
        self._idle: dict[str, list[_Link]] = {}
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False
        self._again = again
        self._lost: set[str] = set()
        """Addresses whose last connection was lost or refused: no more than were ever asked."""

    def call(self, address: str, request: Any, body: bytes, timeout_ms: int) -> Command | None:
        """Send a request and return its reply, whatever its code; None, and nothing was sent: there is no room for a connection.

        ``timeout_ms`` covers connecting, sending and the reply. Raises ConnectFailed, ConnectionLost, RequestTimeout.
        """
        until = time.monotonic() + timeout_ms / 1000
        link = self._take(address) or self._open(address, timeout_ms)
        if link is None:
            return None
        opaque = next(self._opaque) & 0x7FFFFFFF
        try:
            reply = link.ask(request_bytes(request, body, opaque, self._serialization), opaque, until, timeout_ms)
        except BaseException as exc:
            self._drop(link)
            if isinstance(exc, ConnectionLost):
                self._lost.add(address)
                self._drop_idle(address)
            raise
        self._give(link)
        return reply

    def tell(self, address: str, request: Any, body: bytes, remark: str | None = None) -> bool:
        """Send a one-way request if that can be done without waiting; return whether it was. Raises nothing of the network."""
        link = self._take(address)
        if link is None:
            return False
        opaque = next(self._opaque) & 0x7FFFFFFF
        try:
            sent = link.tell(request_bytes(request, body, opaque, self._serialization, oneway=True, remark=remark))
        except BaseException:
            self._drop(link)
            raise
        if sent:
            self._give(link)
        else:
            self._drop(link)
        return sent

    def close(self) -> None:
        """Close what is idle now, and the others as they are given back."""
        self._closed = True
        for address in list(self._idle):
            self._drop_idle(address)

    # ------------------------------------------------------------ inside

    def _take(self, address: str) -> _Link | None:
        idle = self._idle.get(address)
        while idle:
            try:
                link = idle.pop()  # the one used last: the others grow old
            except IndexError:
                return None
            age = time.monotonic() - link.used
            if age < LOOK_S:
                return link
            if not link.alive():
                self._lost.add(address)
            elif age < IDLE_S:
                return link
            self._drop(link)
        return None

    def _give(self, link: _Link) -> None:
        link.used = time.monotonic()
        idle = self._idle.get(link.address)
        if idle is None:
            idle = self._idle.setdefault(link.address, [])
        idle.append(link)
        if self._closed:
            self._drop_idle(link.address)

    def _open(self, address: str, timeout_ms: int) -> _Link | None:
        with self._lock:
            if self._closed or self._count >= self._links_max:
                return None
            self._count += 1
        try:
            link = _Link(address, min(timeout_ms, CONNECT_TIMEOUT_MS) / 1000)
        except BaseException as exc:
            with self._lock:
                self._count -= 1
            if isinstance(exc, OSError):
                self._lost.add(address)
                raise unreached(address, exc) from exc
            raise
        if address in self._lost:
            self._lost.discard(address)
            self._tell_again(address)
        return link

    def _tell_again(self, address: str) -> None:
        try:
            if self._again is not None:
                self._again(address)
        except Exception as exc:
            log.debug("nobody could be told of a new connection: address=%s reason=%s", address, exc)

    def _drop(self, link: _Link) -> None:
        link.close()
        with self._lock:
            self._count -= 1

    def _drop_idle(self, address: str) -> None:
        idle = self._idle.get(address)
        while idle:
            try:
                self._drop(idle.pop())
            except IndexError:
                return


class _Link:
    """One connection, used by one thread at a time."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self.address = address
        self.used = time.monotonic()
        self._inbox = Inbox()
        self._limit_ms = 0
        self._socket = socket.create_connection(split_address(address), timeout_s)
        try:
            self._socket.settimeout(None)  # the system's own time-outs cost no call before each read
            if self._socket.family in (socket.AF_INET, socket.AF_INET6):
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, data: bytes, opaque: int, until: float, timeout_ms: int) -> Command:
        """Write a request and read until its answer is there."""
        try:
            if not timeout_ms // 2 <= self._limit_ms <= timeout_ms:
                self._wait_at_most(timeout_ms)
            self._socket.sendall(data)
            while True:
                if (found := self._read(opaque)) is not None:
                    return found
                left = until - time.monotonic()
                if left <= 0:
                    raise self._late(timeout_ms)
                self._wait_at_most(max(1, round(left * 1000)))
        except BlockingIOError:
            raise self._late(timeout_ms) from None
        except (BadFrame, BadHeader) as exc:
            raise ConnectionLost(
                f"connection to {self.address} lost: it sent bytes that are no frame: {exc}", self.address
            ) from exc
        except OSError as exc:
            raise ConnectionLost(f"connection to {self.address} lost: {exc}", self.address) from exc

    def _read(self, opaque: int) -> Command | None:
        """Read once; return the answer if it is whole then."""
        try:
            piece = self._socket.recv(_READ_BYTES)
        except BlockingIOError:  # the limit of an earlier request, which may have been shorter
            return None
        if not piece:
            raise self._lost("closed by the peer")
        self._inbox.feed(piece)
        for command in commands(self._inbox):
            if command.flag & 1 and command.opaque == opaque:
                return command
            log.debug("dropped on a connection that asks only: code=%s from=%s", command.code, self.address)
        return None

    def tell(self, data: bytes) -> bool:
        """Write without waiting; False: it did not take all, and is of no use any more."""
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT) == len(data)
        except OSError:
            return False

    def alive(self) -> bool:
        """Whether the other side has it open, as far as this one was told."""
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # closed, or it says something that nobody asked for

    def close(self) -> None:
        """Close it, after what was written."""
        self._socket.close()

    def _wait_at_most(self, timeout_ms: int) -> None:
        limit = _TIMEVAL.pack(timeout_ms // 1000, timeout_ms % 1000 * 1000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._limit_ms = timeout_ms

    def _lost(self, reason: str) -> NetworkError:
        return ConnectionLost(f"connection to {self.address} lost: {reason}", self.address)

    def _late(self, timeout_ms: int) -> NetworkError:
        return RequestTimeout(f"wait response on the channel <{self.address}> timeout, {timeout_ms}(ms)", self.address)
