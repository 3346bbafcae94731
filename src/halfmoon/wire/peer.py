"""The connections of a server without their sockets: what each has sent, when it was last heard, what it is to be sent.

Bytes are accumulated by `Peers.feed` and cut into frames once a turn by `Peers.take`; answers are collected in each peer's
``out`` and leave as one `Write` a peer by `Peers.effects`. Bad frames, unfinished frames beyond the bound and idle connections
become a `Close`; who sends something else than frames is named in the log. Never decides what a frame means.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Any

from halfmoon.effects import Close, CoreEffect, Write
from halfmoon.errors import UsageError
from halfmoon.hot import Frame, split_frames
from halfmoon.limits import CONNECTION_IDLE_MS, FRAME_BYTES_MAX, HEADER_BYTES_MAX, PARTIAL_BYTES_MAX
from halfmoon.logs import RateLimitedLog
from halfmoon.wire.ids import pack_host

log = logging.getLogger("halfmoon.wire")

CHUNKS_MAX = 64
"""Pieces of an unfinished frame that are kept as they came; further ones are gathered, for a tiny piece costs 48 bytes."""

GATHERED_BYTES = 64 * 1024
"""How large gathered pieces grow."""

SPOKEN_HERE = "RocketMQ's remoting protocol is spoken here, as clients of RocketMQ 4.x and halfmoon.client do"

_HTTP = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE) [^\r\n]{0,64}")
_BEGINNINGS = {
    b"PRI * HTTP/2": "HTTP/2, as gRPC clients do",
    b"\x16\x03": "TLS, which is off here (see tls.server.certPath)",
    b"PROXY ": "the PROXY protocol, which is not expected from there (see proxy_protocol_from)",
    b"\r\n\r\n\x00\r\nQUIT\n": "the PROXY protocol, which is not expected from there (see proxy_protocol_from)",
    b"SSH-": "SSH",
}


class Peer:
    """One connection: who is there, bytes not yet handled, and answers of this turn."""

    __slots__ = ("chunks", "closing", "heard_ms", "host", "number", "out", "out_bytes", "remote", "size", "wanted")

    def __init__(self, number: int, remote: str, now: int) -> None:
        self.number, self.remote, self.heard_ms = number, remote, now
        self.host = _host(remote)
        self.chunks: list[bytes | bytearray] = []
        self.size = 0
        self.wanted = 8
        self.out: list[Any] = []
        self.out_bytes = 0  # of the large pieces in it, as whoever put them there counts
        self.closing = False


def _host(remote: str) -> bytes:
    """The address as a stored record keeps it, 8 bytes or 20 for IPv6; zeros for a connection that was gone before it had one."""
    try:
        return pack_host(remote)
    except UsageError:
        return bytes(8)


def _gather(chunks: list[bytes | bytearray], data: bytes) -> None:
    """Add a piece to the last one where that still grows."""
    last = chunks[-1]
    if isinstance(last, bytearray) and len(last) < GATHERED_BYTES:
        last += data
    else:
        chunks.append(bytearray(data))


Read = Callable[[Peer, bytes], tuple[list[Frame], int, int, str | None]]
"""Returns frames, how many bytes they take, how many the next one needs, and what is wrong: see `halfmoon.hot.split_frames`."""


def _read(peer: Peer, data: bytes) -> tuple[list[Frame], int, int, str | None]:
    return split_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)


class Peers:
    """All connections of one server, by number."""

    def __init__(self, *, idle_ms: int = CONNECTION_IDLE_MS, partial_bytes_max: int = PARTIAL_BYTES_MAX) -> None:
        self._peers: dict[int, Peer] = {}
        self._fed: list[Peer] = []
        self.touched: list[Peer] = []
        """Those who are sent something by the next `effects`."""
        self.wrong: list[tuple[Peer, str]] = []
        """Those whose next bytes are no frame, and why; the next `effects` closes them."""
        self._closes: list[Close] = []
        self._idle_ms, self._partial_bytes_max = idle_ms, partial_bytes_max
        self._partial_bytes = 0
        self._scan_ms = 0
        self._knocks: RateLimitedLog | None = None
        self.newest = -1
        """Number of the connection that came last; those of later ones are greater."""

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, number: int) -> Peer | None:
        """Return the peer with this number while it is connected."""
        return self._peers.get(number)

    def connected(self, number: int, remote: str, now: int) -> Peer:
        """Take in a new connection; ``remote`` is ``ip:port``."""
        peer = self._peers[number] = Peer(number, remote, now)
        self.newest = number
        if not self._scan_ms:
            self._scan_ms = now + self._idle_ms // 4
        return peer

    def lost(self, number: int) -> Peer | None:
        """Forget a connection and return what it was."""
        peer = self._peers.pop(number, None)
        if peer is not None:
            self._partial_bytes -= peer.size
            peer.chunks.clear()
            peer.size = 0
            peer.closing = True
        return peer

    def feed(self, number: int, data: bytes) -> None:
        """Add bytes that arrived; nothing is looked at yet."""
        peer = self._peers.get(number)
        if peer is None or peer.closing:
            return
        if len(peer.chunks) < CHUNKS_MAX:
            peer.chunks.append(data)
        else:
            _gather(peer.chunks, data)
        peer.size += len(data)
        self._partial_bytes += len(data)
        self._fed.append(peer)

    def take(self, now: int, read: Read = _read) -> list[tuple[Peer, bytes, list[Frame]]]:
        """Return, for each connection that brought whole frames since the last call, the peer, its bytes and their frames.

        ``read`` cuts them, and may keep some for itself. A connection whose next bytes are no frame is closed by `effects`, after
        what stood before them was answered; one whose bytes we fail to read is closed as well.
        """
        cut: list[tuple[Peer, bytes, list[Frame]]] = []
        fed, self._fed = self._fed, []
        for peer in fed:  # who was fed twice has too few bytes left the second time
            peer.heard_ms = now
            if peer.size < peer.wanted or peer.closing:
                continue
            data = bytes(peer.chunks[0]) if len(peer.chunks) == 1 else b"".join(peer.chunks)
            try:
                frames, used, peer.wanted, wrong = read(peer, data)
            except Exception as exc:  # our own mistake: the others of this turn do not feel it
                log.error("what %s sent failed", peer.remote, exc_info=exc)
                self.close(peer, "what it sent failed")
                continue
            rest = len(data) - used
            self._partial_bytes += rest - peer.size
            peer.chunks = [data[used:]] if rest else []
            peer.size = rest
            if frames:
                cut.append((peer, data, frames))
            if wrong is not None:
                self.wrong.append((peer, self._named(peer, data[used:], wrong, now)))
        if self._partial_bytes > self._partial_bytes_max:
            self._shed()
        return cut

    def _named(self, peer: Peer, data: bytes, wrong: str, now: int) -> str:
        """Return what is wrong with the bytes of a peer, and log it where they are another protocol's."""
        name = spoken(data)
        if name is None:
            return wrong
        if self._knocks is None:
            self._knocks = RateLimitedLog(log, now)
        self._knocks.tick(now)
        self._knocks.warning("connection closed: peer=%s speaks %s; %s", peer.remote, name, SPOKEN_HERE)
        return f"it speaks {name}"

    def _shed(self) -> None:
        for peer in sorted(self._peers.values(), key=lambda peer: -peer.size):
            if self._partial_bytes <= self._partial_bytes_max:
                return
            self.close(peer, f"{peer.size} bytes of an unfinished frame while all connections together are over the bound")

    def answer(self, peer: Peer, chunk: Any) -> None:
        """Add bytes (or a view) to what this peer is sent at the end of the turn."""
        if not peer.out:
            self.touched.append(peer)
        peer.out.append(chunk)

    def tell(self, answers: Iterable[tuple[int, bytes]]) -> None:
        """Add an answer to what each connection is sent at the end of the turn, by number; those that are gone get none."""
        get = self._peers.get
        for number, answer in answers:
            peer = get(number)
            if peer is not None:
                if not peer.out:
                    self.touched.append(peer)
                peer.out.append(answer)

    def answers(self, peer: Peer, chunks: list[Any]) -> None:
        """Add several chunks in order."""
        if not peer.out:
            self.touched.append(peer)
        peer.out += chunks

    def close(self, peer: Peer, reason: str) -> None:
        """Have a connection closed after what it is still sent; its further bytes are ignored."""
        if not peer.closing:
            peer.closing = True
            self._partial_bytes -= peer.size
            peer.chunks.clear()
            peer.size = 0
            self._closes.append(Close(peer.number, reason))

    def due(self) -> int | None:
        """When `tick` wants to look for idle connections."""
        return self._scan_ms if self._peers else None

    def tick(self, now: int) -> None:
        """Close connections that were silent for the idle time."""
        if now < self._scan_ms:
            return
        self._scan_ms = now + self._idle_ms // 4
        if self._knocks is not None:
            self._knocks.tick(now)
        for peer in list(self._peers.values()):
            if now - peer.heard_ms >= self._idle_ms:
                self.close(peer, f"silent for {self._idle_ms} ms")

    def stepped(self, by_ms: int) -> None:
        """The clock was set: who was heard a moment ago still was."""
        self._scan_ms += by_ms if self._scan_ms else 0
        if self._knocks is not None:
            self._knocks.stepped(by_ms)
        for peer in self._peers.values():
            peer.heard_ms += by_ms

    def effects(self) -> list[CoreEffect]:
        """Take out one `Write` for each peer that has answers, then the closes."""
        if self.wrong:
            for peer, wrong in self.wrong:
                self.close(peer, wrong)
            self.wrong.clear()
        touched, self.touched = self.touched, []
        effects: list[CoreEffect] = []
        for peer in touched:
            effects.append(Write(peer.number, peer.out))
            peer.out = []
            peer.out_bytes = 0
        if self._closes:
            effects += self._closes
            self._closes = []
        return effects


def spoken(data: bytes) -> str | None:
    """Return what begins with these bytes; None: nothing that is known. Twelve bytes are enough, an HTTP request takes a line."""
    for beginning, name in _BEGINNINGS.items():
        if data.startswith(beginning):
            return name
    if match := _HTTP.match(data):
        return f"HTTP/1: {match[0].decode('latin-1')!r}"
    return None
