"""Frames of RocketMQ's replication port: reports of a slave, and chunks of the master's log.

A slave reports the end of its log, 8 bytes each time. The master answers with chunks: physical offset (8 bytes), size (4 bytes)
and that many bytes of the log, cut anywhere within one log file. A chunk of size 0 is a heartbeat. All numbers are big-endian and
signed.
Follows DefaultHAService, DefaultHAConnection and DefaultHAClient (RocketMQ 4.9.8).
"""

from __future__ import annotations

from struct import Struct
from typing import Final

REPORT = Struct(">q")
CHUNK_HEADER = Struct(">qi")

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
