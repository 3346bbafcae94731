"""Key index files alone: hashes, layout, chains, and undoing what a kill left half done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import pytest

from halfmoon.hot import INDEX_ENTRY, KEY
from halfmoon.store.keyindex.key_index import HEADER, SLOT, KeyIndex
from halfmoon.testing.disk import SimDisk, Stopped

NOW = 1_700_000_000_000


def index_on(disk: SimDisk, slots: int = 8, entries_max: int = 20) -> KeyIndex:
    index = KeyIndex(disk, slots, entries_max)
    index.load()
    return index


class Key(NamedTuple):
    hash: int
    physical_offset: int
    store_ms: int


def add(index: KeyIndex, keys: Sequence[Key]) -> None:
    index.add(b"".join(KEY.pack(*key) for key in keys), NOW)


def test_an_entry_lies_as_the_original_lays_it():
    disk = SimDisk(Random(1))
    index = index_on(disk, 5, 10)
    add(index, [Key(12, 1000, NOW), Key(7, 2000, NOW + 2500)])
    assert index.files[0].file.path == "index/20231114221320000"
    data = disk.read("index/20231114221320000")
    assert len(data) == 40 + 4 * 5 + 20 * 10
    assert HEADER.unpack_from(data) == (NOW, NOW + 2500, 1000, 2000, 1, 3)
    assert [slot for (slot,) in SLOT.iter_unpack(data[40:60])] == [0, 0, 2, 0, 0]
    assert INDEX_ENTRY.unpack_from(data, 60 + 20) == (12, 1000, 0, 0)
    assert INDEX_ENTRY.unpack_from(data, 60 + 40) == (7, 2000, 2, 1)


def test_keys_are_found_newest_first_over_files():
    disk = SimDisk(Random(1))
    index = index_on(disk)
    for number in range(100):
        add(index, [Key(number % 3, number * 10, NOW + number)])
    assert len(index.files) == 6
    assert list(index.find(1, 0, 2**62)) == [number * 10 for number in range(99, -1, -1) if number % 3 == 1]
    again = index_on(disk)
    assert list(again.find(1, 0, 2**62)) == list(index.find(1, 0, 2**62))


def test_a_search_is_bound_to_a_span_of_time_to_the_second():
    index = index_on(SimDisk(Random(1)))
    add(index, [Key(1, number, NOW + number * 1000) for number in range(10)])
    assert list(index.find(1, NOW + 3000, NOW + 5000)) == [5, 4, 3]
    assert list(index.find(1, NOW + 60_000, NOW + 70_000)) == []


def test_files_that_point_only_below_the_log_are_dropped_but_never_the_last():
    disk = SimDisk(Random(1))
    index = index_on(disk)
    add(index, [Key(1, number, NOW) for number in range(60)])
    paths = index.drop_before(40)
    assert len(paths) == 2
    assert len(index.drop_before(10**9)) == len(disk.list("index")) - 2 - 1


@pytest.mark.parametrize("seed", range(20))
def test_what_was_added_after_a_count_can_be_taken_back(seed: int):
    random = Random(seed)
    disk = SimDisk(Random(seed))
    index = index_on(disk, 8, 200)
    keys = [Key(random.randrange(40), number * 100, NOW + number) for number in range(120)]
    add(index, keys[:70])
    count = index.count
    expected = {key.hash: list(index.find(key.hash, 0, 2**62)) for key in keys}
    disk.stop_after_writes = random.randrange(12)
    with suppress(Stopped):
        add(index, keys[70:])
    disk.crash(power=False)
    again = index_on(disk, 8, 200)
    again.files[-1].undo(count)
    assert again.count == count
    assert {key.hash: list(again.find(key.hash, 0, 2**62)) for key in keys} == expected
    add(again, keys[70:])
    assert list(again.find(keys[0].hash, 0, 2**62)) == [key.physical_offset for key in reversed(keys) if key.hash == keys[0].hash]


def test_damaged_chains_end_instead_of_going_round():
    disk = SimDisk(Random(1))
    index = index_on(disk, 1, 20)
    add(index, [Key(3, number, NOW) for number in range(5)])
    index.files[0].file.write(44 + 20 * 2 + 16, SLOT.pack(5))
    assert list(index.find(3, 0, 2**62)) == [4, 3, 2, 1]


def test_a_file_of_another_size_is_not_taken_in_and_named():
    disk = SimDisk(Random(1))
    disk.create("index/20231114221320000", 99)
    index = index_on(disk)
    assert index.files == []
    assert KeyIndex(disk, 7, 20).load() == ["index/20231114221320000"]
