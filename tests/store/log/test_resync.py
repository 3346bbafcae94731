"""The next record behind bytes that are none: it proves itself, and one of an older life does not count."""

from __future__ import annotations

from random import Random

from halfmoon.store.log.resync import next_record
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, draft, open_store


def test_the_next_record_is_found_behind_damage_and_only_before_the_stop():
    store = open_store(SimDisk(Random(1)))
    places = store.append("t", 0, [draft(b"%d" % number) for number in range(5)], NOW).physical_offsets
    segments, end = store.log.segments, store.end_offset
    segments.write(places[1] + 4, b"\0\0\0\0")
    assert next_record(segments, places[0] + 1, end) == places[2]
    assert next_record(segments, places[0] + 1, places[2]) is None
    assert next_record(segments, places[4] + 1, end) is None


def test_a_record_that_names_another_place_or_is_older_is_passed_over():
    store = open_store(SimDisk(Random(1)))
    places = store.append("t", 0, [draft(b"%d" % number) for number in range(3)], NOW).physical_offsets
    segments = store.log.segments
    copy = bytes(segments.view(places[1], places[2] - places[1]))
    segments.write(store.end_offset + 7, copy)
    assert next_record(segments, places[2] + 1, segments.end) is None
    assert next_record(segments, places[0] + 1, store.end_offset, least_ms=NOW) == places[1]
    assert next_record(segments, places[0] + 1, store.end_offset, least_ms=NOW + 1) is None
