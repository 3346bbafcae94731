"""Accepted connection: passes received bytes to the core and writes its replies, in plain text or TLS.

The first byte decides between both. Knows nothing of frames. Handles slow readers.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from os import write
from typing import Any, Protocol, cast

from halfmoon.runtime.server.busy_polling import BusyPolling
from halfmoon.runtime.server.encryption import Encryption
from halfmoon.runtime.server.opening import HANDSHAKE_S, Handshakes
from halfmoon.runtime.server.places import Places
from halfmoon.runtime.server.proxy_protocol import BadPreamble, preamble
from halfmoon.runtime.tls import HANDSHAKE_BYTE, server_reason
from halfmoon.wire.peer import spoken

log = logging.getLogger("halfmoon.serve")

WRITE_HIGH_BYTES = 1024 * 1024
"""Unsent bytes of a connection above which reading from it stops, so that it causes no further replies."""

WRITE_LOW_BYTES = 256 * 1024
"""Unsent bytes below which reading resumes."""

READ_MAX_BYTES = 512 * 1024
"""Bytes read from one connection before others have their turn: uvloop alone reads up to 8 MB."""

JOIN_MAX_BYTES = 64 * 1024
"""Total size below which chunks are joined before writing: a copy costs less than many writes."""

CLOSING_MS = 5_000
"""Longest time for a closing connection to receive its pending bytes."""


ENDING_S, ENDING_LOOK_S = 30.0, 0.005
"""Longest time to answer requests that a connection sent before the end of its stream, and the interval of checks."""

Feed = Callable[[int, bytes], None]
"""Function that takes a connection's number and received bytes."""


HUNG_UP = "TLS: it hung up during the handshake; it may not trust our certificate"


