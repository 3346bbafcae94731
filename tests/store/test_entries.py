"""Entries of a queue as plain values: in order, from behind, and without fillers and records that are gone."""

from __future__ import annotations

from random import Random

from halfmoon.store import Store
from halfmoon.store.entries import entries, entries_at, entries_behind, last_with_code, prepared_offset
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, draft, open_store


def filled(count: int = 700) -> tuple[Store, list[int]]:
    """A store with messages over three files of entries, and where they lie."""
    store = open_store(SimDisk(Random(1)))
    drafts = [draft(b"%d" % number, tag=number % 7) for number in range(count)]
    return store, store.append("t", 0, drafts, NOW).physical_offsets


def test_entries_come_in_order_over_files():
    store, places = filled()
    assert [(entry.queue_offset, entry.physical_offset) for entry in entries(store, "t", 0, 100)] == [*enumerate(places)][100:]
    assert len(entries_at(store, "t", 0, 290, 50)) == 10, "a file has 300"
    assert entries_at(store, "t", 0, 700, 1) == [] == [*entries(store, "unknown", 0)]


def test_entries_behind_an_offset_come_the_last_first():
    store, places = filled()
    assert [entry.queue_offset for entry in entries_behind(store, "t", 0, places[690])] == [*range(699, 690, -1)]


def test_the_last_entry_with_a_code_is_found():
    store, _ = filled()
    last = last_with_code(store, "t", 0, 3)
    assert last is not None
    assert (last.queue_offset, last.tag_code) == (696, 3)
    assert last_with_code(store, "t", 0, 99) is None


def test_the_prepared_offset_is_read_whatever_the_hosts():
    store = open_store(SimDisk(Random(1)))
    for born in (bytes(8), bytes(20)):
        [place] = store.append("t", 0, [draft(b"x", born=born, sys_flag=8, prepared=4711)], NOW).physical_offsets
        record = store.record(place)
        assert record is not None
        assert prepared_offset(record) == 4711
