"""Whether bytes of the log are the records that queue entries name, with both twins."""

from __future__ import annotations

import pytest

from halfmoon.hot import ENTRY, MAGIC, MAGIC_V2
from tests.columns.test_messages import BORN_V6, draft, encode


def three(twin, **changes):
    """Three records one behind another, and their sizes."""
    records, entries = encode(twin.Messages([draft(b"%d" % number * 40, **changes) for number in range(3)]))
    return bytearray(records), [size for _, size, _ in ENTRY.iter_unpack(entries)]


@pytest.mark.parametrize("changes", [{}, {"host": BORN_V6, "sys_flag": 0x10}, {"properties": b""}])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_as_they_were_written_are_whole(twin, changes, kind):
    records, sizes = three(twin, **changes)

    assert twin.whole_records(kind(records), sizes) == 3
    assert twin.whole_records(kind(records), sizes[:1]) == 1
    assert twin.whole_records(kind(records), []) == 0


@pytest.mark.parametrize("at", [0, 1, 3, 4, 7, 39, 84, 87])
def test_the_count_ends_before_a_record_that_no_decoder_gets_past(twin, at):
    records, sizes = three(twin)
    records[sizes[0] + at] ^= 0x20

    assert twin.whole_records(memoryview(records), sizes) == 1


def test_lengths_of_topic_and_properties_belong_to_the_proof(twin):
    for back in (len(b"K\x01v\x02") + 1, len(b"K\x01v\x02") + 2, len(b"K\x01v\x02") + 4):
        records, sizes = three(twin)
        records[sum(sizes[:2]) - back] ^= 1

        assert twin.whole_records(records, sizes) == 1


def test_a_topic_length_of_two_bytes_goes_with_its_own_magic(twin):
    records, (size, *_) = three(twin)
    topic_at = size - len(b"K\x01v\x02") - 2 - len(b"\x01T")
    wide = bytearray(records[:topic_at]) + b"\0" + records[topic_at:size]
    wide[0:8] = (size + 1).to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big", signed=True)

    assert twin.whole_records(wide, [size + 1]) == 1
    wide[7] ^= 1
    assert twin.whole_records(wide, [size + 1]) == 0
    wide[4:8] = MAGIC.to_bytes(4, "big", signed=True)
    assert twin.whole_records(wide, [size + 1]) == 0


def test_a_record_that_ends_behind_the_bytes_or_has_another_size_than_asked_for_is_not_whole(twin):
    records, sizes = three(twin)

    assert twin.whole_records(records[:-1], sizes) == 2
    assert twin.whole_records(records, [sizes[0], sizes[1] + 1, sizes[2]]) == 1
    assert twin.whole_records(b"", [91]) == 0
    assert twin.whole_records(bytes(200), [200]) == 0
    assert twin.whole_records(records, [-1]) == 0


def test_bytes_in_the_middle_of_a_body_are_not_looked_at(twin):
    records, sizes = three(twin)
    records[sizes[0] + 90] ^= 0xFF

    assert twin.whole_records(records, sizes) == 3
