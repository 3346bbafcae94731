"""The redo log: 20 bytes a unit, over files, cut and dropped."""

from __future__ import annotations

from random import Random
from struct import Struct

import pytest

from halfmoon.store.transactions.redo_log import PREPARED_TAG, RedoLog, decided_tag, half_of
from halfmoon.testing.disk import SimDisk

UNIT = Struct(">qiq")


def units(count: int) -> list[tuple[int, int, int]]:
    return [(100 * number, 90, PREPARED_TAG if number % 2 else decided_tag(number, committed=True)) for number in range(count)]


@pytest.mark.mission("004-24")
def test_a_unit_says_where_the_record_lies_its_size_and_what_it_did_to_which_half_message():
    disk = SimDisk(Random(1))
    redo = RedoLog(disk, 100)
    redo.append([(5000, 300, PREPARED_TAG), (6000, 310, decided_tag(5000, committed=True))])
    redo.append([(7000, 120, decided_tag(0, committed=False)), (8000, 120, decided_tag(5000, committed=False))])
    redo.write()
    data = disk.read("transaction/redolog/00000000000000000000")
    assert len(data) == 2000
    assert [UNIT.unpack(data[at : at + 20]) for at in (0, 20, 40, 60)] == [
        (5000, 300, -1),
        (6000, 310, 5000),
        (7000, 120, -2),
        (8000, 120, -5002),
    ]
    assert [half_of(tag) for _, _, tag in redo.units(1, 4)] == [5000, 0, 5000]


def test_units_go_over_files_and_come_back_in_order():
    disk = SimDisk(Random(1))
    redo = RedoLog(disk, 16)
    redo.append(units(10))
    redo.append(units(50)[10:])
    assert redo.dirty
    assert disk.list("transaction/redolog") == []  # units wait in memory for the sync that a watermark counts
    assert list(redo.units(0, 50)) == units(50)
    assert list(redo.units(15, 17)) == units(50)[15:17]
    assert (redo.first, redo.end, len(disk.list("transaction/redolog"))) == (0, 50, 4)


def test_units_that_wait_are_16_kib_at_most_and_none_of_them_counts_as_missing():
    disk = SimDisk(Random(1))
    redo = RedoLog(disk, 10_000)
    for number in range(3000):
        redo.append([(number, 100, PREPARED_TAG)])
        assert redo.first == 0
        assert redo.end == number + 1
        assert len(redo._waiting) < 16 * 1024
    assert disk.list("transaction/redolog")


def test_files_before_a_unit_go_and_the_rest_stays():
    redo = RedoLog(SimDisk(Random(1)), 16)
    redo.append(units(50))
    redo.write()
    assert redo.drop_before(31) == ["transaction/redolog/00000000000000000000"]
    assert (redo.first, redo.end) == (16, 50)
    assert len(redo.drop_before(50)) == 2
    assert list(redo.units(redo.first, redo.end)) == units(50)[48:]


def test_what_is_cut_is_written_anew():
    redo = RedoLog(SimDisk(Random(1)), 16)
    redo.append(units(50))
    redo.cut(20, thorough=True)
    assert redo.end == 20
    redo.append(units(3))
    assert list(redo.units(18, 23)) == [*units(20)[18:], *units(3)]
    redo.cut(0, thorough=True)
    assert (redo.first, redo.end) == (0, 0)


def test_numbers_that_do_not_fit_are_refused_and_change_nothing():
    redo = RedoLog(SimDisk(Random(1)), 16)
    with pytest.raises(ValueError, match="does not fit"):
        redo.append([*units(2), (0, 2**31, 0)])
    assert (redo.first, redo.end) == (0, 0)


def test_a_full_disk_is_found_out_by_making_room():
    disk = SimDisk(Random(1))
    redo = RedoLog(disk, 16)
    redo.append(units(15))
    redo.make_room(10)
    disk.full = True
    redo.append(units(10))
    with pytest.raises(OSError, match="no space"):
        redo.make_room(20)
    assert redo.end == 25


def test_room_that_is_made_behind_units_that_wait_leaves_them_their_files():
    disk = SimDisk(Random(1))
    redo = RedoLog(disk, 16)
    redo.append(units(40))  # as a start enters them that found no file
    assert redo.make_room(1) == 8
    assert redo.first == 0
    redo.append(units(41)[40:])
    assert list(redo.units(0, 41)) == units(41)