class Host(Protocol):
    """Interface of the server to its connections (`halfmoon.runtime.server.server.Server`)."""

    feed: Feed
    opening: Handshakes | None
    places: Places
    write_max_bytes: int
    turn_is_due: bool
    last_fed: int
    busy_polling: BusyPolling

    def accept(self, connection: ServerConnection) -> int:
        """Count a new connection and return its number."""

    def introduce(self, peer: int, remote: str) -> None:
        """Tell the core of a new connection."""

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Tell the core the names in a connection's certificate."""

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Tell the core that a connection stopped or resumed reading."""

    def unanswered(self, peer: int) -> bool:
        """Return whether the core has unanswered requests of a connection."""

    def drop(self, peer: int, *, is_known: bool) -> None:
        """Remove a lost connection, and tell the core if it knows it."""

    def turn(self) -> None:
        """Let the core handle the received bytes of all connections."""

    def wake(self) -> None:
        """Schedule a turn."""


class ServerConnection(asyncio.Protocol):
    """Accepted connection; the hot path of reading is `data_received`.

    ``_feed`` takes received bytes; for plain text it is the core's own function, at no further cost."""

    __slots__ = (
        "_counted", "_early", "_encryption", "_feed", "_file", "_is_slow", "_read_bytes", "peer", "remote", "server", "transport"
    )  # fmt: skip

    def __init__(self, server: Host, remote: str, *, is_counted: bool) -> None:
        self.server, self.remote = server, remote
        self._counted = remote if is_counted else None
        """Address in whose share it counts (`Host.places`); None: not known yet."""
        self._feed = server.feed if server.opening is None else self._begin
        self._encryption: Encryption | None = None
        self._early: bytes | None = None
        """Received part of a preamble; None: none is expected, and the core knows the connection."""
        self.peer = self._read_bytes = 0
        self._is_slow = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._file = transport.get_extra_info("socket").fileno()
        server = self.server
        self.peer = server.accept(self)
        self.transport.set_write_buffer_limits(WRITE_HIGH_BYTES, WRITE_LOW_BYTES)
        if self._counted is None:
            assert server.opening is not None
            self._early, self._feed = b"", self._read_preamble
            server.opening.begin(self)
        else:
            server.introduce(self.peer, self.remote)

    def data_received(self, data: bytes) -> None:
        peer, server = self.peer, self.server
        self._feed(peer, data)
        self._read_bytes += len(data)
        if self._read_bytes >= READ_MAX_BYTES:
            self._let_others_read()
        if server.turn_is_due:
            return
        if server.last_fed == peer:  # the only connection with bytes: another round of the loop would cost as much as its request
            server.turn()
            server.busy_polling.answered()
        else:
            server.last_fed = peer
            server.wake()

    def _let_others_read(self) -> None:
        self._read_bytes = 0
        with suppress(RuntimeError):  # it is closing
            self.transport.pause_reading()
        asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._is_slow:
            with suppress(RuntimeError):
                self.transport.resume_reading()

    def eof_received(self) -> bool:
        """Answer all earlier requests after the other side closed its sending half, then close."""
        self.server.wake()
        # After the turn that was scheduled before and answers earlier requests.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end, loop.time() + ENDING_S)
        return True

    def _end(self, deadline_s: float) -> None:
        """Close once all requests are answered; many requests take several turns."""
        loop = asyncio.get_running_loop()
        if self.server.unanswered(self.peer) and loop.time() < deadline_s:
            loop.call_later(ENDING_LOOK_S, self._end, deadline_s)
        else:
            self.close("end of stream")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.server.opening is not None and self.server.opening.over(self) and self._encryption is not None:
            self.server.opening.log.warning("connection lost: peer=%s reason=%s", self.remote, HUNG_UP)
        self.server.drop(self.peer, is_known=self._early is None)
        if self._counted is not None:
            self.server.places.release(self._counted)
            self._counted = None

    def pause_writing(self) -> None:
        self._is_slow = True
        self.server.slow(self.peer, is_slow=True)
        with suppress(RuntimeError):  # it is closing
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_slow = False
        self.server.slow(self.peer, is_slow=False)
        self.server.wake()
        with suppress(RuntimeError):
            self.transport.resume_reading()

    # ------------------------------------------------------------ the first bytes, and TLS

    def _read_preamble(self, peer: int, data: bytes) -> None:
        """Take bytes of a trusted proxy until its preamble is complete, or known to be absent."""
        assert self._early is not None
        self._early += data
        try:
            found = preamble(self._early)
        except BadPreamble as exc:
            self.refuse(str(exc))
            return
        if found is not None:
            self._come_from(found.source or self.remote, self._early[found.size :])

    def _come_from(self, source: str, rest: bytes) -> None:
        """Tell the core the client's address, and continue with the bytes after the preamble."""
        server = self.server
        assert server.opening is not None
        server.opening.over(self)
        if not server.places.take(source):
            self._ignore_all("its address has too many connections")
            return
        self._counted = source
        if source != self.remote:
            log.debug("peer %d comes from %s through the proxy %s", self.peer, source, self.remote)
        self._early, self._feed, self.remote = None, self._begin, source
        server.introduce(self.peer, source)
        if rest:
            self._feed(self.peer, rest)

    def late(self) -> None:
        """Handle the end of the time for a handshake or a preamble."""
        if self._early == b"":  # a direct client that has not sent anything yet
            self._come_from(self.remote, b"")
        else:
            what = "TLS: no whole handshake" if self._encryption is not None else "PROXY protocol: no whole preamble"
            self.refuse(f"{what} within {HANDSHAKE_S:.0f} s")

    def _begin(self, peer: int, data: bytes) -> None:
        """Take the first bytes, which decide about TLS."""
        opening = self.server.opening
        assert opening is not None
        context = opening.context
        if context is not None and data[0] == HANDSHAKE_BYTE:
            self._encryption = Encryption(context)
            self._feed = self._step
            opening.begin(self)
        elif opening.takes_plain:
            self._feed = self.server.feed
        else:
            name = spoken(data)
            self.refuse(f"{name or 'plain text'}, where only TLS is spoken (tls.server.mode=enforcing)")
            return
        self._feed(peer, data)

    def _step(self, peer: int, data: bytes) -> None:
        assert self.server.opening is not None
        self.server.opening.step(self, data)

    def shake(self, data: bytes) -> None:
        """Take bytes of the handshake."""
        self._read_on()
        self._decrypt(self.peer, data)
        self.server.wake()

    def hold(self) -> None:
        """Stop reading until `shake` is called."""
        with suppress(RuntimeError):  # it is closing
            self.transport.pause_reading()

    def _decrypt(self, peer: int, data: bytes) -> None:
        encryption = self._encryption
        assert encryption is not None
        was_open = encryption.is_open
        try:
            plain = encryption.received(data)
        except ssl.SSLError as exc:
            self._send(encryption.outgoing.read())  # the TLS alert with the reason
            self.refuse(f"TLS: {server_reason(exc)}")
            return
        if encryption.outgoing.pending:
            self._send(encryption.outgoing.read())
        if encryption.is_open and not was_open:
            assert self.server.opening is not None
            self.server.opening.over(self)
            self._feed = self._decrypt
            if encryption.names:
                self.server.certified(peer, encryption.names)
        if plain:
            self.server.feed(peer, plain)
        if encryption.has_ended:
            self.eof_received()

    def refuse(self, reason: str) -> None:
        """Log the reason for refusing a connection, and close it without reading further."""
        assert self.server.opening is not None
        self.server.opening.over(self)
        self.server.opening.log.warning("connection refused: peer=%s reason=%s", self.remote, reason)
        self._ignore_all(reason)

    def _ignore_all(self, reason: str) -> None:
        self._feed = _ignore
        self.close(reason)

    # ------------------------------------------------------------ writing

    def write(self, chunks: Sequence[Any]) -> None:
        """Send replies of the core."""
        transport = self.transport
        if transport.is_closing():
            return
        if self._encryption is not None:
            self._write_sealed(self._encryption, chunks)
        elif len(chunks) > 1 and sum(map(len, chunks)) > JOIN_MAX_BYTES:
            transport.writelines(chunks)
        else:
            self._send(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if self._is_slow and transport.get_write_buffer_size() > self.server.write_max_bytes:
            log.warning(
                "connection of peer %d closed: it does not read, and over %d bytes are buffered for it",
                self.peer,
                self.server.write_max_bytes,
            )
            transport.abort()

    def _write_sealed(self, encryption: Encryption, chunks: Sequence[Any]) -> None:
        try:
            sealed = encryption.sealed(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        except ssl.SSLError as exc:  # closed by the other side, or TLS not yet established
            log.debug("peer %d takes no more: %s", self.peer, exc)
            return
        self._send(sealed)

    def _send(self, data: Any) -> None:
        """Write bytes; small ones directly, as the loop would write only after this turn."""
        transport, sent = self.transport, 0
        if len(data) <= JOIN_MAX_BYTES and not transport.get_write_buffer_size():
            try:
                sent = write(self._file, data)
            except OSError:
                pass  # full, or gone, which the transport will find out
        if sent < len(data):
            transport.write(memoryview(data)[sent:] if sent else data)

    def close(self, reason: str) -> None:
        """Close once all written bytes are sent, or by force after a timeout."""
        transport = self.transport
        if transport.is_closing():
            return
        log.debug("peer %d closed: %s", self.peer, reason)
        if self._encryption is not None and (ending := self._encryption.ending()):
            self._send(ending)
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(CLOSING_MS / 1000, transport.abort)


def _ignore(peer: int, data: bytes) -> None:
    """Drop bytes of a closing connection."""
