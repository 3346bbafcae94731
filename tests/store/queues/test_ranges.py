"""Reads of much of one queue at once: the same records as a pull gives, more of them, and where nothing is."""

from random import Random

import pytest

from halfmoon.hot import BulkFilter
from halfmoon.store import ReadStatus, Store
from halfmoon.store.queues import ranges as ranges_module
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.record import decode_records
from tests.store.driving import NOW, draft, open_store, use_offsets_up


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
        ReadStatus.FOUND,
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

    assert answers <= 5_000 // store.queues["t", 0].per_file + 1


def test_offsets_outside_the_queue_and_unknown_queues_are_told_as_to_a_pull(store: Store):
    store.append("t", 0, [draft()] * 5, NOW)

    for topic, offset in (("t", -1), ("t", 5), ("t", 6), ("nobody", 0)):
        assert store.ranges.read(topic, 0, offset, 100, 1 << 20)[:4] == store.read(topic, 0, offset, 32)[:4]


def test_a_record_that_is_gone_ends_a_read_and_the_next_leads_over_it(store: Store):
    store.append("t", 0, [draft()] * 9, NOW)
    queue = store.queues["t", 0]
    queue.write_out()
    for offset in (4, 5):
        queue.segments.write(offset * 20 + 8, (0x7FFFFFFF).to_bytes(4, "big"))  # a filler: no message

    before, hole, behind = (store.ranges.read("t", 0, at, 9, 1 << 20) for at in (0, 4, 6))

    assert (offsets(before), before.next_offset) == ([0, 1, 2, 3], 4)
    assert (hole.status, hole.count, hole.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 0, 6)
    assert (offsets(behind), behind.next_offset) == ([6, 7, 8], 9)


def test_many_records_that_lie_apart_come_as_one_piece(store: Store):
    for _ in range(ranges_module.PIECES_MAX + 1):
        store.append("t", 0, [draft()], NOW)
        store.append("u", 0, [draft()], NOW)

    found = store.ranges.read("t", 0, 0, 1_000, 1 << 20)

    assert (len(found.pieces), found.count) == (1, ranges_module.PIECES_MAX + 1)


