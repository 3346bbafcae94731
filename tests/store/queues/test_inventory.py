"""A topic that was deleted stays deleted: neither a kill nor a loss of power brings its messages back, there or in a new topic."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.instant import instant
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store, read_all


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("saved_before", [False, True])
@pytest.mark.parametrize("made_anew", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_messages_of_a_deleted_topic_do_not_come_back(seed: int, made_anew: bool, saved_before: bool, power: bool) -> None:
    disk = SimDisk(Random(seed))
    store = open_store(disk)
    for number in range(20):
        store.append("gone", 0, [draft(b"old %d" % number)], NOW)
        store.append("kept", 0, [draft(b"kept %d" % number)], NOW)
    if saved_before:
        for now in (NOW + 1000, NOW + 2000):
            store.tick(instant(now))
            carry_out(store, now)
    store.delete_topic("gone", NOW + 3000)
    if made_anew:
        for number in range(3):
            store.append("gone", 0, [draft(b"new %d" % number)], NOW + 3000)
    disk.crash(power=power)

    again = open_store(disk, now=NOW + 4000)

    bodies = [body for body, _ in read_all(again, "gone", 0).values()] if ("gone", 0) in again.queues else []
    assert bodies == [b"new 0", b"new 1", b"new 2"][: len(bodies)]
    assert power or len(bodies) == 3 * made_anew
    assert power or len(read_all(again, "kept", 0)) == 20


def test_what_is_stored_in_the_place_of_what_a_loss_took_is_no_deleted_topics() -> None:
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    for number in range(50):
        store.append("gone", 0, [draft(b"old %d" % number)], NOW)
    store.delete_topic("gone", NOW)
    for path, file in disk._files.items():
        if path.startswith("commitlog/"):
            file.dirty.clear()  # nothing of the log reaches the device
    disk.crash(power=True)
    again = open_store(disk, now=NOW + 1000)
    again.append("gone", 0, [draft(b"new")], NOW + 1000)
    disk.crash(power=False)

    last = open_store(disk, now=NOW + 2000)

    assert [body for body, _ in read_all(last, "gone", 0).values()] == [b"new"]


def test_a_deletion_is_forgotten_once_no_start_comes_upon_its_messages() -> None:
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("gone", 0, [draft(b"old")], NOW)
    store.delete_topic("gone", NOW)
    assert set(store._inventory.deleted) == {"gone"}

    for now in range(NOW + 1000, NOW + 9000, 1000):
        store.tick(instant(now))
        carry_out(store, now)

    assert not store._inventory.deleted
