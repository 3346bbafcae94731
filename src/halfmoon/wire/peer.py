"""The connections of a server without their sockets: what each has sent, when it was last heard, what it is to be sent.

Bytes are accumulated by `Peers.feed` and cut into frames once a turn by `Peers.take`; answers are collected in each peer's
``out`` and leave as one `Write` a peer by `Peers.effects`. Bad frames, unfinished frames beyond the bound and idle connections
become a `Close`; who sends something else than frames is named in the log. `RequestBacklog` keeps what a connection asks beyond its
share of a turn. Never decides what a frame means.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import Any

from halfmoon.effects import Close, CoreEffect, Write
from halfmoon.errors import UsageError
from halfmoon.hot import Frame, split_frames
from halfmoon.instant import LONG_AGO, Steady
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
REQUESTS_A_TURN = 32
"""Requests of one connection that a turn handles; the others wait. They cost from 20 us to some milliseconds each."""

ALL_REQUESTS_A_TURN = 1024
"""Requests of all connections that a turn handles."""

ANSWERED_BYTES_A_TURN = 1024 * 1024
"""Answers to one connection in one turn, after which its next request waits: it gets no more before the socket took these."""

OVERLOAD = "[OVERLOAD]system busy, start flow control for a while"
"""Remark of the refusal (2) of what is too much. Follows NettyRemotingAbstract.processRequestCommand (4.9.8)."""

WAITING_MAX = 10_000
"""Requests of one connection that may wait. Follows sendThreadPoolQueueCapacity."""

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of the requests that wait, of all connections together. One has at most as many of them as are left free: half when it is
alone, a third of all beside another that has as many, so that whoever comes next can wait, too."""


class Peer:
    """One connection: who is there, bytes not yet handled, and answers of this turn."""

    __slots__ = (
        "chunks", "closing", "heard_at", "host", "names", "number", "out", "out_bytes", "remote", "size",
        "waiting_bytes", "wanted",
    )  # fmt: skip

    def __init__(self, number: int, remote: str, now: Steady) -> None:
        self.number, self.remote, self.heard_at = number, remote, now
        self.host = _host(remote)
        self.names: tuple[str, ...] = ()
        """The names in the certificate that it showed and that was verified; none where it showed none."""
        self.chunks: list[bytes | bytearray] = []
        self.size = 0
        self.wanted = 8
        self.out: list[Any] = []
        self.out_bytes = 0  # of the pieces in it that may be large, as whoever put them there counts
        self.closing = False
        """Nobody reads its answers any more: of what it asked, only what is one-way is still carried out."""
        self.waiting_bytes = 0


_NOTHING_MORE = 1 << 62
"""Bytes that a connection would have to bring before they are looked at, once it brought some that are no frame."""


