"""Frames of RocketMQ's replication port: reports of a slave, and chunks of the master's log.

A slave reports the end of its log, 8 bytes each time. The master answers with chunks: physical offset (8 bytes), size (4 bytes)
and that many bytes of the log, cut anywhere within one log file. A chunk of size 0 is a heartbeat. All numbers are big-endian and
signed.
Follows DefaultHAService, DefaultHAConnection and DefaultHAClient (RocketMQ 4.9.8).

Two brokers of ours agree on more. The slave begins with `GREETING`, which no report of RocketMQ is; from then on it sends `Report`,
and the master `FRAME`: kind, number and size, then that many bytes. A frame of kind

- LOG has bytes of the log, from offset *number* on;
- STATE has one value of what a broker keeps beside the log (`State`), which counts once the log has come to offset *number*;
- STAMP has no bytes: the slave has everything that the master has, and returns *number* with its next report.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

REPORT = Struct(">q")
CHUNK_HEADER = Struct(">qi")

WHOLE_LOG: Final = -1
"""First report of an empty slave of ours: it wants the log from the oldest file on. An Apache master waits for another report."""

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024 - CHUNK_HEADER.size
"""Largest chunk that a slave of RocketMQ can take: header and bytes together fill its buffer."""


GREETING: Final = -2
"""First report of a slave of ours to a master of ours; a `HELLO` follows."""
HELLO = Struct(">16sqqq")
"""See `Hello`."""
NOBODY: Final = bytes(16)
"""The id of a slave that never takes a lease."""
REPORTS = Struct(">qqq")
"""How far the slave has the log, the number up to which it has saved every state, and the last stamp."""
FRAME = Struct(">bqi")
LOG, STATE, STAMP = 1, 2, 3
STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest state: a saved table."""


class Report(NamedTuple):
    """Report of a slave of ours."""

    offset: int
    states: int
    stamp: int


class Hello(NamedTuple):
    """How a slave of ours begins: its id if it is in a pair, else `NOBODY`; the epoch that it expects; and its log."""

    member: bytes
    epoch: int
    offset: int
    """From where on it wants the log; `WHOLE_LOG`: from the oldest file."""
    kept: int = 0
    """Up to where it has the log as is promised: durable with sync flush."""


class State(NamedTuple):
    """A value beside the log: a table (``kind`` FILE, ``name`` its path), or a row of the journal (its kind, its key).

    ``number`` grows with each, and is reported back. ``value`` None: there is none any more.
    """

    number: int
    kind: int
    name: bytes
    value: bytes | None


FILE: Final = 255
_STATE = Struct(">qBH?")


def encode_state(state: State) -> bytes:
    """Return a state as the bytes of a frame."""
    header = _STATE.pack(state.number, state.kind, len(state.name), state.value is not None)
    return b"".join((header, state.name, state.value or b""))


def decode_state(data: bytes) -> State:
    """Return the state in a frame. Raises ValueError."""
    if len(data) < _STATE.size:
        raise ValueError("a state is too short")
    number, kind, size, is_there = _STATE.unpack_from(data)
    if len(data) < _STATE.size + size:
        raise ValueError("a state is too short")
    value = data[_STATE.size + size :]
    return State(number, kind, data[_STATE.size : _STATE.size + size], value if is_there else None)


class ReportReader:
    """Reports of one slave, put together from received bytes. ``hello`` is there once a slave of ours has said who it is."""

    __slots__ = ("_has_begun", "_rest", "hello")

    def __init__(self) -> None:
        self._rest, self._has_begun = b"", False
        self.hello: Hello | None = None

    def read(self, data: bytes) -> list[Report]:
        """Return the reports that are complete with these bytes. One of RocketMQ has an offset alone.

        A greeting that is not the first is a report like others, which no master believes.
        """
        data = self._rest + data
        if not self._has_begun and data[: REPORT.size] == _GREETING:
            if len(data) < REPORT.size + HELLO.size:
                self._rest = data
                return []
            self.hello = Hello._make(HELLO.unpack_from(data, REPORT.size))
            data = data[REPORT.size + HELLO.size :]
        self._has_begun |= self.hello is not None or len(data) >= REPORT.size
        form = REPORT if self.hello is None else REPORTS
        whole = len(data) - len(data) % form.size
        self._rest = data[whole:]
        if self.hello is None:
            return [Report(offset, 0, 0) for (offset,) in form.iter_unpack(data[:whole])]
        return list(map(Report._make, form.iter_unpack(data[:whole])))


