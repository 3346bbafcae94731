"""Tests of properties as bytes: both endings, what readers skip, and what writers refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.errors import MessageIllegal
from halfmoon.wire import properties

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=20)


@given(st.dictionaries(TEXT, TEXT))
def test_properties_are_read_as_they_were_written_with_and_without_the_last_separator(found):
    data = properties.encode(found)

    assert data.endswith(b"\x02") or not found
    assert properties.decode(data) == found
    assert properties.decode(data[:-1]) == found
    assert properties.decode(memoryview(data)) == found


def test_every_pair_is_closed_by_a_separator():
    assert properties.encode({"TAGS": "TagA", "KEYS": "k1"}) == b"TAGS\x01TagA\x02KEYS\x01k1\x02"


def test_empty_names_and_values_are_not_written():
    assert properties.encode({"a": "", "": "b", "c": "d"}) == b"c\x01d\x02"


@pytest.mark.parametrize("found", [{"a\x01": "b"}, {"a": "b\x02"}, {"a\x02b": "c"}, {"a": "\x01"}, {"a\x01b\x02c": "d"}])
def test_a_separator_in_a_name_or_value_is_refused(found):
    with pytest.raises(MessageIllegal):
        properties.encode(found)


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(MessageIllegal):
        properties.encode({"a": "\ud800"})


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", {}),
        (b"\x02\x02", {}),
        (b"name", {}),
        (b"name\x01", {}),
        (b"\x01value\x02", {}),
        (b"a\x01\x02b\x01c", {"b": "c"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),
        (b"a\x01\xff\x02", {"a": "\ufffd"}),
    ],
)
def test_what_is_no_pair_is_read_over(data, found):
    assert properties.decode(data) == found


@given(st.binary(max_size=60))
def test_any_bytes_are_properties(data):
    assert all(name and value for name, value in properties.decode(data).items())


@given(st.text("ab\x01\x02", max_size=30), st.text("ab", min_size=1, max_size=2))
def test_one_value_is_found_as_the_whole_would_tell(text, name):
    value = properties.value_of(text.encode(), name.encode())

    found = properties.decode(text.encode()).get(name)
    assert value == (None if found is None else found.encode())


def test_pairs_are_replaced_or_left_out_without_room_and_all_else_stays():
    odd = b"A\x01\xff\x02B\x01x\x01y\x02rest"
    assert properties.with_pairs(odd, {"N": "1"}) == odd + b"\x02N\x011\x02"
    assert properties.with_pairs(b"N\x015\x02" + odd + b"\x02N\x016", {"N": "7"}) == odd + b"\x02N\x017\x02"
    assert properties.without(b"N\x015\x02M\x011", frozenset([b"N"])) == b"M\x011\x02"
    full = b"A\x01" + b"v" * 32_760 + b"\x02"
    assert properties.with_pairs(full, {"LONG": "1", "N": "1"}) == full + b"N\x011\x02"
    assert properties.with_pairs(full[:-1] + b"vvvvv", {"N": "1"}) == full[:-1] + b"vvvvv"
