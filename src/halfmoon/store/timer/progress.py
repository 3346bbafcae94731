"""How far delayed messages are delivered, written at once: after a kill nothing is delivered twice. One small file, never waits.

Layout of ``delay/progress``: two slots of 4 KiB, written in turn (big endian)::

    0 magic 8 | 8 sequence u64 | 16 log position i64 | 24 number of levels i32 | 28 number of begun i32
    32 timer: low i64, number of marks i64 | 48 for each level i32, offset i64
    and for each begun level i32 (0 timer), count i32, log position i64
    and for each mark of the timer end i64, due i64, offset i64 | crc u32

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
from halfmoon.store.timer.marks import MARKS_MAX, Mark

PROGRESS = "delay/progress"
LEVELS_MAX = 100
"""Levels that have room in a slot; of others only the saved table knows."""
BEGUN_MAX = LEVELS_MAX + 1
"""Each level, and the timer."""

_HEAD = Struct(">8sQqiiqq")
_BEGUN = Struct(">iiq")
_LEVEL = Struct(">iq")
_MARK = Struct(">qqq")
_CRC = Struct(">I")
_MAGIC = b"halfdly3"
_SLOT_BYTES = 4096
TIMER = 0
"""The level that stands for the timer."""


class Progress(NamedTuple):
    """``position`` is the end of the log when this was written, before what was begun last was appended."""

    position: int
    levels: Mapping[int, int]
    """Queue offset of the next message, by level."""
    timer: tuple[Mark, ...]
    """Which messages of the timer topic were delivered."""
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
        _HEAD.pack(_MAGIC, sequence, progress.position, len(levels), len(begun), progress.low, len(progress.timer)),
        *[_LEVEL.pack(*row) for row in levels],
        *[_BEGUN.pack(*row) for row in begun],
        *[_MARK.pack(*mark) for mark in progress.timer],
    ])  # fmt: skip
    return data + _CRC.pack(crc32(data))


def _parse(data: bytes) -> tuple[int, Progress | None]:
    if len(data) < _SLOT_BYTES or not data.startswith(_MAGIC):
        return 0, None
    _, sequence, position, levels, begun, low, marks = _HEAD.unpack_from(data)
    if not (0 <= levels <= LEVELS_MAX and 0 <= begun <= BEGUN_MAX and 0 <= marks <= MARKS_MAX):
        return 0, None
    of_begun = _HEAD.size + levels * _LEVEL.size
    of_marks = of_begun + begun * _BEGUN.size
    end = of_marks + marks * _MARK.size
    if crc32(data[:end]) != _CRC.unpack_from(data, end)[0]:
        return 0, None
    table, open_ = dict(_LEVEL.iter_unpack(data[_HEAD.size : of_begun])), tuple(_BEGUN.iter_unpack(data[of_begun:of_marks]))
    return sequence, Progress(position, table, tuple(map(Mark._make, _MARK.iter_unpack(data[of_marks:end]))), low, open_)
