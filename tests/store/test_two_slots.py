"""A file of two slots in turn: which of them count after any stop, and where the next one goes."""

from __future__ import annotations

from random import Random

from halfmoon.store.two_slots import Slot, TwoSlots
from halfmoon.testing.disk import SimDisk, Stopped


def slots(disk: SimDisk) -> TwoSlots:
    return TwoSlots(disk, "two", (512, 2048), 8)


def test_a_missing_or_short_file_says_nothing():
    disk = SimDisk(Random(1))
    assert slots(disk).read() is None
    disk.create("two", 4095)
    assert slots(disk).read() is None


def test_slots_are_read_newest_first_with_the_whole_file():
    disk = SimDisk(Random(1))
    file = slots(disk)
    for number in range(1, 4):
        file.write(number, b"held-%03d" % number).write(0, b"beside")

    data, found = slots(disk).read()

    assert found == [Slot(3, 3, b"held-003"), Slot(2, 2, b"held-002")]
    assert (data[:6], len(data)) == (b"beside", 4096)


def test_who_goes_on_from_the_newest_slot_overwrites_the_older_one():
    disk = SimDisk(Random(1))
    slots(disk).write(0, b"held-001")
    again = slots(disk)
    again.sequence = 1
    again.write(0, b"held-002")

    assert [slot.held for slot in slots(disk).read()[1]] == [b"held-002", b"held-001"]


def test_a_write_cut_short_leaves_the_slot_before():
    for seed in range(40):
        disk = SimDisk(Random(seed), write_back=0)
        file = slots(disk)
        file.write(0, b"held-001")
        file.write(0, b"held-002")
        disk.stop_after_writes = 0
        try:
            file.write(0, b"held-003")
        except Stopped:
            pass
        assert slots(disk).read()[1][0].held in (b"held-002", b"held-003")


def test_a_changed_byte_makes_a_slot_void():
    disk = SimDisk(Random(1))
    slots(disk).write(7, b"held-001")
    data = disk.open("two").data
    [begin] = [at for at in (512, 2048) if any(data[at : at + 8])]
    for at in range(begin, begin + 36):
        data[at] ^= 0x55
        assert slots(disk).read()[1] == [], at
        data[at] ^= 0x55
    assert slots(disk).read()[1] == [Slot(1, 7, b"held-001")]


def test_nothing_is_synced_before_something_is_written_nor_after_the_close():
    file = slots(SimDisk(Random(1)))
    assert not file.sync()
    file.write(0, b"held-001")
    assert file.sync()
    file.close()
    assert not file.sync()
