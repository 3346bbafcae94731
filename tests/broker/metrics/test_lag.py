"""The age of the oldest message that a group has not consumed: few reads, none twice."""

from __future__ import annotations

import pytest

from halfmoon.broker.metrics.lag import OldestMessages
from tests.broker.talk import START_MS


@pytest.fixture
def stored(talk):
    for _ in range(3):
        talk.send(queue_id=2)
        talk.wait(1000)
    return talk


@pytest.mark.parametrize("written", [True, False], ids=["in its file", "waiting in memory"])
def test_a_message_is_found_and_read_once(stored, written):
    queue = stored.broker.store.queues["T", 2]
    if written:
        stored.wait(60_000)
    else:
        stored.send(queue_id=2)
    offset = queue.max_offset - 1
    assert (offset < queue.stored) is written
    oldest = OldestMessages(stored.broker.store)
    oldest.begin()
    place = oldest.place(queue, offset)
    assert place == queue.entry(offset)[0]
    assert oldest.stored_ms(place) == stored.broker.store.store_ms("T", 2, offset)
    assert oldest.reads == 2

    oldest.begin()
    assert (oldest.place(queue, offset), oldest.stored_ms(place) is not None, oldest.reads) == (place, True, 0)
    oldest.begin()
    oldest.begin()
    oldest.place(queue, offset)
    assert oldest.reads == 1, "what the last round did not ask for is forgotten"


def test_beyond_its_bound_a_round_reads_no_more_and_says_how_much_is_missing(stored):
    queue = stored.broker.store.queues["T", 2]
    oldest = OldestMessages(stored.broker.store)
    oldest.reads_max = 1
    oldest.begin()
    assert oldest.place(queue, 0) is not None
    assert oldest.place(queue, 1) is None
    assert oldest.left_out == 1
    oldest.begin()
    assert oldest.place(queue, 0) is not None
    assert oldest.place(queue, 1) is not None, "the first is known by now"


def test_a_message_whose_bytes_are_gone_is_none(stored):
    oldest = OldestMessages(stored.broker.store)
    oldest.begin()
    assert oldest.stored_ms(7) is None
    assert oldest.stored_ms(stored.broker.store.end_offset + 10_000_000) is None
    assert oldest.stored_ms(0) == START_MS
