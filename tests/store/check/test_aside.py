"""What a repair takes out of a store is kept under names of its own; the folders are bounded."""

from __future__ import annotations

from random import Random

from halfmoon.store.check.aside import FOLDERS_MAX, Aside, is_folder
from halfmoon.store.log.segments import Segments
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW


def test_a_file_and_a_directory_are_moved_and_said():
    disk, said = SimDisk(Random(1)), list[str]()
    disk.save("config/a.json", b"1")
    disk.save("config/b.json/inside", b"2")
    aside = Aside(disk, NOW, said.append)
    aside.move("config/a.json")
    aside.move("config/b.json")

    assert disk.read(f"{aside.folder}/config-a.json") == b"1"
    assert disk.read(f"{aside.folder}/config-b.json/inside") == b"2"
    assert disk.list("config") == []
    assert [aside.folder in text for text in said] == [True, True]


def test_no_name_is_used_twice():
    disk = SimDisk(Random(1))
    aside = Aside(disk, NOW, lambda text: None)
    for number in range(3):
        disk.save("config/a.json", b"%d" % number)
        aside.move("config/a.json")
    again = Aside(disk, NOW, lambda text: None)

    assert sorted(disk.read(f"{aside.folder}/{name}") for name in disk.list(aside.folder)) == [b"0", b"1", b"2"]
    assert again.folder != aside.folder
    assert is_folder(again.folder)


def test_bytes_of_the_log_are_copied_and_zeros_are_nothing():
    disk = SimDisk(Random(1))
    segments = Segments(disk, "commitlog", 4 * 1024 * 1024)
    segments.extend(0)
    segments.write(100, b"a" * 50)
    segments.write(2_000_000, b"b")
    aside = Aside(disk, NOW, lambda text: None)
    aside.copy(segments, 3_000_000, 1000)
    assert not disk.exists(aside.folder)
    aside.copy(segments, 90, 2_500_000)

    [name] = disk.list(aside.folder)
    assert bytes(disk.open(f"{aside.folder}/{name}").data) == bytes(segments.view(90, 2_500_000))


def test_the_oldest_folders_are_removed_and_nothing_else():
    disk, said = SimDisk(Random(1)), list[str]()
    disk.save("repaired-not-ours/x", b"")
    for number in range(FOLDERS_MAX + 2):
        disk.save("config/a.json", b"")
        Aside(disk, NOW + 1000 * number, said.append).move("config/a.json")
    Aside(disk, NOW, said.append).bound()

    left = [name for name in disk.list("") if is_folder(name)]
    assert len(left) == FOLDERS_MAX
    assert left[-1] == Aside(disk, NOW + 1000 * (FOLDERS_MAX + 1), said.append).folder.removesuffix(".1")
    assert disk.exists("repaired-not-ours/x")
    assert sum("is removed" in text for text in said) == 2
