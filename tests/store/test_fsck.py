"""`fsck` finds every kind of damage, names its place, and finds nothing in a store that is whole."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.fsck import Finding, fsck
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, close, draft, open_store, small

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


def findings(disk: SimDisk) -> list[Finding]:
    before = {path: bytes(file.data) for path, file in disk._files.items()}
    found = list(fsck(disk, small()))
    assert {path: bytes(file.data) for path, file in disk._files.items()} == before, "fsck wrote"
    return found


def damage(disk: SimDisk, path: str, at: int, data: bytes) -> None:
    disk.open(path).data[at : at + len(data)] = data


def test_a_sound_store_has_no_findings(disk: SimDisk):
    assert findings(disk) == []


def test_an_empty_directory_has_no_findings():
    assert findings(SimDisk(Random(1))) == []


def test_a_damaged_body_is_named_with_its_place(disk: SimDisk):
    damage(disk, LOG, 88, b"X")
    [first, *_] = findings(disk)
    assert first == Finding(f"{LOG}, byte 0", "record", "the body's CRC is wrong")


@pytest.mark.parametrize(("at", "reason"), [(0, "says"), (8, "says"), (12, "has tag hash")])
def test_a_wrong_entry_is_found(disk: SimDisk, at: int, reason: str):
    damage(disk, QUEUE, 20 * 7 + at, b"\0\0\1\1")
    assert [(finding.place, reason in finding.reason) for finding in findings(disk)][:1] == [("t, queue 0, offset 7", True)]


def test_an_entry_that_no_record_has_is_found(disk: SimDisk):
    damage(disk, QUEUE, 20 * 50, (60_000).to_bytes(8, "big") + (100).to_bytes(4, "big"))
    assert [finding.place for finding in findings(disk)] == ["t, queue 0, offset 50", "t, queue 0"]


def test_a_lost_entry_is_found(disk: SimDisk):
    damage(disk, QUEUE, 20 * 49, bytes(20))
    assert "t, queue 0, offset 49" in [finding.place for finding in findings(disk)]


def test_a_wrong_key_entry_is_found(disk: SimDisk):
    name = disk.list("index")[0]
    damage(disk, f"index/{name}", 40 + 4 * 64 + 20 * 5, b"\0\1\2\3")
    assert any(finding.what == "key entry" for finding in findings(disk))


def test_a_broken_chain_is_found(disk: SimDisk):
    name = disk.list("index")[0]
    damage(disk, f"index/{name}", 40, bytes(4 * 64))
    assert [finding.what for finding in findings(disk)] == ["chain"]


def test_a_missing_log_file_is_found():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for _ in range(4):
        store.append("t", 0, [draft(bytes(60_000))], NOW)
    close(store)
    disk.remove("commitlog/00000000000000065536")
    assert findings(disk)[0].what == "files"
