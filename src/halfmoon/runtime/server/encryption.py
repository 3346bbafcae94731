"""The TLS of one accepted connection, without its socket: bytes in, bytes out. Never waits, knows no frames.

The event loops' own TLS would sit between a connection and its socket; this one works inside a connection that exists, so plain and
encrypted connections share everything: how they are accepted, counted, read, written to, held back and closed.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from halfmoon.runtime.tls import client_names

RECORD_BYTES = 16 * 1024
"""The most that one TLS record holds, which is what one read gives."""


class Encryption:
    """The server's side of one connection. ``outgoing`` holds what must be sent after each call."""

    __slots__ = ("_incoming", "_tls", "has_ended", "is_open", "names", "outgoing")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self.outgoing, server_side=True)
        self.is_open = False
        """Whether the handshake is over."""
        self.has_ended = False
        """Whether the other side said that it sends no more."""
        self.names: tuple[str, ...] = ()
        """The names in the other side's verified certificate, read once: no handshake follows the first."""

    def received(self, data: bytes) -> bytes:
        """Take what came and return it as plain text, as far as records are whole. Raises ssl.SSLError: it cannot go on."""
        self._incoming.write(data)
        if not self.is_open:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.names = client_names(self._tls)
            self.is_open = True
        tls, incoming = self._tls, self._incoming
        chunks = []
        with suppress(ssl.SSLWantReadError):
            while incoming.pending or tls.pending():
                chunk = tls.read(RECORD_BYTES)
                if not chunk:
                    self.has_ended = True
                    break
                chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def sealed(self, data: bytes) -> bytes:
        """Return plain text as the bytes to send. Raises ssl.SSLError: before the handshake is over, or after the end."""
        write, sent = self._tls.write, 0
        view = memoryview(data)
        while sent < len(data):
            sent += write(view[sent:])
        return self.outgoing.read()

    def ending(self) -> bytes:
        """Return the bytes that say that nothing more is sent; none when that cannot be said."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self.outgoing.read()
