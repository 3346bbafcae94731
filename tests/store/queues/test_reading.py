"""Reads of one queue: statuses and next offsets as the original's, filters, limits of one answer, search by time."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import CorruptRecord
from halfmoon.hot import BulkFilter
from halfmoon.instant import instant
from halfmoon.store import ReadStatus, Store
from halfmoon.store.queues import reading
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, draft, facts_of, open_store


@pytest.fixture
def store() -> Store:
    return open_store(SimDisk(Random(1)))


def numbers(found) -> list[int]:
    return [facts.queue_offset for _, facts, _ in facts_of(found)]


def test_an_unknown_queue_and_an_empty_one_say_so(store: Store):
    assert store.read("t", 0, 5, 32)[:4] == (ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    store._creation.create("t", 0)
    assert store.read("t", 0, 5, 32)[:4] == (ReadStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)


def test_offsets_outside_the_queue_are_corrected_as_the_original_does(store: Store):
    store.append("t", 0, [draft()] * 5, NOW)
    assert store.read("t", 0, -1, 32)[:2] == (ReadStatus.OFFSET_TOO_SMALL, 0)
    assert store.read("t", 0, 5, 32)[:2] == (ReadStatus.OFFSET_OVERFLOW_ONE, 5)
    assert store.read("t", 0, 6, 32)[:2] == (ReadStatus.OFFSET_OVERFLOW_BADLY, 5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_an_answer_is_full_at_its_count_or_its_bytes(store: Store, interleaved: bool):
    for _ in range(50):
        store.append("t", 0, [draft(bytes(909))], NOW)  # 1,001 bytes a record
        if interleaved:
            store.append("u", 0, [draft()], NOW)
    assert store.read("t", 0, 0, 64).count == 32
    assert store.read("t", 0, 0, 7).count == 7
    assert store.read("t", 0, 0, 32, max_bytes=4004).count == 4
    assert store.read("t", 0, 0, 32, max_bytes=4003).count == 3
    assert store.read("t", 0, 0, 32, max_bytes=10).count == 1  # one alone is always given
    assert store.read("t", 0, 48, 32).count == 2


def test_old_messages_come_in_smaller_answers():
    store = open_store(SimDisk(Random(1)), memory_bytes=100_000)
    store.append("t", 0, [draft(bytes(909))] * 100, NOW)
    assert store.read("t", 0, 0, 32).count == 8
    assert store.read("t", 0, 70, 32).count == 30
    for _ in range(10):
        store.append("big", 0, [draft(bytes(20_000))], NOW)
    store.append("t", 0, [draft(bytes(40_000))], NOW)
    assert store.read("big", 0, 0, 32).count == 3


@pytest.mark.mission("001-03", "001-04", "001-08", "001-10")
def test_tags_are_tested_by_the_hash_in_the_entry_and_the_log_is_not_read(store: Store):
    store.append("t", 0, [draft(b"%d" % number, tag=number % 3) for number in range(30)], NOW)
    queue = store.queues["t", 0]
    assert len(queue.entries(0, 30)) == 30 * 20
    found = store.read("t", 0, 0, 32, frozenset([1]))
    assert numbers(found) == list(range(1, 30, 3))
    assert found.next_offset == 30
    for number in range(30):
        if number % 3 != 1:  # with what does not match destroyed, the answer is the same
            store.log.segments.write(queue.entry(number)[0], b"\xff" * 91)
    assert store.read("t", 0, 0, 32, frozenset([7]))[:2] == (ReadStatus.NO_MATCHED_MESSAGE, 30)
    again = store.read("t", 0, 0, 32, frozenset([1]))
    assert (again.count, again.next_offset, again.size_bytes) == (10, 30, found.size_bytes)


def test_a_full_answer_ends_before_the_next_message_whether_it_matches_or_not(store: Store):
    store.append("t", 0, [draft(tag=tag) for tag in (1, 2, 1, 2, 2, 1)], NOW)
    found = store.read("t", 0, 0, 2, frozenset([1]))
    assert (numbers(found), found.next_offset) == ([0, 2], 3)


def test_a_pull_with_a_filter_walks_far_but_not_without_end():
    store = open_store(SimDisk(Random(1)), scan_entries_max=1000)
    store.append("t", 0, [draft(tag=1)] * 1500 + [draft(b"x", tag=2)], NOW)
    first = store.read("t", 0, 0, 32, frozenset([2]))
    assert first[:2] == (ReadStatus.NO_MATCHED_MESSAGE, 1000)
    assert numbers(store.read("t", 0, first.next_offset, 32, frozenset([2]))) == [1500]


def test_negative_hashes_match(store: Store):
    store.append("t", 0, [draft(tag=-1829193424)], NOW)
    assert store.read("t", 0, 0, 32, frozenset([-1829193424])).count == 1


def test_a_walk_over_queue_files_gives_every_message_once(store: Store):
    for number in range(700):  # three files of 300 entries
        store.append("t", 0, [draft(b"%d" % number)], NOW)
        store.append("u", 0, [draft()], NOW)
    offset, seen = 0, []
    while (found := store.read("t", 0, offset, 32)).status is ReadStatus.FOUND:
        seen += [int(body) for _, _, body in facts_of(found)]
        offset = found.next_offset
    assert seen == list(range(700))


@pytest.mark.parametrize("times", [[10, 20, 20, 20, 35], [5], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_search_by_time_finds_the_nearest_message(store: Store, times: list[int]):
    for time in times:
        store.append("t", 0, [draft()], NOW + time)
    for wanted in range(45):
        found = store.offset_at("t", 0, NOW + wanted)
        distance = min(abs(time - wanted) for time in times)
        expected = next(offset for offset, time in enumerate(times) if abs(time - wanted) == distance)
        if wanted not in times and times[found] < wanted:
            expected = len(times) - 1 - times[::-1].index(times[expected])  # the last of equal ones before
        assert found == expected, wanted


def test_a_search_by_time_in_nothing_gives_zero(store: Store):
    assert store.offset_at("t", 0, NOW) == 0
    store._creation.create("t", 0)
    assert store.offset_at("t", 0, NOW) == 0


# ---------------------------------------------------------------- damaged records


def damage(store: Store, physical_offset: int, data: bytes) -> None:
    store.log.segments.write(physical_offset, data)


def test_a_pull_steps_over_a_damaged_record_and_misses_none_of_the_whole_ones(store: Store, every_way, caplog):
    read, places = every_way
    damage(store, places[9] + 3, b"\x01")  # another size
    damage(store, places[20] + 84, b"\x7f")  # a body that is longer than the record
    damage(store, places[25] + 26, b"\x01")  # another queue offset, at which a consumer would go on
    damage(store, places[39], bytes(40))

    got, at = [], 0
    while at < 40:
        found = read(at)
        assert found.next_offset > at
        got += numbers(found)  # decodes each record
        assert found.count == len(numbers(found))
        at = found.next_offset

    assert got == [number for number in range(40) if number not in (9, 20, 25, 39)]
    (said,) = [record.getMessage() for record in caplog.records]
    assert f"bytes {places[9]} to " in said
    assert "offset 9 of queue 0 of t is damaged" in said


def test_what_one_reader_had_looked_into_is_looked_into_again_for_others_a_while_later(store: Store):
    (place, *_) = store.append("t", 0, [draft(b"%d" % number) for number in range(40)], NOW).physical_offsets
    assert store.read("t", 0, 0, 32).count == 32
    damage(store, place + 3, b"\x01")

    store.tick(instant(NOW + store.settings.flush_queue_interval_ms))

    assert numbers(store.read("t", 0, 0, 32)) == list(range(1, 33))


def test_damage_behind_what_was_looked_into_is_found_at_once(store: Store):
    places = store.append("t", 0, [draft(b"%d" % number) for number in range(60)], NOW).physical_offsets
    assert store.read("t", 0, 10, 20).count == 20
    for number in (5, 9, 30):
        damage(store, places[number] + 3, b"\x01")

    assert numbers(store.read("t", 0, 20, 32)) == [*range(20, 30), *range(31, 53)]
    assert numbers(store.read("t", 0, 0, 32)) == [*range(5), *range(6, 9), *range(10, 30), *range(31, 35)]
    assert numbers(store.read("t", 0, 8, 4)) == [8, 10, 11, 12]


@pytest.fixture(params=["neighbours", "apart", "by tag", "by properties", "a range", "a range by tag"])
def every_way(request, store: Store):
    """A way of reading a queue of 40 messages, and where they lie."""
    places = []
    for number in range(40):
        places += store.append("t", 0, [draft(b"%d" % number, b"n\x01%d\x02" % number, tag=7)], NOW).physical_offsets
        if request.param == "apart":
            store.append("u", 0, [draft()], NOW)
    wanted = {"by tag": frozenset([7]), "by properties": Everything()}.get(request.param)

    def read(at: int):
        if request.param.startswith("a range"):
            return store.ranges.read("t", 0, at, 40, 1 << 20, frozenset([7]) if "tag" in request.param else None)
        return store.read("t", 0, at, 32, wanted)

    return read, places


class Everything:
    """A filter by properties that every message passes."""

    def note(self, *_: object) -> None:
        pass

    def possible(self, topic: str, queue_id: int, offset: int, count: int) -> None:
        return None

    def select(self, area, base, entries, at_most):
        looked = BulkFilter(None).records(area, base, entries, 10**9, 1, 0, at_most)[3]
        return list(range(looked)), looked, False


# ---------------------------------------------------------------- search by time over damaged records


@pytest.mark.parametrize(
    "damage_of", [(4, b"\0"), (0, bytes(60)), (2, b"\x01"), (30, b"\x01")], ids=["magic", "zeros", "size", "place"]
)
@pytest.mark.parametrize("first", [0, 3, 15, 19, 20, 36, 39])
def test_a_search_by_time_steps_over_damaged_records_wherever_they_lie(store: Store, first: int, damage_of, caplog):
    places = [store.append("t", 0, [draft()], NOW + 10 * number).physical_offsets[0] for number in range(40)]
    hit = range(first, min(first + 3, 40))
    for number in hit:
        damage(store, places[number] + damage_of[0], damage_of[1])
    left = [number for number in range(40) if number not in hit]

    for wanted in range(-5, 405, 5):
        near = min(left, key=lambda number: (abs(10 * number - wanted), number))
        assert store.offset_at("t", 0, NOW + wanted) == near, wanted
        later = [number for number in left if 10 * number >= wanted]
        assert store.bound_at("t", 0, NOW + wanted, upper=False) == (later[0] if later else 40), wanted
        earlier = [number for number in left if 10 * number <= wanted]
        assert store.bound_at("t", 0, NOW + wanted, upper=True) == (earlier[-1] if earlier else 0), wanted
    assert len([each for each in caplog.records if "is damaged" in each.getMessage()]) == 1


def test_a_search_by_time_among_too_many_damaged_records_says_so(store: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "DAMAGED_MAX", 8)
    for number in range(40):
        (place,) = store.append("t", 0, [draft()], NOW + number).physical_offsets
        damage(store, place + 4, b"\0")
    with pytest.raises(CorruptRecord, match="damaged"):
        store.offset_at("t", 0, NOW + 20)


def test_a_search_by_time_begins_where_the_log_does_however_many_records_are_gone(store: Store):
    """Queues are corrected some at a time after log files were removed; until then their first entries point at nothing."""
    for number in range(60):
        store.append("t", 0, [draft()] * 100, NOW + number)
    store.log.segments.drop_before(store.end_offset)
    assert store.queue_min("t", 0) == 0, "as long as nobody looked"
    first = store.offset_at("t", 0, NOW)
    assert first > reading.DAMAGED_MAX
    assert store.bound_at("t", 0, NOW, upper=False) == store.bound_at("t", 0, NOW, upper=True) == first
    assert store.bound_at("t", 0, NOW + 59, upper=False) == 5900
    assert facts_of(store.read("t", 0, first, 1))
