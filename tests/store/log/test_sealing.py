"""A sealed range proves itself, whatever its size and place, and what stands around it stays."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.log.commit_log import CommitLog, DamagedRange
from halfmoon.store.log.sealing import SEALED_MIN, Damage, close_file, damage_of, seal
from halfmoon.store.records import BLANK_TAIL, RecordFacts, check_at
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, close, draft, open_store

FILE_BYTES = 64 * 1024


@pytest.fixture
def log() -> CommitLog:
    """The log of a stopped store with four files."""
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for number in range(40):
        store.append("t", 0, [draft(bytes([number]) * 5000)], NOW)
    end = store.end_offset
    close(store)
    log = CommitLog(disk, FILE_BYTES, bytes(8), 1 << 20)
    log.segments.load()
    log.set_end(end)
    return log


def records(log: CommitLog) -> dict[int, RecordFacts]:
    return {at: found for at, found in log.scan(log.first) if isinstance(found, RecordFacts)}


def test_a_sound_log_has_no_damage(log: CommitLog):
    assert list(damage_of(log, log.end)) == []


@pytest.mark.parametrize("count", [1, 2, 5])
def test_damaged_records_become_one_that_is_no_message(log: CommitLog, count: int):
    before = records(log)
    places = sorted(before)[3 : 3 + count]
    end = places[-1] + before[places[-1]].size_bytes
    log.segments.write(places[0], b"\xff" * (end - places[0]))

    [damage] = damage_of(log, log.end)
    assert damage[:2] == (places[0], end - places[0])
    assert seal(log.segments, damage)

    after = records(log)
    sealed = after.pop(places[0])
    assert (sealed.size_bytes, sealed.transaction) == (end - places[0], 0xC)
    assert sealed.store_ms == NOW
    assert after == {at: facts for at, facts in before.items() if at not in places}
    assert list(damage_of(log, log.end)) == []


def test_damage_over_the_end_of_a_file_closes_the_file(log: CommitLog):
    before = records(log)
    last = max(at for at in before if at < FILE_BYTES)
    log.segments.write(last, b"\xee" * (FILE_BYTES - last))
    log.segments.write(FILE_BYTES, b"\xee" * before[FILE_BYTES].size_bytes)

    found = list(damage_of(log, log.end))
    assert [damage.start for damage in found] == [last, FILE_BYTES]
    assert all(seal(log.segments, damage) for damage in found)
    assert check_at(log.segments.view(last, FILE_BYTES), 0, last) is BLANK_TAIL
    assert records(log).keys() == before.keys() - {last}
    assert not [found for _, found in log.scan(log.first) if isinstance(found, DamagedRange)]


def test_a_hole_at_the_end_of_the_log_is_sealed_up_to_where_the_next_message_goes(log: CommitLog):
    last = max(records(log))
    log.segments.write(last, bytes(log.end - last))

    [damage] = damage_of(log, log.end)
    assert damage[:2] == (last, log.end - last)
    assert seal(log.segments, damage)
    assert max(records(log)) == last


@pytest.mark.parametrize("size", [SEALED_MIN, SEALED_MIN + 1, 200, 3_000_000])
def test_every_size_from_the_smallest_on_can_be_sealed(size: int):
    disk = SimDisk(Random(1))
    log = CommitLog(disk, 4 * 1024 * 1024, bytes(8), 1 << 20)
    log.segments.extend(0)
    log.segments.write(0, b"\x55" * size)

    assert seal(log.segments, Damage(0, size, "", NOW))
    facts = check_at(log.segments.view(0, size), 0, 0)
    assert isinstance(facts, RecordFacts)
    assert (facts.size_bytes, facts.topic, facts.properties) == (size, "-", b"")


def test_what_is_too_short_for_a_record_is_left_as_it_is(log: CommitLog):
    before = bytes(log.segments.view(0, FILE_BYTES))
    assert not seal(log.segments, Damage(100, SEALED_MIN - 1, "", NOW))
    assert not seal(log.segments, Damage(FILE_BYTES - 7, 7, "", NOW))
    assert bytes(log.segments.view(0, FILE_BYTES)) == before


def test_a_file_that_is_closed_from_its_first_byte_on_is_stepped_over(log: CommitLog):
    before = records(log)
    log.segments.write(FILE_BYTES, bytes(FILE_BYTES))
    close_file(log.segments, FILE_BYTES)

    assert records(log) == {at: facts for at, facts in before.items() if not FILE_BYTES <= at < 2 * FILE_BYTES}
    assert list(damage_of(log, log.end)) == []
