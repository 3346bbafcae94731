"""What recovery cuts off the log is kept, and the folder is bounded."""

from __future__ import annotations

from random import Random

from halfmoon.store.layout import QUARANTINE
from halfmoon.store.log.quarantine import KEPT_MAX, Quarantine
from halfmoon.store.log.segments import Segments
from halfmoon.testing.disk import SimDisk


def test_the_rest_of_a_file_is_copied_without_the_zeros_at_its_end():
    disk = SimDisk(Random(1))
    segments = Segments(disk, "commitlog", 4096)
    segments.load()
    segments.extend(0)
    segments.write(1000, b"stale")
    quarantine = Quarantine(disk)
    quarantine.rest(segments, 990, "the log ends at 990")
    [name] = disk.list(QUARANTINE)
    assert disk.read(f"{QUARANTINE}/{name}") == bytes(10) + b"stale"
    quarantine.rest(segments, 1005, "the log ends at 1005")
    assert len(disk.list(QUARANTINE)) == 1, "zeros alone are nothing"


def test_the_oldest_files_go_when_there_are_too_many():
    disk = SimDisk(Random(1))
    quarantine = Quarantine(disk)
    for number in range(KEPT_MAX + 3):
        disk.now_ms = number
        disk.create("commitlog/stray", 1).write(0, b"%c" % (65 + number))
        quarantine.file("commitlog/stray", "it is no file of the log")
    kept = [disk.read(f"{QUARANTINE}/{name}") for name in disk.list(QUARANTINE)]
    assert sorted(kept) == [b"%c" % (65 + number) for number in range(3, KEPT_MAX + 3)]
