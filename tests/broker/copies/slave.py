"""A slave without sockets: takes chunks as RocketMQ's does, and reports. It stands in for a process that copies a log."""

from __future__ import annotations

from typing import Any

from halfmoon.effects import Close, Write
from halfmoon.wire.copying import CHUNK_HEADER, REPORT


class Port:
    """The replication port of a broker: connections are numbers. ``closed`` are those that it ended, with the reasons."""

    def __init__(self, talk: Any) -> None:
        self.talk, self.core = talk, talk.broker.copies.feeding
        self.sent: dict[int, bytearray] = {}
        self.closed: dict[int, str] = {}
        self.wakes = 0
        self.core.wake = self._woken

    def _woken(self) -> None:
        self.wakes += 1

    def connect(self, peer: int, remote: str = "10.0.0.9:4000") -> int:
        """Connect a slave."""
        self.sent[peer] = bytearray()
        self.core.connected(peer, remote, self.talk.instant)
        self.run_effects()
        return peer

    def report(self, peer: int, offset: int) -> None:
        """Let a report arrive, and a turn pass."""
        self.core.feed(peer, REPORT.pack(offset))
        self.turn()

    def turn(self) -> None:
        """Let the core handle what arrived, until it has nothing more to send."""
        while self.core.commit(self.talk.instant):
            self.run_effects()
        self.run_effects()

    def wait(self, ms: int) -> None:
        """Let time pass, with every tick that the core asks for."""
        until = self.talk.now + ms
        while (due := self.core.due(self.talk.instant)) is not None and self.talk.now + (due - self.talk.instant.steady) <= until:
            self.talk.now += max(0, due - self.talk.instant.steady)
            self.core.tick(self.talk.instant)
            self.run_effects()
        self.talk.now = until

    def run_effects(self) -> None:
        """Carry out what the core leaves."""
        for effect in self.core.effects():
            if isinstance(effect, Write):
                self.sent[effect.peer] += b"".join(map(bytes, effect.chunks))
            elif isinstance(effect, Close):
                self.closed[effect.peer] = effect.reason
                self.core.lost(effect.peer, self.talk.instant)

    def take(self, peer: int, size: int | None = None) -> bytes:
        """Take out bytes that were sent to a slave: some, or all."""
        size = len(self.sent[peer]) if size is None else size
        taken = bytes(self.sent[peer][:size])
        del self.sent[peer][:size]
        return taken


class CopyingSlave:
    """The log of a slave: ``log`` are its bytes from offset ``start`` on; ``heartbeats`` counts chunks without bytes."""

    def __init__(self, file_bytes: int) -> None:
        self.start, self.log, self.heartbeats = 0, bytearray(), 0
        self._file_bytes, self._rest = file_bytes, b""

    @property
    def end(self) -> int:
        """Offset behind its last byte, which it reports; 0 while it has none."""
        return self.start + len(self.log) if self.log else 0

    def cut(self) -> None:
        """Lose the connection: a chunk that did not come whole is dropped."""
        self._rest = b""

    def receive(self, data: bytes) -> None:
        """Append the chunks that are whole with these bytes, as RocketMQ's slave does: at the end of its log only."""
        data = self._rest + data
        while len(data) >= CHUNK_HEADER.size:
            offset, size = CHUNK_HEADER.unpack_from(data)
            if len(data) < CHUNK_HEADER.size + size:
                break
            if not size:
                self.heartbeats += 1
            elif not self.log:
                self.start = offset
            assert offset == (self.start + len(self.log) if self.log else offset), "a slave would close the connection"
            assert offset // self._file_bytes == (offset + max(size, 1) - 1) // self._file_bytes, "a slave would lose the bytes"
            self.log += data[CHUNK_HEADER.size : CHUNK_HEADER.size + size]
            data = data[CHUNK_HEADER.size + size :]
        self._rest = data


def log_of(talk: Any, start: int = 0) -> bytes:
    """Return the bytes of a master's log from an offset on."""
    store = talk.broker.store
    segments, at, parts = store.log.segments, max(start, store.min_offset), []
    while at < store.end_offset:
        size = min(segments.base(at) + segments.file_bytes, store.end_offset) - at
        parts.append(bytes(segments.view(at, size)))
        at += size
    return b"".join(parts)
