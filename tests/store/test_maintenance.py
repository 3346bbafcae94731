"""What a store does beside its messages: indexing in slices."""

from __future__ import annotations

from random import Random

from halfmoon.instant import instant
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store


def test_the_key_index_catches_up_while_nobody_appends_or_reads():
    store = open_store(SimDisk(Random(1)))
    store.append("t", 0, [draft(b"x", b"UNIQ_KEY\x01k%d\x02" % number) for number in range(600)], NOW)
    now = NOW
    for _ in range(100):
        now += 20
        store.tick(instant(now))
        carry_out(store, now)
    assert store._indexing.position == store.end_offset
