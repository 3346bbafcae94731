"""Files of one size seen as one run of bytes: names, bounds, what is unsynced, clearing and removing."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.store.log.segments import Segments
from halfmoon.testing.disk import SimDisk


def segments(disk: SimDisk | None = None) -> Segments:
    found = Segments(disk or SimDisk(Random(1)), "run", 100)
    found.load()
    return found


def test_files_are_named_by_the_offset_of_their_first_byte():
    disk = SimDisk(Random(1))
    run = segments(disk)
    run.extend(250)
    run.extend(430)
    assert disk.list("run") == ["00000000000000000200", "00000000000000000300", "00000000000000000400"]
    assert (run.first, run.last, run.end) == (200, 400, 500)


def test_bytes_are_found_again_after_loading():
    disk = SimDisk(Random(1))
    run = segments(disk)
    run.extend(150)
    run.write(110, b"abc")
    assert bytes(segments(disk).view(109, 5)) == b"\0abc\0"


def test_views_end_with_their_file():
    run = segments()
    run.extend(0)
    run.extend(100)
    assert len(run.view(90, 50)) == 10


def test_what_was_written_since_the_last_sync_is_known_by_file():
    run = segments()
    run.extend(0)
    run.extend(100)
    run.write(0, b"a")
    run.write(1, b"b")
    assert [file.path for file in run.take_dirty()] == ["run/00000000000000000000"]
    assert run.take_dirty() == []
    run.write(100, b"c")
    run.write(2, b"d")
    assert len(run.take_dirty()) == 2
    assert run.take_directory_dirty()
    assert not run.take_directory_dirty()


def test_files_below_a_position_are_dropped_but_never_the_last():
    run = segments()
    run.extend(0)
    run.extend(200)
    assert run.drop_before(199) == ["run/00000000000000000000"]
    assert run.drop_before(10_000) == ["run/00000000000000000100"]
    assert (run.first, run.last) == (200, 200)


def test_files_that_are_closed_open_again_when_touched():
    disk = SimDisk(Random(1))
    run = segments(disk)
    run.extend(0)
    run.extend(250)
    run.write(10, b"a")
    run.sync_now()
    run.write(110, b"b")
    first, second = disk.open("run/00000000000000000000"), disk.open("run/00000000000000000100")
    run.close_before(299)
    assert (first.given_back, second.given_back) == (True, False)  # what was not synced stays
    assert (bytes(run.view(10, 1)), bytes(run.view(110, 1)), run.first) == (b"a", b"b", 0)


def test_clearing_leaves_zeros_and_no_later_files():
    disk = SimDisk(Random(1))
    run = segments(disk)
    run.extend(0)
    run.extend(200)
    run.write(10, b"x" * 80)
    run.clear_from(20, thorough=True)
    assert disk.list("run") == ["00000000000000000000"]
    assert bytes(run.view(0, 100)) == bytes(10) + b"x" * 10 + bytes(80)
    assert run.is_clear(20, 1000)
    assert not run.is_clear(19, 1)


def test_a_position_without_a_file_is_an_error():
    run = segments()
    with pytest.raises(StoreError, match="no file holds"):
        run.view(0, 1)


@pytest.mark.parametrize("repair", [False, True])
def test_a_gap_is_an_error_unless_it_is_repaired(repair: bool):
    disk = SimDisk(Random(1))
    segments(disk).extend(0)
    run = segments(disk)
    run.extend(300)
    disk.remove("run/00000000000000000200")
    found = Segments(disk, "run", 100)
    if repair:
        found.load(repair=True)
        assert disk.list("run") == ["00000000000000000000", "00000000000000000100"]
    else:
        with pytest.raises(StoreError, match="no file between"):
            found.load()


def test_a_last_file_without_bytes_is_removed_and_other_names_are_passed_over():
    disk = SimDisk(Random(1))
    segments(disk).extend(0)
    disk.create("run/00000000000000000100", 0)
    disk.create("run/notes.txt", 7)
    run = segments(disk)
    assert (run.first, run.last) == (0, 0)
    assert disk.list("run") == ["00000000000000000000", "notes.txt"]


def test_bytes_that_are_written_again_are_synced_again():
    disk = SimDisk(Random(1), write_back=0)
    run = segments(disk)
    run.extend(100)
    run.extend(200)
    run.write(150, b"x" * 50)
    run.write(200, b"y" * 30)
    disk.fail_syncs = 2
    for file in run.take_dirty():
        with pytest.raises(OSError, match="input/output"):
            file.sync()
    run.write_again(150, 230)
    run.sync_now()
    disk.sync_directory("run")
    disk.crash(power=True)
    assert bytes(segments(disk).view(150, 50)) + bytes(segments(disk).view(200, 100)) == b"x" * 50 + b"y" * 30 + bytes(70)