def _host(remote: str) -> bytes:
    """Return the address as records keep it, 8 bytes or 20 (IPv6); zeros for a connection that was gone before it had one."""
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
        """Those that sent what is no frame or no header, and why; `effects` closes them once all else that came is answered."""
        self._closes: list[Close] = []
        self._idle_ms, self._partial_bytes_max = idle_ms, partial_bytes_max
        self._partial_bytes = 0
        self._scan_at = LONG_AGO
        self._knocks: RateLimitedLog | None = None
        self.refusals: dict[int, int] = {}
        """How many requests were answered with a refusal, by its code."""
        self.newest = -1
        """Number of the connection that came last; those of later ones are greater."""

    def __len__(self) -> int:
        return len(self._peers)

    def get(self, number: int) -> Peer | None:
        """Return the peer with this number while it is connected."""
        return self._peers.get(number)

    def connected(self, number: int, remote: str, now: Steady) -> Peer:
        """Take in a new connection; ``remote`` is ``ip:port``."""
        peer = self._peers[number] = Peer(number, remote, now)
        self.newest = number
        if self._scan_at == LONG_AGO:
            self._scan_at = now + self._idle_ms // 4
        return peer

    def certified(self, number: int, names: tuple[str, ...]) -> None:
        """Note whose certificate a connection showed."""
        if (peer := self._peers.get(number)) is not None:
            peer.names = names

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

    def take(self, now: Steady, read: Read = _read) -> list[tuple[Peer, bytes, list[Frame]]]:
        """Return, for each connection that brought whole frames since the last call, the peer, its bytes and their frames.

        ``read`` cuts them, and may keep some for itself. A connection whose next bytes are no frame is closed by `effects`, after
        what stood before them was answered; one whose bytes we fail to read is closed as well.
        """
        cut: list[tuple[Peer, bytes, list[Frame]]] = []
        fed, self._fed = self._fed, []
        for peer in fed:  # who was fed twice has too few bytes left the second time
            peer.heard_at = now
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
                self.stop_reading(peer, self._named(peer, data[used:], wrong, now))
        if self._partial_bytes > self._partial_bytes_max:
            self._shed()
        return cut

    def _named(self, peer: Peer, data: bytes, wrong: str, now: Steady) -> str:
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

    def refused(self, code: int, count: int = 1) -> None:
        """Count refusals."""
        self.refusals[code] = self.refusals.get(code, 0) + count

    def refuse(self, peer: Peer, frame: bytes, code: int) -> None:
        """Answer with a refusal, and count it."""
        self.refused(code)
        self.answer(peer, frame)

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

    def stop_reading(self, peer: Peer, wrong: str) -> None:
        """Close a connection once all whole frames that it brought are answered; further bytes are ignored.

        Follows NettyDecoder (4.9.7, tried): frames that came together with one whose header cannot be decoded are carried out,
        those behind it, too. Differs: what wants an answer gets it.
        """
        if peer.wanted != _NOTHING_MORE:
            self.wrong.append((peer, wrong))
            self._partial_bytes -= peer.size
            peer.chunks, peer.size, peer.wanted = [], 0, _NOTHING_MORE

    def close(self, peer: Peer, reason: str) -> None:
        """Have a connection closed after what it is still sent; its further bytes are ignored."""
        if not peer.closing:
            peer.closing = True
            self._partial_bytes -= peer.size
            peer.chunks.clear()
            peer.size = 0
            self._closes.append(Close(peer.number, reason))

    def due(self) -> Steady | None:
        """When `tick` wants to look for idle connections."""
        return self._scan_at if self._peers else None

    def tick(self, now: Steady) -> None:
        """Close connections that were silent for the idle time."""
        if now < self._scan_at:
            return
        self._scan_at = now + self._idle_ms // 4
        if self._knocks is not None:
            self._knocks.tick(now)
        for peer in list(self._peers.values()):
            if now - peer.heard_at >= self._idle_ms:
                self.close(peer, f"silent for {self._idle_ms} ms")

    def effects(self, waiting: Container[Peer] = ()) -> list[CoreEffect]:
        """Take out one `Write` for each peer that has answers, then the closes.

        Who brought bytes that are no frame is closed once nothing of it is ``waiting``: what stood before them is answered.
        """
        if self.wrong:
            wrong, self.wrong = self.wrong, []
            for peer, reason in wrong:
                if peer in waiting:
                    self.wrong.append((peer, reason))
                else:
                    self.close(peer, reason)
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


Asked = tuple[Peer, bytes, Frame]
"""A request that is not decoded yet: its connection, bytes that it lies in, and where."""

_WAITING_BYTES = 400
"""About what a request takes that waits, besides its frame."""


