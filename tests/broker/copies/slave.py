"""Slaves without sockets, RocketMQ's and ours: they take the log and report. They stand in for a process that copies a log."""

from __future__ import annotations

from typing import Any

from halfmoon.broker.copies.reach import Reach
from halfmoon.broker.pairs.lease import Lease, Outcome
from halfmoon.effects import Close, Write
from halfmoon.instant import Steady
from halfmoon.wire.copying import (
    CHUNK_HEADER,
    FILE,
    GREETING,
    HELLO,
    LOG,
    REPORT,
    REPORTS,
    STATE,
    WHOLE_LOG,
    FrameReader,
    decode_state,
)

MEMBER = bytes(range(16))
OTHER = "b" * 32
"""The other member of a pair."""


def master_lease(now: Steady) -> Lease:
    """Return the lease of a master that is alone, in epoch 1."""
    lease = Lease("a" * 32, "DefaultCluster/broker-a", "127.0.0.1:10911", 6000, now)
    assert lease.step(now) is not None
    lease.done(Outcome(), now)
    write_lease(lease, now)
    assert lease.may_serve(now)
    return lease


def write_lease(lease: Lease, now: Steady) -> None:
    """Let a write of the lease succeed, if there is one to do."""
    if lease.step(now) is not None:
        lease.done(Outcome(version=str(lease.epoch + now)), now)


class Port:
    """The replication port of a broker: connections are numbers. ``closed`` are those that it ended, with the reasons."""

    def __init__(self, talk: Any) -> None:
        self.talk, self.core = talk, talk.broker.copies.feeding
        self.sent: dict[int, bytearray] = {}
        self.closed: dict[int, str] = {}
        self.wakes = 0
        self.core.wake, self.core.reach = self._woken, Reach("10.0.0.1:10911")

    def _woken(self) -> None:
        self.wakes += 1

    def connect(self, peer: int, remote: str = "10.0.0.9:4000") -> int:
        """Connect a slave."""
        self.sent[peer] = bytearray()
        self.core.connected(peer, remote, self.talk.instant)
        self.run_effects()
        return peer

    def report(self, peer: int, offset: int) -> None:
        """Let a report of a slave of RocketMQ arrive, and a turn pass."""
        self.say(peer, REPORT.pack(offset))

    def say(self, peer: int, data: bytes) -> None:
        """Let bytes arrive, and a turn pass."""
        self.core.feed(peer, data)
        self.turn()

    def follow(self, peer: int, member: str = OTHER) -> None:
        """Let a slave of ours report that it has everything, and the other member of a pair join if there is one."""
        store, pair = self.talk.broker.store, self.core.pair
        slave = self.core.slaves[peer]
        if slave.hello is None:
            hello = HELLO.pack(bytes.fromhex(member), pair.epoch, store.end_offset, store.end_offset)
            self.core.feed(peer, REPORT.pack(GREETING) + hello)
        self.turn()
        self.core.feed(peer, REPORTS.pack(store.end_offset, slave.states_sent, slave.stamp))
        self.turn()
        write_lease(pair.lease, self.talk.instant.steady)
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


def hello(offset: int = WHOLE_LOG, *, epoch: int = 1, kept: int = 0, member: bytes = MEMBER) -> bytes:
    """Return how a slave of ours begins."""
    return REPORT.pack(GREETING) + HELLO.pack(member, epoch, offset, kept)


class CopyingSlave:
    """The log of a slave: ``log`` are its bytes from offset ``start`` on; ``heartbeats`` counts chunks without bytes."""

    def __init__(self, file_bytes: int) -> None:
        self.start, self.log, self.heartbeats = 0, bytearray(), 0
        self._file_bytes, self._rest = file_bytes, b""

    @property
    def end(self) -> int:
        """Offset behind its last byte, which it reports; 0 while it has none."""
        return self.start + len(self.log) if self.log else 0

    def greeting(self) -> bytes:
        """Return its first bytes."""
        return self.report()

    def report(self) -> bytes:
        """Return its report."""
        return REPORT.pack(self.end)

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
            assert offset // self._file_bytes == (offset + max(size, 1) - 1) // self._file_bytes, "a slave would lose the bytes"
            self._take(offset, data[CHUNK_HEADER.size : CHUNK_HEADER.size + size])
            data = data[CHUNK_HEADER.size + size :]
        self._rest = data

    def _take(self, offset: int, chunk: bytes) -> None:
        if not self.log and chunk:
            self.start = offset
        assert offset == (self.start + len(self.log) if self.log else offset), "a slave would close the connection"
        self.log += chunk


class OurSlave(CopyingSlave):
    """A slave of ours: ``files`` and ``rows`` are what counts beside its log, ``stamps`` all that it was sent."""

    def __init__(self, file_bytes: int) -> None:
        super().__init__(file_bytes)
        self.files: dict[str, bytes] = {}
        self.rows: dict[tuple[int, bytes], bytes | None] = {}
        self.stamps: list[int] = []
        self.cut()

    def greeting(self) -> bytes:
        return hello(self.end or WHOLE_LOG, kept=self.end)

    def report(self) -> bytes:
        waiting = [state.number for _, state in self.waiting]
        return REPORTS.pack(self.end, min(waiting, default=self.come + 1) - 1, max(self.stamps[self._stamps_before :], default=0))

    def cut(self) -> None:
        self._frames, self.waiting, self.come, self._has_log = FrameReader(), [], 0, False
        self._stamps_before = len(self.stamps)

    def receive(self, data: bytes) -> None:
        for kind, number, content in self._frames.read(data):
            if kind == STATE:
                state = decode_state(content)
                assert state.number > self.come, "a state came out of order"
                assert number >= self.end or not self._has_log, "a state came behind the log that follows it"
                self.come = state.number
                self.waiting.append((number, state))
            elif kind == LOG:
                self._take(number, content)
                self._has_log = True
            else:
                self.stamps.append(number)
            self._save()

    def _save(self) -> None:
        for at, state in [each for each in self.waiting if each[0] <= self.end]:
            self.waiting.remove((at, state))
            if state.kind == FILE:
                self.files |= {state.name.decode(): state.value} if state.value is not None else {}
            else:
                self.rows[state.kind, state.name] = state.value


def log_of(talk: Any, start: int = 0) -> bytes:
    """Return the bytes of a master's log from an offset on."""
    store = talk.broker.store
    segments, at, parts = store.log.segments, max(start, store.min_offset), []
    while at < store.end_offset:
        size = min(segments.base(at) + segments.file_bytes, store.end_offset) - at
        parts.append(bytes(segments.view(at, size)))
        at += size
    return b"".join(parts)
