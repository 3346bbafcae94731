"""TLS of an accepted connection, without its socket: bytes in, bytes out. Never waits, knows no frames.

The event loops' own TLS sits between a connection and its socket; this one works inside an existing connection, so that plain and
encrypted connections share all code for accepting, counting, reading, writing, throttling and closing.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

from halfmoon.runtime.tls import client_names

RECORD_BYTES = 16 * 1024
"""Largest content of a TLS record, which is the result of one read."""


class Encryption:
    """Server side of a TLS connection. ``outgoing`` holds the bytes to send after each call."""

    __slots__ = ("_incoming", "_tls", "has_ended", "is_open", "names", "outgoing")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self.outgoing, server_side=True)
        self.is_open = False
        """Whether the handshake is over."""
        self.has_ended = False
        """Whether the other side ended its stream."""
        self.names: tuple[str, ...] = ()
        """Names in the other side's verified certificate, read once after the handshake."""

    def received(self, data: bytes) -> bytes:
        """Take received bytes and return the plain text of whole records. Raises ssl.SSLError if the connection cannot continue."""
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
        """Return the encrypted bytes of plain text. Raises ssl.SSLError before the handshake is over, or after the end."""
        write, sent = self._tls.write, 0
        view = memoryview(data)
        while sent < len(data):
            sent += write(view[sent:])
        return self.outgoing.read()

    def ending(self) -> bytes:
        """Return the bytes of a closing alert, or none if it cannot be sent."""
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        return self.outgoing.read()
