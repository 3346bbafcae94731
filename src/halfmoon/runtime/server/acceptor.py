"""Acceptor of connections on listening sockets. Refuses connections above the bound at once."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from halfmoon.errors import HalfmoonError
from halfmoon.runtime.descriptors import allowed_descriptors, connections_limit
from halfmoon.runtime.server.addresses import address_text
from halfmoon.runtime.server.opening import Refusals

log = logging.getLogger("halfmoon.serve")

BACKLOG = 1024
"""Backlog of connections to accept: all clients of a cluster may reconnect at once. Follows serverSocketBacklog."""

ACCEPTED_A_TURN = 64
"""Connections accepted in one turn, so that a flood does not delay existing connections."""

HANDSHAKE_S = 5.0
"""Longest duration of a handshake."""

CONNECTIONS_MIN = 8
"""Connections that must be possible at the start: servers that talk to each other use fewer."""

REFUSED_PAUSE_MS = 2
"""Pause after a turn with refusals only: at 4 µs each, refusals take at most an eighth of the time."""

PAUSE_MS = 200
"""Pause after the system had no descriptor for a connection."""


class TooFewDescriptors(HalfmoonError):
    """Limit of open files that is too low for a server."""


class Acceptor:
    """Acceptor on bound sockets; listens from construction until `close`.

    ``protocol`` creates the protocol of a connection from an address (``ip:port``), or returns None if that address has too many;
    ``count`` returns the number of open connections, ``count_max`` their bound. ``tls`` returns the context of connections that
    begin with a handshake; None: plain text, or TLS inside the protocol.
    """

    handshake_s = HANDSHAKE_S
    pause_ms = PAUSE_MS

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sockets: Sequence[socket.socket], 
        protocol: Callable[[str], asyncio.Protocol | None], count: Callable[[], int], count_max: int,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._loop, self._sockets, self._protocol = loop, list(sockets), protocol
        self._count, self._count_max, self._tls = count, count_max, tls
        self._files_max = connections_limit(allowed_descriptors())
        """Number of open files from which connections are refused; the rest is reserved for the store."""
        _check_room(self._files_max)
        self._accepting: set[asyncio.Task[Any]] = set()
        self._refused = 0
        self._lost = Refusals(loop)
        for sock in self._sockets:
            sock.listen(BACKLOG)
            sock.setblocking(False)
            loop.add_reader(sock, self._acceptable, sock)

    def close(self) -> None:
        """Stop accepting, and close the sockets."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for accepting in self._accepting:
            accepting.cancel()

    def _acceptable(self, listener: socket.socket) -> None:
        """Accept waiting connections, a few a turn. Close those above the bound at once, without a transport."""
        taken = 0
        for _ in range(ACCEPTED_A_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:  # no descriptors: connections stay in the backlog
                self._pause(listener, self.pause_ms)
                self._log_refusal(f"they wait: {exc}")
                return
            if refusal := self._refusal(accepted):
                accepted.close()
                self._log_refusal(refusal)
                continue
            if (protocol := self._protocol(address_text(address))) is None:
                accepted.close()
                continue
            taken += 1
            accepted.setblocking(False)
            context = self._tls()
            limit_s = None if context is None else self.handshake_s
            task = self._loop.create_task(self._loop.connect_accepted_socket(
                partial(_the_same, protocol), accepted, ssl=context, ssl_handshake_timeout=limit_s
            ))  # fmt: skip
            self._accepting.add(task)
            task.add_done_callback(partial(self._accepted, protocol))
        if not taken:
            self._pause(listener, REFUSED_PAUSE_MS)

    def _pause(self, listener: socket.socket, ms: int) -> None:
        """Stop accepting at a listener for a while."""
        self._loop.remove_reader(listener)
        self._loop.call_later(ms / 1000, self._listen_again, listener)

    def _listen_again(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._acceptable, listener)

    def _accepted(self, protocol: asyncio.Protocol, task: asyncio.Task[Any]) -> None:
        self._accepting.discard(task)
        if task.cancelled():
            protocol.connection_lost(None)
        elif (error := task.exception()) is not None:
            self._lost.warning("a connection was accepted and lost: %s", error)
            protocol.connection_lost(None)

    def _refusal(self, accepted: socket.socket) -> str | None:
        """Return the reason to refuse a connection, or None. Relies on the system assigning the lowest free descriptor."""
        count = self._count()
        # Connections being accepted are not counted yet, and would exceed the bound together.
        if count + len(self._accepting) >= self._count_max:
            return f"{self._count_max} are open, the bound"
        if accepted.fileno() >= self._files_max:
            return (
                f"{count} are open; of the {allowed_descriptors()} files that the system lets this process open,"
                f" all but {self._files_max} are kept for the store"
            )
        return None

    def _log_refusal(self, why: str) -> None:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th ...
            log.warning("new connections are refused, %d so far: %s", self._refused, why)


def _the_same(protocol: asyncio.Protocol) -> asyncio.Protocol:
    return protocol


def _check_room(files_max: int) -> None:
    """Raise TooFewDescriptors if there is no room for `CONNECTIONS_MIN` connections."""
    with socket.socket() as next_file:
        room = files_max - next_file.fileno()
    if room < CONNECTIONS_MIN:
        allowed = allowed_descriptors()
        raise TooFewDescriptors(
            f"the system lets this process open {allowed} files: {allowed - files_max} are kept for the store, and the rest leaves"
            f" room for {max(room, 0)} connections, where {CONNECTIONS_MIN} is the least: raise the limit (ulimit -n)"
        )
