"""Stored records as the store sees them: the worked example, and everything that must not pass for a record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import CorruptRecord
from halfmoon.hot import keys_of, property_of
from halfmoon.model import java_hash
from halfmoon.store.records import BLANK_TAIL, RecordFacts, check_at, store_time_at, tag_hash_of

VECTOR = bytes.fromhex(
    "00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400"
    "00000000 0000018bcfe56800 0a000002 0000c350 0000018bcfe5687b 0a000001 00002a9f"
    "00000000 0000000000000000 00000005 68656c6c6f 01 54 0012 54414753 01 54616741 02 4b455953 01 6b31 02"
)


def test_the_worked_example_is_read():
    facts = check_at(memoryview(VECTOR), 0, 1024)
    assert isinstance(facts, RecordFacts)
    assert facts[:6] == (115, "T", 3, 7, 0, 1700000000123)
    assert VECTOR[facts.body_at : facts.body_at + facts.body_bytes] == b"hello"
    assert (tag_hash_of(facts.properties), keys_of(facts.properties)) == (2598919, [b"k1"])
    assert store_time_at(memoryview(VECTOR)) == 1700000000123


def test_a_record_at_another_place_is_not_one():
    with pytest.raises(CorruptRecord, match="says that it lies at 1024"):
        check_at(memoryview(VECTOR), 0, 1025)


def test_every_cut_and_most_flips_are_noticed():
    for cut in range(len(VECTOR)):
        with pytest.raises(CorruptRecord):
            check_at(memoryview(VECTOR[:cut]), 0, 1024)
    unnoticed = []
    for at in range(len(VECTOR)):
        damaged = bytearray(VECTOR)
        damaged[at] ^= 0x80
        try:
            check_at(memoryview(damaged), 0, 1024)
        except CorruptRecord:
            continue
        unnoticed.append(at)
    covered = {*range(12), *range(28, 36), *range(84, 93), 95, 96}  # sizes, magic, CRC, place, body
    assert not covered & set(unnoticed)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_an_error(data: bytes):
    try:
        found = check_at(memoryview(data), 0, 0)
    except CorruptRecord:
        return
    assert found is BLANK_TAIL or isinstance(found, RecordFacts)


def test_a_blank_tail_says_how_long_it_is():
    tail = bytes.fromhex("00000014 cbd43194") + bytes(12)
    assert check_at(memoryview(tail), 0, 5) is BLANK_TAIL
    with pytest.raises(CorruptRecord):
        check_at(memoryview(tail + b"x"), 0, 5)


@pytest.mark.parametrize("text", [b"A\x011\x02TAGS\x01x\x02", b"TAGS\x01x\x02A\x011", b"A\x011\x02TAGS\x01x"])
def test_a_property_is_found_with_and_without_the_last_separator(text: bytes):
    assert property_of(text, b"TAGS") == b"x"
    assert property_of(text, b"AGS") is None
    assert tag_hash_of(text) == java_hash("x")


def test_keys_are_the_unique_one_first_and_then_each():
    assert keys_of(b"KEYS\x01a b  c\x02UNIQ_KEY\x01U\x02") == [b"U", b"a", b"b", b"c"]
    assert keys_of(b"MYKEYS\x01a\x02") == []