_GREETING = REPORT.pack(GREETING)


class FrameReader:
    """Frames of a master of ours, put together from received bytes. The log comes as it is received; of a state all is kept."""

    __slots__ = ("_header", "_kind", "_left", "_next", "_state")

    def __init__(self) -> None:
        self._header, self._state = b"", bytearray()
        self._kind = self._next = self._left = 0
        """Kind of the frame that is being received, the offset of its next byte or its number, and how many are to come."""

    def read(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, number and bytes: of states and stamps when they are complete, of the log joined where it goes on.

        Raises ValueError for what is no frame.
        """
        view, at, begin, parts = memoryview(data), 0, self._next, list[memoryview]()
        while at < len(data):
            if self._left:
                part = view[at : at + self._left]
                at, self._left = at + len(part), self._left - len(part)
                if self._kind == LOG:
                    parts.append(part)
                    self._next += len(part)
                    continue
                self._state += part
                if not self._left:
                    yield STATE, self._next, bytes(self._state)
                    self._state.clear()
                continue
            rest = FRAME.size - len(self._header)
            self._header += view[at : at + rest]
            at += rest
            if len(self._header) < FRAME.size:
                break
            kind, number, size = FRAME.unpack(self._header)
            self._header = b""
            if parts and (kind != LOG or number != self._next):
                yield LOG, begin, b"".join(parts)
                parts.clear()
            _check_frame(kind, number, size)
            if not parts:
                begin = number
            self._kind, self._next, self._left = kind, number, size
            if kind == STAMP:
                yield STAMP, number, b""
        if parts:
            yield LOG, begin, b"".join(parts)


def _check_frame(kind: int, number: int, size: int) -> None:
    """Raise ValueError for a header that no master of ours sends."""
    low, high = {LOG: (0, CHUNK_BYTES_MAX), STATE: (1, STATE_BYTES_MAX), STAMP: (0, 0)}.get(kind, (1, 0))
    if number < 0 or not low <= size <= high:
        raise ValueError(f"a frame of kind {kind} with {size} bytes and number {number}: it is no master of Halfmoon")


class ChunkReader:
    """Bytes of a master's log, out of the chunks that hold them. No more is kept than a part of a chunk's header."""

    __slots__ = ("_header", "_left", "_next")

    def __init__(self) -> None:
        self._header = b""
        self._next, self._left = -1, 0
        """Offset of the next byte of the chunk that is being received, and how many it still has."""

    def read(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of the log that came, joined where one chunk continues the other; heartbeats have none.

        Raises ValueError for an offset or a size that no chunk has.
        """
        view, at, begin, parts = memoryview(data), 0, self._next, list[memoryview]()
        while at < len(data):
            if part := view[at : at + self._left]:
                parts.append(part)
                at, self._next, self._left = at + len(part), self._next + len(part), self._left - len(part)
                continue
            rest = CHUNK_HEADER.size - len(self._header)
            self._header += view[at : at + rest]
            at += rest
            if len(self._header) < CHUNK_HEADER.size:
                break
            offset, size = CHUNK_HEADER.unpack(self._header)
            self._header = b""
            is_chunk = offset >= 0 and 0 <= size <= CHUNK_BYTES_MAX
            if parts and not (is_chunk and offset == self._next):
                yield begin, b"".join(parts)
                parts.clear()
            if not is_chunk:
                raise ValueError(f"a chunk of {size} bytes at offset {offset}: it is no master of RocketMQ")
            if not parts:
                begin = offset
            self._next, self._left = offset, size
        if parts:
            yield begin, b"".join(parts)
