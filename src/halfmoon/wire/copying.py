"""Frames of RocketMQ's replication port: reports of a slave, and chunks of the master's log.

A slave reports the end of its log, 8 bytes each time. The master answers with chunks: physical offset (8 bytes), size (4 bytes)
and that many bytes of the log, cut anywhere within one log file. A chunk of size 0 is a heartbeat. All numbers are big-endian and
signed.
Follows DefaultHAService, DefaultHAConnection and DefaultHAClient (RocketMQ 4.9.8).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

REPORT = Struct(">q")
CHUNK_HEADER = Struct(">qi")

WHOLE_LOG: Final = -1
"""First report of an empty slave of ours: it wants the log from the oldest file on. An Apache master waits for another report."""

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024 - CHUNK_HEADER.size
"""Largest chunk that a slave of RocketMQ can take: header and bytes together fill its buffer."""


class ReportReader:
    """Reports of one slave, put together from received bytes."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> list[int]:
        """Return the offsets in the reports that are complete with these bytes."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        return [offset for (offset,) in REPORT.iter_unpack(data[:whole])]


class ChunkReader:
    """Chunks of a master's log, put together from received bytes. No more of them is kept than the largest chunk."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def read(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield physical offset and bytes of each chunk that is complete with these bytes; a heartbeat has none.

        Raises ValueError for an offset or a size that no chunk has.
        """
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= CHUNK_HEADER.size:
            offset, size = CHUNK_HEADER.unpack_from(data, at)
            if offset < 0 or not 0 <= size <= CHUNK_BYTES_MAX:
                raise ValueError(f"a chunk of {size} bytes at offset {offset}: it is no master of RocketMQ")
            if len(data) - at < CHUNK_HEADER.size + size:
                break
            at += CHUNK_HEADER.size
            yield offset, data[at : at + size]
            at += size
        self._rest = data[at:]
