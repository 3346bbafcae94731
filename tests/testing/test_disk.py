"""The simulated disk: the rules of every disk, and the ways in which it forgets."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.testing.disk import LAZY_BYTES, PAGE_BYTES, SimDisk, Stopped
from tests.events.forking import in_child
from tests.testing.disk_rules import DiskRules


class TestSimDisk(DiskRules):
    @pytest.fixture
    def disk(self) -> SimDisk:
        return SimDisk(Random(1))


def test_a_kill_keeps_every_write_and_frees_the_lock():
    disk = SimDisk(Random(1))
    disk.lock("lock")
    disk.create("log", 4096).write(0, b"abc")
    disk.crash(power=False)
    assert disk.read("log")[:3] == b"abc"
    disk.lock("lock")


def test_a_power_loss_keeps_what_was_synced_and_any_part_of_the_rest():
    outcomes = set()
    for seed in range(50):
        disk = SimDisk(Random(seed), write_back=0)
        file = disk.create("log", 2 * PAGE_BYTES)
        file.write(0, b"a")
        file.sync()
        disk.sync_directory("")
        file.write(0, b"b")
        file.write(PAGE_BYTES, b"c")
        disk.crash(power=True)
        outcomes.add((disk.read("log")[:1], disk.read("log")[PAGE_BYTES : PAGE_BYTES + 1]))
    assert outcomes == {(b"a", b"\0"), (b"a", b"c"), (b"b", b"\0"), (b"b", b"c")}


def test_a_power_loss_may_take_names_that_were_not_synced():
    found = set()
    for seed in range(20):
        disk = SimDisk(Random(seed))
        disk.create("log", 10).sync()
        disk.crash(power=True)
        found.add(disk.exists("log"))
    assert found == {True, False}


def test_a_power_loss_may_bring_removed_names_back():
    found = set()
    for seed in range(20):
        disk = SimDisk(Random(seed))
        disk.create("log", 10)
        disk.sync_directory("")
        disk.remove("log")
        disk.crash(power=True)
        found.add(disk.exists("log"))
    assert found == {True, False}


def test_a_kill_before_a_power_loss_makes_nothing_durable():
    lost = False
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        file = disk.create("log", 10)
        disk.sync_directory("")
        file.write(0, b"x")
        disk.crash(power=False)
        disk.crash(power=True)
        lost = lost or disk.read("log") == bytes(10)
    assert lost


def test_a_failed_sync_drops_the_pages_for_good():
    disk = SimDisk(Random(1), write_back=0)
    file = disk.create("log", 10)
    disk.sync_directory("")
    file.write(0, b"x")
    disk.fail_syncs = 1
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    disk.crash(power=True)
    assert disk.read("log") == bytes(10)


def test_a_full_disk_takes_no_new_pages_and_no_new_files():
    disk = SimDisk(Random(1))
    file = disk.create("log", 2 * PAGE_BYTES)
    file.write(0, b"x")
    disk.full = True
    file.write(1, b"y")
    with pytest.raises(OSError, match="no space"):
        file.write(PAGE_BYTES, b"z")
    with pytest.raises(OSError, match="no space"):
        disk.create("more", 1)


def test_a_stop_inside_a_write_leaves_a_prefix():
    disk = SimDisk(Random(5))
    file = disk.create("log", 100)
    disk.stop_after_writes = 1
    file.write(0, b"first")
    with pytest.raises(Stopped):
        file.write(10, b"x" * 50)
    left = bytes(file.view(10, 50)).rstrip(b"\0")
    assert left == b"x" * len(left)
    assert len(left) < 50


def test_the_same_seed_gives_the_same_history():
    def history() -> bytes:
        disk = SimDisk(Random(9))
        file = disk.create("log", 64 * 1024)
        disk.sync_directory("")
        for at in range(0, 64 * 1024, 777):
            file.write(at, b"%d" % at)
        disk.crash(power=True)
        return disk.read("log")

    assert history() == history()


def test_the_boot_id_changes_with_the_machine_only():
    disk = SimDisk(Random(1))
    first = disk.boot_id()
    disk.crash(power=False)
    assert disk.boot_id() == first
    disk.crash(power=True)
    assert disk.boot_id() != first


def test_a_forked_child_has_a_disk_of_its_own():
    file = SimDisk(Random(1)).create("log", LAZY_BYTES)

    assert in_child(lambda: file.write(0, b"child"))

    assert bytes(file.view(0, 5)) == bytes(5)
