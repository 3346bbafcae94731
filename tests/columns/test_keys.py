"""What records are found by, with both twins: which keys, their hashes, and the entries of an index file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.hot import INDEX_ENTRY, KEY, index_hash
from tests.columns.test_messages import BORN_V6, draft, encode

words = st.text(min_size=1, max_size=12).map(str.encode).filter(lambda word: not set(word) & set(b"\1\2 \t\n\r\x0b\x0c"))


def keyed(twin, *texts, **changes):
    """Records with these properties, written at 100."""
    records, _ = encode(twin.Messages([draft(b"%d" % number, text, **changes) for number, text in enumerate(texts)]))
    return bytes(records)


def hashes(twin, records):
    """The hashes of what they are found by."""
    return [key_hash for key_hash, _, _ in KEY.iter_unpack(twin.record_keys(records, 0, 0, 256)[2])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"T#k1", 2539445), (b"TopicTest#order-1", 1829193424), (b"polygenelubricants", 0), (b"", 0)],
)
def test_hashes_are_the_absolute_java_hashes(text: bytes, expected: int):
    assert index_hash(text) == expected


@pytest.mark.parametrize("changes", [{}, {"host": BORN_V6, "sys_flag": 0x10}, {"sys_flag": 8}, {"sys_flag": 4}])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_record_is_found_by_its_unique_key_and_each_of_its_keys(twin, changes, kind):
    records = keyed(twin, b"KEYS\x01a  b\x02UNIQ_KEY\x01U\x02", b"", b"TAGS\x01d\x02", b"KEYS\x01c", **changes)
    second = int.from_bytes(records[:4], "big")
    last = len(records) - int.from_bytes(records[second : second + 4], "big")

    count, end, keys = twin.record_keys(kind(records), 0, 100, 256)
    hashes, offsets, times = (list(column) for column in zip(*KEY.iter_unpack(keys), strict=True))
    assert (count, end) == (4, len(records))
    assert hashes == [index_hash(b"T#" + key) for key in (b"U", b"a", b"b", b"c")]
    assert offsets[:3] == [100] * 3
    assert 100 + second < offsets[3] < 100 + last + second
    assert times == [1_700_000_000_001] * 4


def test_a_record_that_takes_a_transaction_back_is_found_by_no_key(twin):
    records = keyed(twin, b"KEYS\x01a\x02", sys_flag=12)
    assert twin.record_keys(records, 0, 0, 256) == (1, len(records), b"")


def test_it_goes_on_where_it_ended_and_ends_where_no_record_is(twin):
    records = keyed(twin, *[b"KEYS\x01%d\x02" % number for number in range(40)])
    size = len(keyed(twin, b"KEYS\x010\x02"))

    assert twin.record_keys(records, 0, 0, 3)[:2] == (3, 3 * size)
    assert twin.record_keys(records, 3 * size, 0, 256)[:2] == (37, len(records))
    assert twin.record_keys(records[:-1], 0, 0, 256)[0] == 39
    assert twin.record_keys(records + bytes(200), 0, 0, 256)[:2] == (40, len(records))
    assert twin.record_keys(records, len(records), 0, 256) == (0, len(records), b"")
    assert hashes(twin, records) == [index_hash(b"T#%d" % number) for number in range(40)]


@given(
    st.lists(
        st.text(min_size=1, max_size=12).map(str.encode).filter(lambda key: not set(key) & set(b"\1\2 \t\n\r\x0b\x0c")), max_size=60
    )
)
def test_keys_of_any_length_and_alphabet_have_their_hashes(twin, keys):
    records = keyed(twin, *[b"KEYS\x01" + key for key in keys])
    assert hashes(twin, records) == [index_hash(b"T#" + key) for key in keys]


def test_entries_of_one_slot_point_at_the_one_before(twin):
    slots = bytes(4) + (3).to_bytes(4, "big") + (9).to_bytes(4, "big")  # the last is behind the file's count

    keys = b"".join(KEY.pack(*key) for key in [(3, 10, 900), (4, 20, 2999), (6, 30, 3000), (2, 40, 2**62)])

    entries, changed, newest, fresh = twin.index_entries(slots, 40, 5, 1000, keys)
    assert list(INDEX_ENTRY.iter_unpack(entries)) == [(3, 10, 0, 0), (4, 20, 1, 3), (6, 30, 2, 5), (2, 40, 2**31 - 1, 0)]
    assert (changed, newest, fresh) == ([40, 44, 48], [7, 6, 8], 2)
    assert twin.index_entries(slots, 40, 5, 0, b"") == (b"", [], [], 0)


def test_numbers_are_put_where_they_belong_and_nowhere_else(twin):
    data = bytearray(b"." * 12)
    twin.put_numbers(memoryview(data), [8, 0], [-2, 0x01020304])

    assert data == b"\x01\x02\x03\x04....\xff\xff\xff\xfe"
    for place in (-4, 6, 12, 2**62):
        with pytest.raises(IndexError):
            twin.put_numbers(memoryview(data), [place], [1])
    twin.put_numbers(memoryview(data), [], [])
    assert data == b"\x01\x02\x03\x04....\xff\xff\xff\xfe"