class Even:
    """A test of properties that wants those of an even length, and looks at a few at a time."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once

    def note(self, *_: object) -> None:
        pass

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        """Any may match."""

    def select(self, area: memoryview, base: int, entries: bytes, at_most: int) -> tuple[list[int], int, bool]:
        """Return what matches of the first few."""
        _, _, blocks, _, _ = BulkFilter(None).records(area, base, entries[: self.at_once * 20], 10**9, 1, 0, at_most)
        return [at for at, block in enumerate(blocks) if len(block) % 2 == 0], len(blocks), len(blocks) == self.at_once


def tagged(store: Store, count: int) -> None:
    for k in range(count):
        store.append("t", 0, [draft(bytes(100), b"a\x01" + b"b" * (k % 3) + b"\x02", tag=k % 5)], NOW)


def test_a_filter_by_tags_leaves_out_the_others_and_says_how_far_it_has_looked(store: Store):
    tagged(store, 250)

    found = store.ranges.read("t", 0, 3, 200, 1 << 20, frozenset({1, 4}))

    assert offsets(found) == [k for k in range(3, 200) if k % 5 in (1, 4)]
    assert (found.status, found.next_offset, found.count, found.size_bytes) == (
        ReadStatus.FOUND,
        200,
        len(offsets(found)),
        len(joined(found)),
    )


def test_an_answer_that_is_full_ends_before_the_next_message_that_passes(store: Store):
    tagged(store, 250)
    size = len(joined(store.ranges.read("t", 0, 1, 2, 1 << 20)))

    found = store.ranges.read("t", 0, 0, 250, 2 * size + 10, frozenset({1}))

    assert (offsets(found), found.next_offset) == ([1, 6], 11)
    one = store.ranges.read("t", 0, 0, 250, 1, frozenset({1}))
    assert (offsets(one), one.next_offset) == ([1], 6)


def test_a_filter_that_nothing_passes_leads_on_without_a_record(store: Store):
    tagged(store, 50)

    found = store.ranges.read("t", 0, 0, 50, 1 << 20, frozenset({77}))

    assert (found.status, found.next_offset, found.count, found.pieces) == (ReadStatus.FOUND, 50, 0, [])


def test_a_record_that_is_gone_ends_a_filtered_read_as_well(store: Store):
    tagged(store, 9)
    store.queues["t", 0].write_out()
    store.queues["t", 0].segments.write(4 * 20 + 8, (0x7FFFFFFF).to_bytes(4, "big"))  # a filler: no message

    before, hole = (store.ranges.read("t", 0, at, 9, 1 << 20, frozenset({77})) for at in (0, 4))

    assert (before.next_offset, before.count) == (4, 0)
    assert (hole.status, hole.next_offset) == (ReadStatus.MESSAGE_WAS_REMOVING, 5)


@pytest.mark.parametrize("at_once", [1, 7, 1_000])
def test_a_test_of_properties_that_takes_its_time_is_gone_on_with(store: Store, at_once: int):
    tagged(store, 60)
    at, found, answers = 0, [], 0
    while at < 60:
        answer = store.ranges.read("t", 0, at, 60, 1 << 20, Even(at_once))
        found, at, answers = found + offsets(answer), answer.next_offset, answers + 1

    assert found == [k for k in range(60) if (3 + k % 3) % 2 == 0]
    assert answers == -(-60 // at_once)


@pytest.mark.parametrize("count", [1, 5, 200, 290])
def test_a_short_range_is_weighed_exactly(store: Store, count: int):
    for k in range(300):
        store.append("t", 0, [draft(bytes(1 + 37 * k % 900))], NOW)

    weighed = store.ranges.weigh("t", 0, 10, 10 + count)

    assert len(weighed) == 16
    assert sum(weighed) == len(joined(store.ranges.read("t", 0, 10, 10 + count, 1 << 30)))


def test_a_long_range_is_weighed_by_a_sample_that_shows_where_its_bytes_are(store: Store):
    for k in range(8_000):
        store.append("t", 0, [draft(bytes(10 if k < 4_000 else 300))], NOW)
    looked = []
    queue = store.queues["t", 0]
    entries = type(queue).entries
    try:
        type(queue).entries = lambda self, at, count: looked.append(count) or entries(self, at, count)
        weighed = store.ranges.weigh("t", 0, 0, 8_000)
    finally:
        type(queue).entries = entries

    small, large = (len(joined(store.ranges.read("t", 0, at, at + 1, 1 << 20))) for at in (0, 7_999))
    assert weighed == [500 * small] * 8 + [500 * large] * 8
    assert sum(looked) <= 16 * ranges_module.SAMPLE


def test_what_is_not_there_weighs_nothing(store: Store):
    store.append("t", 0, [draft()] * 16, NOW)
    one = len(joined(store.ranges.read("t", 0, 0, 1, 1)))

    assert store.ranges.weigh("nobody", 0, 0, 100) == [0] * 16
    assert sum(store.ranges.weigh("t", 0, 0, 32)) == 16 * one


def test_the_size_of_a_queue_is_exact_while_it_has_few_messages_and_near_from_then_on(store: Store):
    for k in range(200):
        store.append("t", 0, [draft(bytes(k))], NOW)
    whole = len(joined(store.ranges.read("t", 0, 0, 200, 1 << 30)))
    assert store.ranges.size_bytes("t", 0) == whole

    for k in range(2000):
        store.append("t", 0, [draft(bytes(k % 100))], NOW)
    total = sum(store.queues["t", 0].entry(at)[1] for at in range(2200))
    assert abs(store.ranges.size_bytes("t", 0) - total) < total * 0.2
    assert store.ranges.size_bytes("t", 1) == store.ranges.size_bytes("u", 0) == 0


def test_offsets_that_a_power_loss_used_up_are_not_counted_as_messages(store: Store):
    for _ in range(5):
        store.append("t", 0, [draft()], NOW)
    use_offsets_up(store, "t", 0, 3000)
    assert store.ranges.message_count("t", 0) == 5
    for _ in range(2):
        store.append("t", 0, [draft()], NOW)

    assert (store.queue_max("t", 0), store.ranges.message_count("t", 0)) == (3007, 7)
    store.queues["t", 0].trim(3)
    assert store.ranges.message_count("t", 0) == 4
    store.queues["t", 0].trim(1000)
    assert store.ranges.message_count("t", 0) == 2
    assert store.ranges.message_count("t", 1) == 0