class RequestBacklog:
    """Requests that wait because their connection brought more than its share of a turn, or does not read its answers.

    So a connection that sends requests by the thousand keeps the others waiting no longer than a share takes. Those of one
    connection stay in order. What is too much to wait is left in ``excess``, for the core to refuse. A peer is ``in`` it while
    requests of its wait: what it sends now must not overtake them.
    """

    requests_a_turn = REQUESTS_A_TURN
    all_requests_a_turn = ALL_REQUESTS_A_TURN
    waiting_max = WAITING_MAX
    waiting_bytes_max = WAITING_BYTES_MAX

    def __init__(self) -> None:
        self.waiting: dict[Peer, deque[tuple[bytes, Frame]]] = {}
        """Requests for a further turn, the next connection first."""
        self.slow: dict[Peer, deque[tuple[bytes, Frame]]] = {}
        """Those of connections that do not read, which may have none."""
        self.waiting_bytes = 0
        self.excess: list[Asked] = []
        self._gone: dict[Peer, bool] = {}

    def __contains__(self, peer: object) -> bool:
        return peer in self.waiting or bool(self.slow.get(peer))  # type: ignore[call-overload]

    @property
    def is_due(self) -> bool:
        """Whether a further turn has something to do."""
        return bool(self.waiting or self.excess)

    def turn(self, cut: list[tuple[Peer, bytes, list[Frame]]]) -> list[Asked]:
        """Take in what `Peers.take` returned, and return what is handled in this turn."""
        waited = list(self.waiting)
        taken: list[Asked] = []
        for peer, data, frames in cut:
            count = self.requests_a_turn if len(taken) < self.all_requests_a_turn else 0
            if peer in self.waiting or peer in self.slow:
                count = 0
            taken += [(peer, data, frame) for frame in frames[:count]]
            if len(frames) > count:
                self._keep(peer, data, frames[count:])
        for peer in waited:
            if len(taken) >= self.all_requests_a_turn:
                break
            self._take_share(peer, taken)
        return taken

    def put_back(self, asked: list[Asked]) -> None:
        """Have requests that `turn` returned last wait after all, before the others of their connections.

        What others filled the room of meanwhile is left in ``excess``.
        """
        for peer, data, frame in reversed(asked):
            request = _alone(data, frame)
            if self.waiting_bytes + _size(request[1]) > self.waiting_bytes_max:
                self.excess.append((peer, *request))
            else:
                self._line(peer).appendleft(request)
                self._count(peer, _size(request[1]))

    def read(self, peer: Peer, data: bytes, read: Read) -> tuple[list[Frame], int, int, str | None]:
        """Read what a connection brought: by ``read``, which may keep sends for itself; only cut it while earlier requests wait."""
        return _read(peer, data) if peer in self else read(peer, data)

    def set_slow(self, peer: Peer, *, is_slow: bool) -> None:
        """Handle nothing more for a connection that does not read its answers, until it does."""
        waiting, slow = self.waiting, self.slow
        if is_slow:
            slow.setdefault(peer, waiting.pop(peer, deque()))  # said twice, what waits there stays
        elif queue := slow.pop(peer, None):
            waiting[peer] = queue

    def lost(self, peer: Peer) -> bool:
        """Return whether requests of a connection that is gone wait: further turns return them, and then `emptied` the peer.

        Of what waits, the core carries out what is one-way, for nobody waits for the rest.
        """
        self.set_slow(peer, is_slow=False)
        if peer in self.waiting:
            self._gone[peer], peer.closing = peer.closing, True
            return True
        return False

    def emptied(self) -> list[tuple[Peer, bool]]:
        """Take out the connections that are gone and of which nothing waits any more, each with whether we closed it."""
        if not self._gone:
            return []
        emptied = [peer for peer in self._gone if peer not in self.waiting]
        return [(peer, self._gone.pop(peer)) for peer in emptied]

    def drop(self, peer: Peer) -> None:
        """Forget what a connection asked."""
        self.waiting.pop(peer, None)
        self.slow.pop(peer, None)
        self._count(peer, -peer.waiting_bytes)

    def _line(self, peer: Peer) -> deque[tuple[bytes, Frame]]:
        """Return where requests of a connection wait; if they did not yet, its turn is the last."""
        line = self.slow.get(peer)
        return self.waiting.setdefault(peer, deque()) if line is None else line

    def _count(self, peer: Peer, size: int) -> None:
        self.waiting_bytes += size
        peer.waiting_bytes += size

    def _keep(self, peer: Peer, data: bytes, frames: list[Frame]) -> None:
        """Have requests wait, as far as there is room."""
        line = self._line(peer)
        for at, frame in enumerate(frames):
            size = _size(frame)
            if len(line) >= self.waiting_max or peer.waiting_bytes + size > self.waiting_bytes_max - self.waiting_bytes:
                self.excess += [(peer, data, frame) for frame in frames[at:]]
                break
            line.append(_alone(data, frame))
            self._count(peer, size)
        if not line:
            self.waiting.pop(peer, None)

    def _take_share(self, peer: Peer, taken: list[Asked]) -> None:
        """Take the next requests of a connection, which goes to the end of the line."""
        queue = self.waiting.pop(peer)
        for _ in range(min(self.requests_a_turn, len(queue))):
            data, frame = queue.popleft()
            self._count(peer, -_size(frame))
            taken.append((peer, data, frame))
        if queue:
            self.waiting[peer] = queue


def _alone(data: bytes, frame: Frame) -> tuple[bytes, Frame]:
    """Return a request with a copy of its own bytes: one that is small and waits must not keep all that was read with it."""
    serialization, start, body, end = frame
    return data[start:end], (serialization, 0, body - start, end - start)


def _size(frame: Frame) -> int:
    return frame[3] - frame[1] + _WAITING_BYTES
