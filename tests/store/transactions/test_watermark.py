"""The watermark file: two slots in turn, and what is left after any stop."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from halfmoon.store.transactions.watermark import Watermark, WatermarkFile
from halfmoon.testing.disk import SimDisk, Stopped

SOME = Watermark(1000, 20, 30, 5, 6, 2, 1500, clean=False, foreign=True, boot="boot-7")


def test_a_missing_file_says_nothing():
    assert WatermarkFile(SimDisk(Random(1))).read() is None


def test_what_is_written_is_read():
    disk = SimDisk(Random(1))
    WatermarkFile(disk).write(SOME)
    assert WatermarkFile(disk).read() == SOME
    assert len(disk.read("transaction/checkpoint")) == 4096


def test_the_newest_of_the_two_slots_counts_over_restarts():
    disk = SimDisk(Random(1))
    for position in range(1, 8):
        file = WatermarkFile(disk)
        file.read()
        file.write(SOME._replace(position=position))
        assert WatermarkFile(disk).read() == SOME._replace(position=position)


def test_a_write_cut_short_leaves_the_one_before():
    for seed in range(40):
        disk = SimDisk(Random(seed), write_back=0)
        file = WatermarkFile(disk)
        file.write(SOME)
        file.write(SOME._replace(position=2000))
        disk.stop_after_writes = 0
        with suppress(Stopped):
            file.write(SOME._replace(position=3000, clean=True))
        found = WatermarkFile(disk).read()
        assert found in (SOME._replace(position=2000), SOME._replace(position=3000, clean=True))


def test_a_changed_byte_makes_a_slot_void():
    disk = SimDisk(Random(1))
    file = WatermarkFile(disk)
    file.write(SOME)
    data = disk.open("transaction/checkpoint").data
    [begin] = [at for at in (0, 2048) if any(data[at : at + 8])]
    for at in range(begin, begin + 148):
        data[at] ^= 0x55
        assert WatermarkFile(disk).read() is None, at
        data[at] ^= 0x55
    assert WatermarkFile(disk).read() == SOME


def test_what_was_not_synced_is_not_durable():
    disk = SimDisk(Random(1), write_back=0)
    file = WatermarkFile(disk)
    file.write(SOME)
    file.sync()
    file.write(SOME._replace(position=2000))
    assert (file.durable, file.last) == (SOME, SOME._replace(position=2000))
    disk.crash(power=True)
    assert WatermarkFile(disk).read() in (SOME, SOME._replace(position=2000))


def test_a_file_of_another_size_says_nothing_and_is_replaced():
    disk = SimDisk(Random(1))
    disk.create("transaction/checkpoint", 100)
    file = WatermarkFile(disk)
    assert file.read() is None
    file.write(SOME)
    assert WatermarkFile(disk).read() == SOME
