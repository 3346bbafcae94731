"""`fsck` finds every kind of damage, names its place, and finds nothing in a store that is whole."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.check.fsck import Problem, fsck
from halfmoon.store.journal import Kind, Row
from halfmoon.store.legacy import read_journal
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, close, disk_without_a_log_file, draft, edit_journal, open_store, small

LOG, QUEUE = "commitlog/00000000000000000000", "consumequeue/t/0/00000000000000000000"


@pytest.fixture
def disk() -> SimDisk:
    """A stopped store with a hundred messages."""
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(100):
        store.append("t", number % 2, [draft(b"%03d" % number, b"UNIQ_KEY\x01U%03d\x02TAGS\x01a\x02" % number, tag=97)], NOW)
    store.query("t", "x", 1, 0, 1)
    close(store)
    return disk


def problems(disk: SimDisk) -> list[Problem]:
    """What is certainly wrong."""
    return [problem for problem in everything(disk) if problem.certain]


def everything(disk: SimDisk) -> list[Problem]:
    before = {path: bytes(file.data) for path, file in disk._files.items()}
    found = list(fsck(disk, small()))
    assert {path: bytes(file.data) for path, file in disk._files.items()} == before, "fsck wrote"
    return found


def damage(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    disk.open(path).data[at : at + len(data)] = data


def test_a_sound_store_has_no_findings(disk: SimDisk):
    assert problems(disk) == []


def test_an_empty_directory_has_no_findings():
    assert problems(SimDisk(Random(1))) == []


def test_a_damaged_body_is_named_with_its_place(disk: SimDisk):
    record_bytes = int.from_bytes(disk.open(LOG).data[:4], "big")
    damage(disk, LOG, 88, b"X")
    [first, *_] = problems(disk)
    assert first == Problem(f"{LOG}, byte 0", "record", "the body's CRC is wrong", size_bytes=record_bytes)


@pytest.mark.parametrize(("at", "reason"), [(0, "says"), (8, "says"), (12, "has tag hash")])
def test_a_wrong_entry_is_found(disk: SimDisk, at: int, reason: str):
    damage(disk, QUEUE, 20 * 7 + at, b"\0\0\1\1")
    assert [(problem.place, reason in problem.reason) for problem in problems(disk)][:1] == [("t, queue 0, offset 7", True)]


def test_an_entry_that_no_record_has_is_found(disk: SimDisk):
    damage(disk, QUEUE, 20 * 50, (60_000).to_bytes(8, "big") + (100).to_bytes(4, "big"))
    assert [problem.place for problem in problems(disk)] == ["t, queue 0, offset 50", "t, queue 0"]


def test_a_lost_entry_is_found(disk: SimDisk):
    damage(disk, QUEUE, 20 * 49, bytes(20))
    assert "t, queue 0, offset 49" in [problem.place for problem in problems(disk)]


def test_a_wrong_key_entry_is_found(disk: SimDisk):
    name = disk.list("index")[0]
    damage(disk, f"index/{name}", 40 + 4 * 64 + 20 * 5, b"\0\1\2\3")
    assert any(problem.what == "key entry" for problem in problems(disk))


def test_a_broken_chain_is_found(disk: SimDisk):
    name = disk.list("index")[0]
    damage(disk, f"index/{name}", 40, bytes(4 * 64))
    assert [problem.what for problem in problems(disk)] == ["chain"]


def test_a_missing_log_file_is_found():
    assert problems(disk_without_a_log_file())[0].what == "files"


# ---------------------------------------------------------------- what is missing


@pytest.mark.parametrize(
    "gone",
    ["consumequeue/", "consumequeue/t/", "consumequeue/t/1/", QUEUE, "index/"],
    ids=["all", "topic", "queue", "file", "index"],
)
@pytest.mark.parametrize("inventory", [True, False], ids=["", "no inventory"])
def test_nothing_that_is_missing_is_called_sound(disk: SimDisk, gone: str, inventory: bool):
    for path in [path for path in disk._files if path.startswith(gone) or (path.startswith("config/") and not inventory)]:
        disk.remove(path)
    for path in sorted((path for path in disk._directories if path.startswith("consumequeue")), key=len, reverse=True):
        if not disk.list(path):
            disk.remove(path)
    found = everything(disk)
    assert found
    if inventory or gone in ("consumequeue/", "index/"):
        assert any(problem.certain for problem in found), found


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_missing_key_index_file_is_found(which: int):
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(400):
        store.append("t", 0, [draft(b"%03d" % number, b"UNIQ_KEY\x01U%03d\x02" % number)], NOW)
    store.query("t", "x", 1, 0, 1)
    close(store)
    assert problems(disk) == []
    name = disk.list("index")[which]
    disk.remove(f"index/{name}")
    assert Problem(f"index/{name}", "file", "is missing") in problems(disk)
    assert any("the keys of" in problem.reason for problem in problems(disk))


@pytest.mark.parametrize("inventory", [True, False], ids=["", "no inventory"])
def test_a_topic_that_was_deleted_and_made_again_is_sound(inventory: bool):
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for topic in ("again", "deleted", "t"):
        for _ in range(20):
            store.append(topic, 0, [draft()], NOW)
    for topic in ("again", "deleted"):
        store.delete_topic(topic, NOW)
        carry_out(store)
    for _ in range(3):
        store.append("again", 0, [draft()], NOW)
    close(store)
    if not inventory:
        kinds = (Kind.QUEUE, Kind.INDEX, Kind.SIZES, Kind.DELETED)
        edit_journal(disk, *(Row(kind, key, None) for kind in kinds for key, _ in read_journal(disk).rows(kind)))
    assert problems(disk) == []
    assert bool(everything(disk)) is not inventory, "without an inventory nobody knows that it was deleted, and that is said"


def test_damage_in_the_middle_hides_nothing_behind_it(disk: SimDisk):
    damage(disk, LOG, 0, b"\x7f")
    damage(disk, QUEUE, 20 * 40 + 8, b"\1")
    assert {problem.place for problem in problems(disk)} >= {f"{LOG}, byte 0", "t, queue 0, offset 40"}
