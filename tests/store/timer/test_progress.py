"""The progress of delayed messages: what was written last is read, whatever was cut or damaged."""

from __future__ import annotations

from pathlib import Path

from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.timer.marks import MARKS_MAX, Mark
from halfmoon.store.timer.progress import LEVELS_MAX, PROGRESS, Progress, ProgressFile

FIRST = Progress(100, {1: 5, 18: 7}, (Mark(20, 1_700_000_000_000, 12),), 3)
SECOND = Progress(
    200, {level: level for level in range(1, LEVELS_MAX + 1)}, tuple(Mark(number, -1, -1) for number in range(MARKS_MAX)), 0,
    tuple((level, 64, 150) for level in range(LEVELS_MAX + 1)),
)  # fmt: skip
"""As much as there can be: everything is in the middle of a delivery."""


def test_the_last_slot_is_read_and_a_damaged_one_leaves_the_one_before(tmp_path: Path) -> None:
    file = ProgressFile(RealDisk(str(tmp_path)))
    assert file.read() is None
    file.write(FIRST)
    file.write(SECOND)
    file.close()

    again = ProgressFile(RealDisk(str(tmp_path)))
    assert again.read() == SECOND
    again.write(FIRST)
    again.close()
    assert ProgressFile(RealDisk(str(tmp_path))).read() == FIRST

    data = bytearray((tmp_path / PROGRESS).read_bytes())
    newest = 4096 if data[4096 + 15] > data[15] else 0
    for at in range(newest, newest + 80):
        damaged = bytearray(data)
        damaged[at] ^= 0x55
        (tmp_path / PROGRESS).write_bytes(damaged)
        found = ProgressFile(RealDisk(str(tmp_path))).read()
        assert found == SECOND


def test_forgotten_slots_stay_forgotten(tmp_path: Path) -> None:
    file = ProgressFile(RealDisk(str(tmp_path)))
    file.write(FIRST)
    file.write(SECOND)
    file.forget()
    file.close()

    assert ProgressFile(RealDisk(str(tmp_path))).read() is None


def test_a_file_of_another_size_is_rebuilt(tmp_path: Path) -> None:
    (tmp_path / "delay").mkdir()
    (tmp_path / PROGRESS).write_bytes(b"x" * 100)
    file = ProgressFile(RealDisk(str(tmp_path)))
    assert file.read() is None
    file.write(FIRST)
    file.close()

    assert ProgressFile(RealDisk(str(tmp_path))).read() == FIRST
