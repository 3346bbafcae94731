"""One accepted connection: hands what it reads to the core, writes what the core answers, in plain text or TLS.

Which of the two it is, its first byte says. Knows nothing of frames. Slow readers are handled here.
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
from halfmoon.runtime.server.opening import HANDSHAKE_S, Opening
from halfmoon.runtime.server.places import Places
from halfmoon.runtime.server.proxy_protocol import BadPreamble, preamble
from halfmoon.runtime.tls import HANDSHAKE_BYTE, server_reason
from halfmoon.wire.peer import spoken

log = logging.getLogger("halfmoon.serve")

WRITE_HIGH_BYTES = 1024 * 1024
"""Unsent bytes of one connection at which we stop reading from it, so that it gets no more answers to fall behind with."""

WRITE_LOW_BYTES = 256 * 1024
"""Unsent bytes at which reading goes on."""

READ_MAX_BYTES = 512 * 1024
"""Bytes of one connection after which others are read first: uvloop reads up to 8 MB from one before it looks at the next."""

JOIN_MAX_BYTES = 64 * 1024
"""Chunks that together are smaller are joined before writing: a copy costs less than handing over many."""

CLOSING_MS = 5_000
"""How long a closing connection may take to receive what was written to it."""


ENDING_S, ENDING_LOOK_S = 30.0, 0.005
"""How long what a connection asked before the end of its stream may take to be answered, and how often that is looked at."""

Feed = Callable[[int, bytes], None]
"""Takes a connection's number and what it sent."""


HUNG_UP = "TLS: it hung up during the handshake; it may not trust our certificate"


class Host(Protocol):
    """What a connection needs of its server (`halfmoon.runtime.server.server.Server`)."""

    feed: Feed
    opening: Opening | None
    places: Places
    write_max_bytes: int
    turn_is_due: bool
    last_fed: int
    busy_polling: BusyPolling

    def accept(self, connection: Connection) -> int:
        """Count a new connection and return its number."""

    def introduce(self, peer: int, remote: str) -> None:
        """Tell the core of a new connection."""

    def certified(self, peer: int, names: tuple[str, ...]) -> None:
        """Tell the core whose certificate a connection showed."""

    def slow(self, peer: int, *, is_slow: bool) -> None:
        """Tell the core that a connection does not read what it is sent, or does again."""

    def unanswered(self, peer: int) -> bool:
        """Whether the core has requests of a connection that it did not answer yet."""

    def drop(self, peer: int, *, is_known: bool) -> None:
        """A connection is gone, of which the core may have been told."""

    def turn(self) -> None:
        """Have the core do what all connections brought."""

    def wake(self) -> None:
        """See to it that a turn comes."""


class Connection(asyncio.Protocol):
    """One accepted connection; the hot path of reading is `data_received`.

    ``_feed`` takes what is read: the core's own function for plain text, so that it costs nothing that there are other ways.
    """

    __slots__ = (
        "_counted", "_early", "_encryption", "_feed", "_file", "_is_slow", "_read_bytes", "peer", "remote", "server", "transport"
    )  # fmt: skip

    def __init__(self, server: Host, remote: str, *, is_counted: bool) -> None:
        self.server, self.remote = server, remote
        self._counted = remote if is_counted else None
        """Whose share it takes up (`Host.places`); None: not known yet."""
        self._feed = server.feed if server.opening is None else self._begin
        self._encryption: Encryption | None = None
        self._early: bytes | None = None
        """What came of a preamble; None: none is waited for, and the core knows of the connection."""
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
        if server.last_fed == peer:  # it is alone: nothing to wait for, and a round of the loop costs as much as its request
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
        """The other side sends no more, but may still read: answer what it sent before, then close."""
        self.server.wake()
        # Behind the turn, which was queued first and answers what came before the end.
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end, loop.time() + ENDING_S)
        return True

    def _end(self, deadline_s: float) -> None:
        """Close once what was asked is answered: requests that are many take several turns."""
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
        """Take bytes of a trusted proxy until it is known for whom it connects, or that it does not say."""
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
        """Tell the core who connects, and go on with what came behind the preamble."""
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
        """Its time for a handshake or a preamble is over."""
        if self._early == b"":  # a client that has nothing to say yet, where proxies are, too
            self._come_from(self.remote, b"")
        else:
            what = "TLS: no whole handshake" if self._encryption is not None else "PROXY protocol: no whole preamble"
            self.refuse(f"{what} within {HANDSHAKE_S:.0f} s")

    def _begin(self, peer: int, data: bytes) -> None:
        """Take the first bytes: they say whether this is TLS."""
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
        """Take bytes of its handshake."""
        self._read_on()
        self._decrypt(self.peer, data)
        self.server.wake()

    def hold(self) -> None:
        """Read no more until `shake` is called."""
        with suppress(RuntimeError):  # it is closing
            self.transport.pause_reading()

    def _decrypt(self, peer: int, data: bytes) -> None:
        encryption = self._encryption
        assert encryption is not None
        was_open = encryption.is_open
        try:
            plain = encryption.received(data)
        except ssl.SSLError as exc:
            self._send(encryption.outgoing.read())  # the alert that says why
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
        """Log why a connection is not taken, and close it; nothing that it sends is read any more."""
        assert self.server.opening is not None
        self.server.opening.over(self)
        self.server.opening.log.warning("connection refused: peer=%s reason=%s", self.remote, reason)
        self._ignore_all(reason)

    def _ignore_all(self, reason: str) -> None:
        self._feed = _ignore
        self.close(reason)

    # ------------------------------------------------------------ writing

    def write(self, chunks: Sequence[Any]) -> None:
        """Send what the core answers."""
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
        except ssl.SSLError as exc:  # the other side ended it, or has not even begun
            log.debug("peer %d takes no more: %s", self.peer, exc)
            return
        self._send(sealed)

    def _send(self, data: Any) -> None:
        """Write bytes, a few of them at once: the loop would write behind all that this turn still does."""
        transport, sent = self.transport, 0
        if len(data) <= JOIN_MAX_BYTES and not transport.get_write_buffer_size():
            try:
                sent = write(self._file, data)
            except OSError:
                pass  # it takes no more now, or is gone, which the transport finds out
        if sent < len(data):
            transport.write(memoryview(data)[sent:] if sent else data)

    def close(self, reason: str) -> None:
        """Close once what was written is sent, or by force when that takes too long."""
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
    """Take bytes of a connection that is being closed."""
