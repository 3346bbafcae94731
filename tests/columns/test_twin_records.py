"""Both twins on the same records, whole and damaged: which are whole, which are gathered, and by which keys they are found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from halfmoon.hot import ENTRY, KEY
from tests.columns.test_twins import HOSTS, damaged


@given(st.data())
def test_records_are_found_to_be_whole_alike(twins, data):
    python, native = twins
    kinds = data.draw(st.lists(st.tuples(st.binary(max_size=30), st.sampled_from([b"", b"K\x01v\x02"]), st.booleans()), max_size=5))
    drafts = [(body, text, 0, 0x10 * wide, 1, HOSTS[1] if wide else HOSTS[0], 0, 0, 0) for body, text, wide in kinds]
    host = data.draw(st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", b"\0" * 20]))
    records, entries = python.Messages(drafts).encode(
        data.draw(st.sampled_from(["T", "t" * 127])), 0, 0, 0, 1 << 30, 1 << 30, 1, host
    )
    sizes = [size for _, size, _ in ENTRY.iter_unpack(entries)]
    given_sizes = sizes + data.draw(st.lists(st.integers(-5, 200), max_size=2))

    seen = damaged(bytes(records), data.draw)
    begin = data.draw(st.sampled_from([0, 0, 0, 1, *sizes[:1]]))
    assert native.record_rows(seen, begin) == python.record_rows(seen, begin)

    place = 0, data.draw(st.sampled_from([0, 0, 0, 1])), data.draw(st.sampled_from([0, 0, 0, 1, 1 << 40]))
    count = python.whole_records(seen, given_sizes, *place)
    assert native.whole_records(memoryview(seen), given_sizes, *place) == count
    if seen == bytes(records) and place == (0, 0, 0):
        assert count >= len(drafts)
    at = sum(given_sizes[:count])
    next_one = seen[at:], given_sizes[count : count + 1], 0, place[1] + count, place[2] + at
    assert count == len(given_sizes) or not python.whole_records(*next_one)


@given(st.data())
def test_the_same_records_are_gathered(twins, data):
    python, native = twins
    drafts = [
        (body, b"K\x01v\x02", 0, 0x10 * wide, 1, HOSTS[1] if wide else HOSTS[0], 0, 0, 0)
        for body, wide in data.draw(st.lists(st.tuples(st.binary(max_size=30), st.booleans()), max_size=9))
    ]
    records, entries = python.Messages(drafts).encode("T", 0, 0, 50, 1 << 30, 1 << 30, 1, b"\x7f\0\0\1\0\0\x2a\x9f")
    seen, pointers = damaged(bytes(records), data.draw), damaged(bytes(entries), data.draw)
    chosen = data.draw(st.none() | st.lists(st.integers(0, max(0, len(pointers) // 20 - 1)), unique=True).map(sorted))
    chosen = [] if len(pointers) < 20 else chosen
    base, first = data.draw(st.sampled_from([50, 50, 50, 49])), data.draw(st.sampled_from([0, 0, 0, 1]))
    arguments = (
        memoryview(seen),
        base,
        pointers,
        chosen,
        0,
        first,
        data.draw(st.sampled_from([0, 300, 1 << 30])),
        data.draw(st.booleans()),
    )

    count, size, pieces = python.gather(*arguments)
    found = native.gather(*arguments)

    assert (*found[:2], list(map(bytes, found[2]))) == (count, size, list(map(bytes, pieces)))
    assert sum(map(len, pieces)) == size
    if (seen, pointers, base, first, chosen, arguments[-2]) == (bytes(records), bytes(entries), 50, 0, None, 1 << 30):
        assert (count, pieces) == (len(drafts), [seen][:count])


KEYS = [
    b"UNIQ_KEY\x01K1\x02", b"KEYS\x01a b\x02", b"KEYS\x01 a\tb\x0b\x02", b"KEYS\x01\xc3\xa9 \xff\xed\xa0\x80\x02",
    b"MYKEYS\x01a\x02", b"UNIQ_KEY\x01\x02", b"", b"K\x01v\x02",
]  # fmt: skip


@given(st.data())
def test_records_are_found_by_the_same_keys(twins, data):
    python, native = twins
    texts = st.lists(st.sampled_from(KEYS), max_size=3).map(b"".join)
    kinds = data.draw(st.lists(st.tuples(st.binary(max_size=30), texts, st.booleans(), st.sampled_from([0, 8, 12])), max_size=40))
    drafts = [(body, text, 0, 0x10 * wide | bits, 1, HOSTS[1] if wide else HOSTS[0], 0, 0, 0) for body, text, wide, bits in kinds]
    host = data.draw(st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", b"\0" * 20]))
    topic = data.draw(st.sampled_from(["T", "t" * 127, "é"]))
    records, _ = python.Messages(drafts).encode(topic, 0, 0, 50, 1 << 30, 1 << 30, 1, host)
    seen = damaged(bytes(records), data.draw)
    at, most = data.draw(st.sampled_from([0, 0, 0, 3, len(seen), len(seen) + 1])), data.draw(st.sampled_from([0, 1, 100]))

    found = python.record_keys(seen, at, 50, most)
    assert native.record_keys(memoryview(seen), at, 50, most) == found
    if seen == bytes(records) and not at and most == 100:
        assert found[:2] == (len(drafts), len(records))


TOPICS = b"H", b"O"
TAGS = [b"TAGS\x01d\x02", b"PGROUP\x01g\x02", b"TAGS\x01a\x02", b"TAGS\x01\xc3\xa9\xff", b"MYTAGS\x01a\x02", b"TAGS\x01\x02"]


@given(st.data())
def test_records_are_checked_alike(twins, data):
    python, native = twins
    host = data.draw(st.sampled_from([b"\x7f\0\0\1\0\0\x2a\x9f", b"\0" * 20]))
    texts = st.lists(st.sampled_from(KEYS + TAGS), max_size=3).map(b"".join)
    bodies = st.binary(max_size=30) | st.sampled_from([b"5", b"9" * 19, b"1,2,"])
    kinds = st.tuples(bodies, texts, st.booleans(), st.sampled_from([0, 0, 0, 0, 0, 4, 8, 12]))
    topics = st.sampled_from(["T", "t" * 127, "é", "apart", "H", "O"])
    places = st.tuples(topics, st.sampled_from([0, 1, -1]), st.sampled_from([0, 0, 0, 1]))
    offsets: dict[tuple[str, int], int] = {}
    records = b""
    for (body, text, wide, bits), (topic, queue_id, more) in data.draw(st.lists(st.tuples(kinds, places), max_size=8)):
        offset = offsets.get((topic, queue_id), data.draw(st.sampled_from([0, 7, 2**63 - 3]))) + more
        offsets[topic, queue_id] = min(offset + 1, 2**63 - 2)
        made = python.Messages([(body, text, 0, 0x10 * wide | bits, 1, HOSTS[1] if wide else HOSTS[0], 0, 77 + bits, 0)])
        records += bytes(made.encode(topic, queue_id, offset, 50 + len(records), 1 << 30, 1 << 30, 1, host)[0])
    seen = damaged(records, data.draw)
    first = data.draw(st.sampled_from([50, 50, 50, 50, 51, 2**63 - 1, -(2**63)]))

    assert native.checked_records(seen, first, [b"apart"]) == python.checked_records(seen, first, [b"apart"])
    begin, stop = data.draw(st.integers(0, 2)), data.draw(st.sampled_from([len(seen), len(seen) // 2, len(seen) + 9]))
    arguments = bytes(begin) + seen, (begin, stop), first, [b"apart"], TOPICS, data.draw(st.sampled_from([130, 1 << 20]))
    assert native.copied_records(*arguments) == python.copied_records(*arguments)


@given(
    st.binary(min_size=4, max_size=90).map(lambda slots: slots[: len(slots) & ~3]),
    st.integers(-5, 2**31 - 1),
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(0, 2**62)), max_size=30),
)
def test_keys_are_entered_alike(twins, slots, count, begin_ms, keys):
    python, native = twins
    count = min(count, 2**31 - 1 - len(keys))
    packed = b"".join(KEY.pack(*key) for key in keys)

    found = python.index_entries(slots, 40, count, begin_ms, packed)
    assert native.index_entries(bytearray(slots), 40, count, begin_ms, packed) == found
    changed = bytearray(slots), bytearray(slots)
    places = [place - 40 for place in found[1]]
    for twin, table in zip(twins, changed, strict=True):
        twin.put_numbers(memoryview(table), places, found[2])
    assert changed[0] == changed[1]
