"""The table of slots in small files: found again, grown by a file twice as large, and synced with its names."""

from __future__ import annotations

from random import Random

from halfmoon.store.slots import SLOT_BYTES, Slots
from halfmoon.testing.disk import SimDisk


def test_slots_are_found_again_and_free_ones_are_taken_first():
    disk = SimDisk(Random(1))
    slots = Slots(disk, "config/table", b"header")
    [*slots.load()]
    first, second = slots.take(), slots.take()
    slots.write(first, b"one")
    slots.write(second, b"two")

    again = Slots(disk, "config/table", b"header")
    rows = dict(again.load())
    assert (rows[first].rstrip(b"\0"), rows[second].rstrip(b"\0")) == (b"one", b"two")
    assert len(rows) == 255, "slot 0 is the header"
    again.free.append(second)
    assert again.take() == second


def test_a_full_file_is_followed_by_another_and_nothing_moves():
    disk = SimDisk(Random(1))
    slots = Slots(disk, "config/table", b"header")
    [*slots.load()]
    for number in [slots.take() for _ in range(300)]:
        slots.write(number, b"%d" % number)
    assert disk.list("config") == ["table", "table.1"]
    assert disk.file_size("config/table.1") == 256 * SLOT_BYTES
    assert all(row.rstrip(b"\0") in (b"", b"%d" % number) for number, row in Slots(disk, "config/table", b"").load())


def test_what_was_synced_survives_a_power_loss():
    disk = SimDisk(Random(1), write_back=0)
    slots = Slots(disk, "config/table", b"header")
    [*slots.load()]
    slots.write(kept := slots.take(), b"kept")
    slots.sync()
    slots.write(lost := slots.take(), b"lost")
    disk.crash(power=True)
    rows = dict(Slots(disk, "config/table", b"header").load())
    assert rows[kept].startswith(b"kept")
    assert rows[lost].rstrip(b"\0") in (b"", b"lost")
