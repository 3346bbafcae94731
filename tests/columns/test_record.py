"""Whether bytes of the log are the records that queue entries name, with both twins."""

from __future__ import annotations

import pytest

from halfmoon.hot import ENTRY, MAGIC, MAGIC_V2
from tests.columns.test_messages import BORN_V6, draft, encode


def whole(twin, data, sizes, queue_id=3, queue_offset=5, physical_offset=100):
    """How many are whole, of records that were written where `encode` writes them."""
    return twin.whole_records(data, sizes, queue_id, queue_offset, physical_offset)


def three(twin, **changes):
    """Three records one behind another, and their sizes."""
    records, entries = encode(twin.Messages([draft(b"%d" % number * 40, **changes) for number in range(3)]))
    return bytearray(records), [size for _, size, _ in ENTRY.iter_unpack(entries)]


@pytest.mark.parametrize("changes", [{}, {"host": BORN_V6, "sys_flag": 0x10}, {"properties": b""}])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_as_they_were_written_are_whole(twin, changes, kind):
    records, sizes = three(twin, **changes)

    assert whole(twin, kind(records), sizes) == 3
    assert whole(twin, kind(records), sizes[:1]) == 1
    assert whole(twin, kind(records), []) == 0


@pytest.mark.parametrize("at", [0, 1, 3, 4, 7, 12, 15, 20, 27, 28, 35, 39, 84, 87])
def test_the_count_ends_before_a_record_that_no_decoder_gets_past(twin, at):
    records, sizes = three(twin)
    records[sizes[0] + at] ^= 0x20

    assert whole(twin, memoryview(records), sizes) == 1


def test_lengths_of_topic_and_properties_belong_to_the_proof(twin):
    for back in (len(b"K\x01v\x02") + 1, len(b"K\x01v\x02") + 2, len(b"K\x01v\x02") + 4):
        records, sizes = three(twin)
        records[sum(sizes[:2]) - back] ^= 1

        assert whole(twin, records, sizes) == 1


def test_a_topic_length_of_two_bytes_goes_with_its_own_magic(twin):
    records, (size, *_) = three(twin)
    topic_at = size - len(b"K\x01v\x02") - 2 - len(b"\x01T")
    wide = bytearray(records[:topic_at]) + b"\0" + records[topic_at:size]
    wide[0:8] = (size + 1).to_bytes(4, "big") + MAGIC_V2.to_bytes(4, "big", signed=True)

    assert whole(twin, wide, [size + 1]) == 1
    wide[7] ^= 1
    assert whole(twin, wide, [size + 1]) == 0
    wide[4:8] = MAGIC.to_bytes(4, "big", signed=True)
    assert whole(twin, wide, [size + 1]) == 0


def test_a_record_that_ends_behind_the_bytes_or_has_another_size_than_asked_for_is_not_whole(twin):
    records, sizes = three(twin)

    assert whole(twin, records[:-1], sizes) == 2
    assert whole(twin, records, [sizes[0], sizes[1] + 1, sizes[2]]) == 1
    assert whole(twin, b"", [91]) == 0
    assert whole(twin, bytes(200), [200]) == 0
    assert whole(twin, records, [-1]) == 0


def test_records_of_another_place_are_not_whole(twin):
    records, sizes = three(twin)

    assert whole(twin, records, sizes, queue_id=4) == 0
    assert whole(twin, records, sizes, queue_offset=6) == 0
    assert whole(twin, records, sizes, physical_offset=101) == 0
    second = records[sizes[0] :]
    assert whole(twin, second, sizes[1:], queue_offset=6, physical_offset=100 + sizes[0]) == 2
    assert whole(twin, records[: sizes[0]] + records[sizes[0] + sizes[1] :], [sizes[0], sizes[2]]) == 1


def test_bytes_in_the_middle_of_a_body_are_not_looked_at(twin):
    records, sizes = three(twin)
    records[sizes[0] + 90] ^= 0xFF

    assert whole(twin, records, sizes) == 3
