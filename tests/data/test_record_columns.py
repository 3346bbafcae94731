"""Tests of records as columns: the same as the plain road says, on random, odd and damaged records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.data import record_columns as columns
from halfmoon.data.record_columns import HEAD, HEAD_BYTES, Pairs, bad_bodies, records, starts
from halfmoon.errors import BadMessage
from halfmoon.hot import HEAD as PLAIN_HEAD
from halfmoon.hot import MAGIC_V2
from halfmoon.wire import properties
from halfmoon.wire.ids import pack_host
from halfmoon.wire.record import decode_records
from tests.records import record_of

V4, V6 = pack_host("192.0.2.10:51676"), pack_host("[2001:db8::7]:10911")
NAMES = (b"KEYS", b"TAGS", b"UNIQ_KEY", b"abc", b"a name of 60 bytes, which is the longest that is looked for..")


def record(**changes):
    """Return the bytes of one record."""
    facts = {"topic": "orders", "queue_id": 3, "queue_offset": 7, "physical_offset": 4096, "body": b"hello"}
    facts |= {"born_host": V4, "store_host": V4}
    facts |= {"properties": b"KEYS\x01k1\x02TAGS\x01paid\x02", "born_ms": 1_700_000_000_000, "store_ms": 1_700_000_000_123}
    return record_of(**{**facts, **changes})


i64 = st.integers(-(2**63), 2**63 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
hosts = st.sampled_from([V4, V6, pack_host("10.0.0.1:1")])
pieces = st.sampled_from(
    [b"\x01", b"\x02", b"KEYS", b"KEYS\x01", b"TAGS\x01", b"UNIQ_KEY\x01", b"abc\x01", b"v", b"\xff", "ü".encode()]
)
stored = st.lists(pieces, max_size=12).map(b"".join)
one_record = st.builds(
    record,
    topic=st.sampled_from(["t", "orders", "ü" * 40, "long" * 40]),
    magic=st.sampled_from([None, MAGIC_V2]),
    queue_id=i32,
    queue_offset=i64,
    physical_offset=i64,
    body=st.binary(max_size=40),
    properties=stored,
    born_ms=i64,
    born_host=hosts,
    store_ms=i64,
    store_host=hosts,
    flag=i32,
    sys_flag=st.integers(0, 0x3FF),
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def compare(raw: bytes) -> None:
    """Assert that both roads say the same of good records."""
    plain, found = decode_records(raw), records(raw)
    assert len(found.at) == len(plain)
    for i, message in enumerate(plain):
        head, spans = found.head[i], [int(column[i]) for column in found.spans]
        for name in (
            *("queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_ms", "store_ms", "reconsume_times"),
            *("prepared_transaction_offset", "body_crc"),
        ):
            assert head[name] == getattr(message, name), name
        assert raw[spans[0] : spans[1]] == message.body
        assert str(raw[spans[2] : spans[3]], "utf-8", "replace") == message.topic
        assert properties.decode(raw[spans[4] : spans[5]]) == message.properties


def test_the_head_is_laid_out_as_the_plain_one():
    assert HEAD.itemsize == HEAD_BYTES == PLAIN_HEAD.size


@given(st.lists(one_record, max_size=6))
def test_the_columns_say_what_the_plain_road_says(parts: list[bytes]):
    compare(b"".join(parts))


@given(st.lists(one_record, min_size=1, max_size=3), st.data())
@settings(max_examples=150)
def test_damage_is_noticed_where_the_plain_road_notices_it(parts: list[bytes], data: st.DataObject):
    raw = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    try:
        decode_records(cut)
    except BadMessage:
        with pytest.raises(BadMessage):
            records(cut)
    else:
        compare(cut)


@given(st.lists(one_record, min_size=1, max_size=40), st.data())
@settings(max_examples=150)
def test_the_walk_in_lanes_goes_the_way_of_the_plain_one(parts: list[bytes], data: st.DataObject):
    parts.insert(data.draw(st.integers(0, len(parts))), record(body=record(queue_offset=99) * data.draw(st.integers(1, 3))))
    raw = b"".join(parts)
    found = columns.starts_in_lanes(raw, data.draw(st.sampled_from([200, 400, 1000])))

    if found is not None:
        assert found.tolist() == columns.starts_one_by_one(raw).tolist()


def test_many_records_are_walked_in_lanes_and_damage_among_them_is_noticed():
    parts = [record(queue_offset=i, body=b"x" * (i % 97)) for i in range(2000)]
    raw = bytearray(b"".join(parts))
    assert columns.starts_in_lanes(bytes(raw)) is not None
    assert starts(bytes(raw)).tolist() == columns.starts_one_by_one(bytes(raw)).tolist()
    raw[sum(map(len, parts[:1500])) + 3] += 1

    assert columns.starts_in_lanes(bytes(raw)) is None
    with pytest.raises(BadMessage):
        starts(bytes(raw))


@pytest.mark.parametrize("size", [0, 1, -1, 90, -(2**31), 2**31 - 1])
def test_a_size_that_cannot_be_ends_the_walk(size: int):
    bad = size.to_bytes(4, "big", signed=True) + record()[4:]

    with pytest.raises(BadMessage, match="record at byte"):
        starts(record() + bad)


def test_the_error_names_queue_and_offset_of_the_damaged_record():
    bad = bytearray(record(queue_id=5, queue_offset=1234))
    bad[4] = 0

    with pytest.raises(BadMessage, match=r"queue 5, offset 1234\): the magic"):
        records(record() + bytes(bad))


def test_records_outside_the_range_are_cut_off():
    raw = b"".join(record(queue_offset=i, body=b"%d" % i) for i in range(10))

    found = records(raw, 3, 6)

    assert found.head["queue_offset"].tolist() == [3, 4, 5]
    assert [raw[b:e] for b, e in zip(found.spans.body, found.spans.body_end, strict=True)] == [b"3", b"4", b"5"]
    assert len(records(raw, 20, 30).at) == 0
    assert records(raw, 8).head["queue_offset"].tolist() == [8, 9]
    assert records(raw, None, 2).head["queue_offset"].tolist() == [0, 1]


def test_a_body_that_its_crc_does_not_fit_is_found():
    damaged = bytearray(record())
    damaged[88] ^= 1

    assert bad_bodies(record() + bytes(damaged), records(record() + bytes(damaged))).tolist() == [1]


@given(st.lists(stored, max_size=8))
@settings(max_examples=150)
def test_values_are_those_that_the_plain_decoder_finds(texts: list[bytes]):
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    pairs = Pairs(np.frombuffer(b"".join(texts) + b"KEYS\x01behind", np.uint8), offsets)

    for name in NAMES:
        begin, end = pairs.values(name)
        found = [pairs.data[b:e].tobytes() for b, e in zip(begin, end, strict=True)]
        assert found == [properties.value_of(text, name) or b"" for text in texts]


@given(st.lists(stored, max_size=8))
def test_pairs_are_what_lies_between_the_separators(texts: list[bytes]):
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    pairs = Pairs(np.frombuffer(b"".join(texts) or b"x", np.uint8), offsets)

    wanted = [(i, pair) for i, text in enumerate(texts) for pair in (text.removesuffix(b"\x02").split(b"\x02") if text else [])]
    found = [(r, pairs.data[b:e].tobytes()) for r, b, e in zip(pairs.row, pairs.begin, pairs.end, strict=True)]
    assert found == wanted
