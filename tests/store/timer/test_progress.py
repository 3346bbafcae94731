"""The progress of delayed messages: what was written last is read, up to the most that there can be, until it is forgotten."""

from __future__ import annotations

from random import Random

from halfmoon.store.legacy import read_journal
from halfmoon.store.timer.marks import MARKS_MAX, Mark
from halfmoon.store.timer.progress import LEVELS_MAX, TimerProgress, forget_progress, read_progress, write_progress
from halfmoon.testing.disk import SimDisk

FIRST = TimerProgress(100, {1: 5, 18: 7}, (Mark(20, 1_700_000_000_000, 12),), 3)
SECOND = TimerProgress(
    200, {level: level for level in range(1, LEVELS_MAX + 1)}, tuple(Mark(number, -1, -1) for number in range(MARKS_MAX)), 0,
    tuple((level, 64, 150) for level in range(LEVELS_MAX + 1)),
)  # fmt: skip
"""As much as there can be: everything is in the middle of a delivery."""


def test_what_was_written_last_is_read() -> None:
    disk = SimDisk(Random(1))
    assert read_progress(read_journal(disk)) is None
    journal = read_journal(disk)
    for progress in (FIRST, SECOND, FIRST):
        write_progress(journal, progress)
        assert read_progress(read_journal(disk)) == progress


def test_forgotten_progress_stays_forgotten_after_a_loss_of_power() -> None:
    disk = SimDisk(Random(1), write_back=0)
    journal = read_journal(disk)
    write_progress(journal, FIRST)
    write_progress(journal, SECOND)
    forget_progress(journal)
    disk.crash(power=True)
    assert read_progress(read_journal(disk)) is None
