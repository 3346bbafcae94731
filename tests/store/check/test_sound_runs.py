"""Runs that are sound are proved at once; nothing that is wrong passes, wherever a byte of it changes."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.check import sound_runs
from halfmoon.store.check.fsck import fsck
from halfmoon.store.check.sound_runs import run_at
from halfmoon.store.keyindex.key_index import KeyIndex
from halfmoon.store.log.segments import Segments
from halfmoon.store.records import tag_hash_of
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, close, draft, open_store, small


@pytest.fixture
def disk() -> SimDisk:
    """A stopped store with 150 messages in three queues, with tags and keys."""
    disk = SimDisk(Random(1))
    store = open_store(disk, index_entries_max=400)
    for number in range(150):
        properties = b"UNIQ_KEY\x01U%03d\x02TAGS\x01%s\x02" % (number, b"ab"[number % 2 :][:1])
        store.append("t", number % 3, [draft(b"%03d" % number, properties, tag=tag_hash_of(properties))], NOW)
    store.query("t", "x", 1, 0, 1)
    close(store)
    return disk


def log_of(disk: SimDisk) -> Segments:
    segments = Segments(disk, "commitlog", 64 * 1024)
    segments.load()
    return segments


def settings():
    return small(index_entries_max=400)


def test_a_sound_store_is_checked_in_runs(disk: SimDisk, monkeypatch: pytest.MonkeyPatch):
    assert list(fsck(disk, settings())) == []
    seen = []
    monkeypatch.setattr("halfmoon.store.check.fsck._StoreCheck._entry", lambda self, *record: seen.append(record))
    assert list(fsck(disk, settings())) == []
    assert seen == []


def test_a_run_has_the_entries_and_keys_of_its_records(disk: SimDisk):
    run = run_at(log_of(disk), 0)
    assert run is not None
    assert {key: (first, len(entries)) for key, (first, entries) in run.queues.items()} == {
        ("t", queue_id): (0, 50 * 20) for queue_id in range(3)
    }
    assert len(run.keys) == 150 * 20
    for (topic, queue_id), (_, entries) in run.queues.items():
        assert bytes(disk.open(f"consumequeue/{topic}/{queue_id}/{0:020d}").data).startswith(entries)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_byte_of_log_queue_or_index_changes_is_said_as_without_runs(
    disk: SimDisk, monkeypatch: pytest.MonkeyPatch, seed: int
):
    random = Random(seed)
    run = run_at(log_of(disk), 0)
    assert run is not None
    index = f"index/{disk.list('index')[0]}"
    path, end = random.choice([
        ("commitlog/00000000000000000000", run.size_bytes),
        ("consumequeue/t/1/00000000000000000000", 50 * 20),
        (index, 40 + 4 * 64 + 20 * 150),
    ])  # fmt: skip
    data = bytearray(disk.open(path).data)
    data[random.randrange(end)] ^= 1 << random.randrange(8)
    disk.overwrite(path, data)

    quick = list(fsck(disk, settings()))
    monkeypatch.setattr("halfmoon.store.check.fsck.run_at", lambda segments, position: None)
    monkeypatch.setattr("halfmoon.store.check.fsck.chains_are_whole", lambda file: False)
    assert quick == list(fsck(disk, settings()))


def test_chains_are_whole_unless_an_entry_is_in_none_or_in_two(disk: SimDisk):
    index = KeyIndex(disk, settings().hash_slots, settings().index_entries_max)
    index.load()
    file = index.files[0]
    assert sound_runs.chains_are_whole(file)
    at = sound_runs.HEADER_BYTES + sound_runs.SLOT_BYTES * file.slots + 100 * 20 + 16  # the chain behind the 101st entry
    right = bytes(file.file.view(at, 4))
    for previous in (7, 101, 2**31 - 1, -5):
        wrong = previous.to_bytes(4, "big", signed=True)
        file.file.write(at, wrong)
        assert sound_runs.chains_are_whole(file) is (wrong == right)
    file.file.write(at, right)
    assert sound_runs.chains_are_whole(file)
