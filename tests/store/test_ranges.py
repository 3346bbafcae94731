"""Reads of much of one queue at once: the same records as a pull gives, more of them, and where nothing is."""

from random import Random

import pytest

from halfmoon.store import FoundStatus, Store, arrays
from halfmoon.store import ranges as ranges_module
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.record import decode_records
from tests.store.driving import NOW, draft, open_store


@pytest.fixture
def store() -> Store:
    return open_store(SimDisk(Random(1)))


def joined(found) -> bytes:
    return b"".join(found.pieces)


def offsets(found) -> list[int]:
    return [message.queue_offset for message in decode_records(joined(found))]


@pytest.mark.parametrize("others", [0, 1, 3])
def test_a_read_brings_the_bytes_of_all_pulls_of_the_range_whatever_lies_between_them(store: Store, others: int):
    for k in range(300):
        store.append("t", 0, [draft(b"%d" % k * (k % 5 + 1))], NOW)
        for _ in range(others * (k % 3)):
            store.append("u", 0, [draft()], NOW)
    pulled, at = b"", 0
    while at < 300:
        found = store.read("t", 0, at, 32)
        pulled, at = pulled + joined(found), found.next_offset

    found = store.ranges.read("t", 0, 0, 300, 1 << 30)

    assert found is not None
    assert (found.status, found.next_offset, found.count, found.min_offset, found.max_offset) == (
        FoundStatus.FOUND,
        300,
        300,
        0,
        300,
    )
    assert joined(found) == pulled
    assert found.size_bytes == len(pulled)


def test_a_read_ends_at_its_end_at_its_bytes_and_has_one_record_at_least(store: Store):
    for _ in range(50):
        store.append("t", 0, [draft(bytes(909))], NOW)  # 1,001 bytes a record

    def count(begin: int, end: int, max_bytes: int) -> int:
        found = store.ranges.read("t", 0, begin, end, max_bytes)
        assert offsets(found) == list(range(begin, found.next_offset))
        return found.count

    assert count(10, 20, 1 << 30) == 10
    assert count(45, 999, 1 << 30) == 5
    assert count(0, 50, 4004) == 4
    assert count(0, 50, 4003) == 3
    assert count(7, 50, 1) == 1


def test_a_read_over_the_files_of_a_queue_goes_on_in_the_next(store: Store):
    for _ in range(5_000):
        store.append("t", 0, [draft()], NOW)

    at, answers = 0, 0
    while at < 5_000:
        found = store.ranges.read("t", 0, at, 5_000, 1 << 30)
        assert offsets(found) == list(range(at, found.next_offset))
        at, answers = found.next_offset, answers + 1

    assert answers <= 5_000 // store._queues["t", 0].per_file + 1


def test_offsets_outside_the_queue_and_unknown_queues_are_told_as_to_a_pull(store: Store):
    store.append("t", 0, [draft()] * 5, NOW)

    for topic, offset in (("t", -1), ("t", 5), ("t", 6), ("nobody", 0)):
        assert store.ranges.read(topic, 0, offset, 100, 1 << 20)[:4] == store.read(topic, 0, offset, 32)[:4]


def test_a_record_that_is_gone_ends_a_read_and_the_next_leads_over_it(store: Store):
    store.append("t", 0, [draft()] * 9, NOW)
    queue = store._queues["t", 0]
    for offset in (4, 5):
        queue.segments.write(offset * 20 + 8, (0x7FFFFFFF).to_bytes(4, "big"))  # a filler: no message

    before, hole, behind = (store.ranges.read("t", 0, at, 9, 1 << 20) for at in (0, 4, 6))

    assert (offsets(before), before.next_offset) == ([0, 1, 2, 3], 4)
    assert (hole.status, hole.count, hole.next_offset) == (FoundStatus.MESSAGE_WAS_REMOVING, 0, 6)
    assert (offsets(behind), behind.next_offset) == ([6, 7, 8], 9)


def test_many_records_that_lie_apart_come_as_one_piece(store: Store):
    for _ in range(ranges_module.PIECES_MAX + 1):
        store.append("t", 0, [draft()], NOW)
        store.append("u", 0, [draft()], NOW)

    found = store.ranges.read("t", 0, 0, 1_000, 1 << 20)

    assert (len(found.pieces), found.count) == (1, ranges_module.PIECES_MAX + 1)


def test_without_numpy_there_is_no_such_read(store: Store, monkeypatch):
    store.append("t", 0, [draft()], NOW)
    arrays.load()
    monkeypatch.setattr(arrays, "np", None)

    assert store.ranges.read("t", 0, 0, 1, 1) is None
