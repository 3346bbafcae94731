"""How far delayed messages are delivered, written at once: after a kill nothing is delivered twice. One small file, never waits.

Layout of ``delay/progress``: two slots of 2 KiB, written in turn (big endian)::

    0 magic 8 | 8 sequence u64 | 16 log position i64 | 24 number of levels i32 | 28 number of begun i32
    32 timer: due i64, offset i64, low i64 | 56 for each level i32, offset i64
    and for each begun level i32 (0 timer), count i32, log position i64 | crc u32

A delivery is *begun* before its records are appended and *done* after it, so whoever starts knows which records to look for, and
from which position of the log on. Not synced: a slot that speaks of a log behind the end of the one that is there is not believed,
and ``config/delayOffset.json`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.ports import Disk, File

PROGRESS = "delay/progress"
LEVELS_MAX, BEGUN_MAX = 100, 40
"""Levels that have room in a slot; of others only the saved table knows."""

_HEAD = Struct(">8sQqiiqqq")
_BEGUN = Struct(">iiq")
_LEVEL = Struct(">iq")
_CRC = Struct(">I")
_MAGIC = b"halfdly2"
_SLOT_BYTES = 2048
TIMER = 0
"""The level that stands for the timer."""


class Progress(NamedTuple):
    """``position`` is the end of the log when this was written, before what was begun last was appended."""

    position: int
    levels: Mapping[int, int]
    """Queue offset of the next message, by level."""
    timer: tuple[int, int]
    """Due time and queue offset of the last message of the timer topic that was delivered; (-1, -1): none."""
    low: int
    """No message of the timer topic below this queue offset waits."""
    begun: tuple[tuple[int, int, int], ...] = ()
    """Level, how many queue entries, and the end of the log then: their delivery was begun, and perhaps cut short."""


class ProgressFile:
    """The file."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file: File | None = None
        self._sequence = 0

    def read(self) -> Progress | None:
        """Return the newest slot that is whole, None when there is none. Raises OSError."""
        data = self._disk.read(PROGRESS) or b""
        newest: Progress | None = None
        for start in range(0, len(data), _SLOT_BYTES):
            sequence, progress = _parse(data[start : start + _SLOT_BYTES])
            if progress is not None and sequence > self._sequence:
                self._sequence, newest = sequence, progress
        return newest

    def write(self, progress: Progress) -> None:
        """Write the next slot. Raises OSError when the disk has no room for the file."""
        file = self._opened()
        self._sequence += 1
        file.write(self._sequence % 2 * _SLOT_BYTES, _slot(self._sequence, progress))

    def forget(self) -> None:
        """Make both slots void for good: they speak of what is lost, and must not count when the log is that long again.

        Waits for the device. Raises OSError.
        """
        file = self._opened()
        file.write(0, bytes(2 * _SLOT_BYTES))
        file.sync()

    def _opened(self) -> File:
        if self._file is None:
            known = self._disk.exists(PROGRESS) and self._disk.file_size(PROGRESS) == 2 * _SLOT_BYTES
            self._file = self._disk.open(PROGRESS) if known else self._disk.create(PROGRESS, 2 * _SLOT_BYTES)
        return self._file

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _slot(sequence: int, progress: Progress) -> bytes:
    levels = list(progress.levels.items())[:LEVELS_MAX]
    begun = progress.begun[-BEGUN_MAX:]
    data = b"".join([
        _HEAD.pack(_MAGIC, sequence, progress.position, len(levels), len(begun), *progress.timer, progress.low),
        *[_LEVEL.pack(*row) for row in levels],
        *[_BEGUN.pack(*row) for row in begun],
    ])  # fmt: skip
    return data + _CRC.pack(crc32(data))


def _parse(data: bytes) -> tuple[int, Progress | None]:
    if len(data) < _SLOT_BYTES or not data.startswith(_MAGIC):
        return 0, None
    _, sequence, position, levels, begun, due, offset, low = _HEAD.unpack_from(data)
    if not 0 <= levels <= LEVELS_MAX or not 0 <= begun <= BEGUN_MAX:
        return 0, None
    middle = _HEAD.size + levels * _LEVEL.size
    end = middle + begun * _BEGUN.size
    if crc32(data[:end]) != _CRC.unpack_from(data, end)[0]:
        return 0, None
    table, open_ = dict(_LEVEL.iter_unpack(data[_HEAD.size : middle])), tuple(_BEGUN.iter_unpack(data[middle:end]))
    return sequence, Progress(position, table, (due, offset), low, open_)
