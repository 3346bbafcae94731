"""Accepts connections on listening sockets and refuses those that are too many, before they cost more than a moment."""

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
"""Connections that may wait to be accepted: all clients of a cluster reconnect at the same moment. Follows serverSocketBacklog."""

ACCEPTED_A_TURN = 64
"""Connections accepted in one turn: a flood of them does not keep the others waiting."""

HANDSHAKE_S = 5.0
"""How long the handshake of a connection may take that begins with one."""

CONNECTIONS_MIN = 8
"""Connections for which there must be room at the start: fewer are taken up by servers that talk to each other."""

REFUSED_PAUSE_MS = 2
"""How long nobody is accepted when a turn refused all of these: with 4 µs each, refusals take an eighth of the time at most."""

PAUSE_MS = 200
"""How long nobody is accepted when the system has no descriptor for a connection."""


class TooFewDescriptors(HalfmoonError):
    """The process may not open enough files to serve anybody."""


class Acceptor:
    """Listens on bound sockets from now on. ``protocol`` makes what reads a connection from an address (``ip:port``), or None if
    it has too many; ``count`` says how many are open, ``count_max`` how many may be. ``tls`` gives the context of a connection that
    begins with a handshake, and counts while that lasts; None: it does not, or the protocol sees to it. `close` closes the sockets.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sockets: Sequence[socket.socket], 
        protocol: Callable[[str], asyncio.Protocol | None], count: Callable[[], int], count_max: int,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._loop, self._sockets, self._protocol = loop, list(sockets), protocol
        self._count, self._count_max, self._tls = count, count_max, tls
        self._files_max = connections_limit(allowed_descriptors())
        """Open files of the process at which a new connection is refused; the rest is the store's."""
        _check_room(self._files_max)
        self._accepting: set[asyncio.Task[Any]] = set()
        self._refused = 0
        self._lost = Refusals(loop)
        for sock in self._sockets:
            sock.listen(BACKLOG)
            sock.setblocking(False)
            loop.add_reader(sock, self._acceptable, sock)

    def close(self) -> None:
        """Accept nobody any more."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets.clear()
        for accepting in self._accepting:
            accepting.cancel()

    def _acceptable(self, listener: socket.socket) -> None:
        """Accept who waits, a few a turn. Who is too many is closed at once, before there is a transport."""
        taken = 0
        for _ in range(ACCEPTED_A_TURN):
            try:
                accepted, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:  # no descriptors: who waits goes on waiting
                self._pause(listener, PAUSE_MS)
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
            limit_s = None if context is None else HANDSHAKE_S
            task = self._loop.create_task(self._loop.connect_accepted_socket(
                partial(_the_same, protocol), accepted, ssl=context, ssl_handshake_timeout=limit_s
            ))  # fmt: skip
            self._accepting.add(task)
            task.add_done_callback(partial(self._accepted, protocol))
        if not taken:
            self._pause(listener, REFUSED_PAUSE_MS)

    def _pause(self, listener: socket.socket, ms: int) -> None:
        """Have who waits at a listener go on waiting for a while."""
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
        """Return why a connection is one too many; None: it is not. The system gives the lowest free number to each."""
        count = self._count()
        # Those that are being accepted are no connections yet, and would pass the bound together.
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
    """Refuse to listen where hardly anybody would be let in. Raises TooFewDescriptors."""
    with socket.socket() as next_file:
        room = files_max - next_file.fileno()
    if room < CONNECTIONS_MIN:
        allowed = allowed_descriptors()
        raise TooFewDescriptors(
            f"the system lets this process open {allowed} files: {allowed - files_max} are kept for the store, and the rest leaves"
            f" room for {max(room, 0)} connections, where {CONNECTIONS_MIN} is the least: raise the limit (ulimit -n)"
        )
