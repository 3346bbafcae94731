"""How far delayed messages are delivered, written at once: after a kill nothing is delivered twice. A row of the journal.

Its value (big endian)::

    0 log position i64 | 8 number of levels i32 | 12 number of begun i32 | 16 timer: low i64, number of marks i64
    32 for each level i32, offset i64
    and for each begun level i32 (0 timer), count i32, log position i64
    and for each mark of the timer end i64, due i64, offset i64

A delivery is *begun* before its records are appended and *done* after it, so whoever starts knows which records to look for, and
from which position of the log on. Nobody waits for the device: a row that speaks of a log behind the end of the one that is there
is not believed, and ``config/delayOffset.json`` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from halfmoon.store.journal import Journal, Kind, Row
from halfmoon.store.timer.marks import Mark

LEVELS_MAX = 100
"""Levels that have room in a row; of others only the saved table knows."""
BEGUN_MAX = LEVELS_MAX + 1
"""Each level, and the timer."""

_HEAD = Struct(">qiiqq")
_BEGUN = Struct(">iiq")
_LEVEL = Struct(">iq")
_MARK = Struct(">qqq")
TIMER = 0
"""The level that stands for the timer."""


class TimerProgress(NamedTuple):
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


def read_progress(journal: Journal) -> TimerProgress | None:
    """Return what was written last, None when there is nothing."""
    value = journal.value(Kind.DELAYS)
    if value is None:
        return None
    position, levels, begun, low, _ = _HEAD.unpack_from(value)
    of_begun = _HEAD.size + levels * _LEVEL.size
    of_marks = of_begun + begun * _BEGUN.size
    table, open_ = dict(_LEVEL.iter_unpack(value[_HEAD.size : of_begun])), tuple(_BEGUN.iter_unpack(value[of_begun:of_marks]))
    return TimerProgress(position, table, tuple(map(Mark._make, _MARK.iter_unpack(value[of_marks:]))), low, open_)


def write_progress(journal: Journal, progress: TimerProgress) -> None:
    """Write the progress. Raises OSError."""
    levels, begun = list(progress.levels.items())[:LEVELS_MAX], progress.begun[-BEGUN_MAX:]
    value = b"".join([
        _HEAD.pack(progress.position, len(levels), len(begun), progress.low, len(progress.timer)),
        *[_LEVEL.pack(*row) for row in levels],
        *[_BEGUN.pack(*row) for row in begun],
        *[_MARK.pack(*mark) for mark in progress.timer],
    ])  # fmt: skip
    journal.write(Row(Kind.DELAYS, b"", value))


def forget_progress(journal: Journal) -> None:
    """Let the row end for good: it speaks of what is lost, and must not count when the log is that long again.

    Waits for the device. Raises OSError.
    """
    journal.write(Row(Kind.DELAYS, b"", None))
    journal.sync()
