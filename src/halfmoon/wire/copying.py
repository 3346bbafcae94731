"""Frames of RocketMQ's replication port: reports of a slave, and chunks of the master's log.

A slave reports the end of its log, 8 bytes each time. The master answers with chunks: physical offset (8 bytes), size (4 bytes)
and that many bytes of the log, cut anywhere within one log file. A chunk of size 0 is a heartbeat. All numbers are big-endian and
signed.
Follows DefaultHAService, DefaultHAConnection and DefaultHAClient (RocketMQ 4.9.8).

Two brokers of ours agree on more. The slave begins with `GREETING`, which no report of RocketMQ is; from then on it sends `Report`,
and the master `FRAME`: kind, number and size, then that many bytes. A frame of kind

- LOG has bytes of the log, from offset *number* on;
- STATE has one value of what a broker keeps beside the log (`State`), which counts once the log has come to offset *number*;
- STAMP has no bytes: the slave has everything that the master has, and returns *number* with its next report;
- CHALLENGE has random bytes: the slave has to sign its greeting, and sends a `Signature` between its reports;
- REFUSAL has the reason why the master closes the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from hmac import compare_digest, digest
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
LOG, STATE, STAMP, CHALLENGE, REFUSAL = 1, 2, 3, 4, 5
STATE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest state: a saved table."""
CHALLENGE_BYTES: Final = 32
REFUSAL_BYTES_MAX: Final = 4096
SIGNED: Final = -3
"""First number of a `Signature`, where a report has an offset."""
SIGNATURE = Struct(">qH32s")  # | SIGNED | bytes of the access key | HMAC | then the access key
ACCESS_KEY_BYTES_MAX: Final = 1024
_PURPOSE: Final = b"halfmoon copies 1"
"""Begins what is signed: a signature of anything else is none here."""


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


class Signature(NamedTuple):
    """Answer of a slave to a challenge."""

    access_key: str
    code: bytes
    """HMAC-SHA256 with the account's secret, over the challenge, the hello and the access key."""


def sign(secret: bytes, challenge: bytes, hello: Hello, access_key: str) -> Signature:
    """Return the signature of a greeting. It is good for one connection, for each has another challenge."""
    return Signature(access_key, digest(secret, _PURPOSE + challenge + HELLO.pack(*hello) + access_key.encode(), sha256))


def is_signed(signature: Signature, secret: bytes, challenge: bytes, hello: Hello) -> bool:
    """Return whether a greeting is signed with a secret, in constant time."""
    return compare_digest(sign(secret, challenge, hello, signature.access_key).code, signature.code)


def encode_signature(signature: Signature) -> bytes:
    """Return a signature as it is sent."""
    key = signature.access_key.encode()
    return SIGNATURE.pack(SIGNED, len(key), signature.code) + key


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
    """Reports of one slave, put together from received bytes. ``hello`` is there once a slave of ours has said who it is.

    ``awaits_signature``: a signature may stand where a report begins; it is in ``signature`` once it came, and nothing is awaited.
    """

    __slots__ = ("_rest", "awaits_signature", "has_begun", "hello", "signature")

    def __init__(self) -> None:
        self._rest, self.has_begun, self.awaits_signature = b"", False, False
        self.hello: Hello | None = None
        self.signature: Signature | None = None

    def read(self, data: bytes) -> list[Report]:
        """Return the reports that are complete with these bytes. One of RocketMQ has an offset alone.

        A greeting that is not the first is a report like others, which no master believes. Raises ValueError for an access key
        that is too long.
        """
        data = self._rest + data
        if not self.has_begun and data[: REPORT.size] == _GREETING:
            if len(data) < REPORT.size + HELLO.size:
                self._rest = data
                return []
            self.hello = Hello._make(HELLO.unpack_from(data, REPORT.size))
            data = data[REPORT.size + HELLO.size :]
        self.has_begun |= self.hello is not None or len(data) >= REPORT.size
        if self.hello is None:
            return [Report(offset, 0, 0) for (offset,) in REPORT.iter_unpack(self._whole(data, REPORT.size))]
        reports = list[Report]()
        while self.awaits_signature and len(data) >= REPORT.size:
            if data.startswith(_SIGNED):
                if not (size := self._signature_size(data)):
                    self._rest = data
                    return reports
                data = data[size:]
            elif len(data) >= REPORTS.size:
                reports.append(Report._make(REPORTS.unpack_from(data)))
                data = data[REPORTS.size :]
            else:
                break
        return [*reports, *map(Report._make, REPORTS.iter_unpack(self._whole(data, REPORTS.size)))]

    def _whole(self, data: bytes, size: int) -> bytes:
        """Return the reports of a size that are whole, and keep the rest."""
        whole = len(data) - len(data) % size
        self._rest = data[whole:]
        return data[:whole]

    def _signature_size(self, data: bytes) -> int:
        """Read the signature with which bytes begin, and return how many it has; 0: it is not whole. Raises ValueError."""
        if len(data) < SIGNATURE.size:
            return 0
        _, size, code = SIGNATURE.unpack_from(data)
        if size > ACCESS_KEY_BYTES_MAX:
            raise ValueError(f"its signature names an access key of {size} bytes")
        if len(data) < (end := SIGNATURE.size + int(size)):
            return 0
        key = data[SIGNATURE.size : end].decode(errors="replace")
        self.signature, self.awaits_signature = Signature(key, code), False
        return end


_GREETING, _SIGNED = REPORT.pack(GREETING), REPORT.pack(SIGNED)


class FrameReader:
    """Frames of a master of ours, put together from received bytes. The log comes as it is received, all others whole."""

    __slots__ = ("_content", "_header", "_kind", "_left", "_next")

    def __init__(self) -> None:
        self._header, self._content = b"", bytearray()
        self._kind = self._next = self._left = 0
        """Kind of the frame that is being received, the offset of its next byte or its number, and how many are to come."""

    def read(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, number and bytes: of the log joined where it goes on, of all else when it is complete.

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
                self._content += part
                if not self._left:
                    yield self._kind, self._next, bytes(self._content)
                    self._content.clear()
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
    low, high = _SIZES.get(kind, (1, 0))
    if number < 0 or not low <= size <= high:
        raise ValueError(f"a frame of kind {kind} with {size} bytes and number {number}: it is no master of Halfmoon")


_SIZES: Final = {
    LOG: (0, CHUNK_BYTES_MAX), STATE: (1, STATE_BYTES_MAX), STAMP: (0, 0), CHALLENGE: (CHALLENGE_BYTES, CHALLENGE_BYTES),
    REFUSAL: (1, REFUSAL_BYTES_MAX),
}  # fmt: skip


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
