"""What a store does beside its messages: indexing in slices, and log files that are pinned."""

from __future__ import annotations

from random import Random

from simulation.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store


def test_the_key_index_catches_up_while_nobody_appends_or_reads():
    store = open_store(SimDisk(Random(1)))
    store.append("t", 0, [draft(b"x", b"UNIQ_KEY\x01k%d\x02" % number) for number in range(600)], NOW)
    now = NOW
    for _ in range(100):
        now += 20
        store.tick(now)
        carry_out(store, now)
    assert store._indexing.position == store.end_offset


def test_pins_add_up_to_the_lowest_offset():
    store = open_store(SimDisk(Random(1)))
    store.maintenance.pin(lambda: 500)
    store.maintenance.pin(lambda: 300)
    store.maintenance.pin(lambda: 400)
    assert store.maintenance.undecided_from is not None
    assert store.maintenance.undecided_from() == 300
