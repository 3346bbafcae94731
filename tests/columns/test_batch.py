"""Batch bodies, with both twins: written, split, and refused where a length does not fit."""

from __future__ import annotations

import pytest

from halfmoon.errors import MessageIllegal

ITEMS = [(b"one", b"K\x01v\x02", 0), (b"", b"", -1), (b"three", b"A\x01b\x02", 7)]


def test_a_batch_is_split_as_it_was_written(twin):
    assert twin.batch_items(twin.encode_batch(ITEMS)) == ITEMS


@pytest.mark.parametrize("end", [1, 21, 25, 30])
def test_a_batch_that_is_cut_short_is_refused(twin, end: int):
    with pytest.raises(ValueError, match="batch"):
        twin.batch_items(twin.encode_batch(ITEMS)[:end])
    assert twin.batch_drafts(twin.encode_batch(ITEMS)[:end], b"CLUSTER\x01c\x02", 0, 1, bytes(8), 0, 32_767) is None


def test_each_message_of_a_batch_gets_the_suffix(twin):
    drafts = twin.batch_drafts(twin.encode_batch(ITEMS), b"CLUSTER\x01c\x02", 0, 1, bytes(8), 0, 32_767)
    assert [draft[1] for draft in drafts] == [text + b"CLUSTER\x01c\x02" for _, text, _ in ITEMS]
    assert twin.batch_drafts(b"", b"CLUSTER\x01c\x02", 0, 1, bytes(8), 0, 32_767) is None, "no message"


def test_properties_that_are_too_long_are_refused(twin):
    with pytest.raises(MessageIllegal):
        twin.encode_batch([(b"", bytes(32_768), 0)])
