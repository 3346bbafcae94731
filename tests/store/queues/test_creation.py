"""Queues made in the background: appends to them wait for nothing, and what was promised of offsets and space holds."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable, UsageError
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.journal import Kind, Row, queue_key
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import NOW, carry_out, close, draft, edit_journal, open_store, run, small

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


class Waiting:
    """Those who were told about their queue, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.told: list[tuple[str, int, Exception | None]] = []

    def want(self, topic: str = "t", queue_id: int = 0) -> None:
        self.store.make_ready(topic, queue_id, lambda error, now: self.told.append((topic, queue_id, error)))


def making(store: Store) -> list[Work]:
    return [work for work in store.work() if work.name == "create queues"]


@pytest.mark.parametrize("settings", [{}, SYNC], ids=["async", "sync"])
def test_an_append_to_a_queue_that_was_made_waits_for_nothing(settings):
    disk = SimDisk(Random(1))
    store = open_store(disk, **settings)
    waiting = Waiting(store)
    assert not store.ready("t", 0)
    waiting.want()
    carry_out(store)
    assert waiting.told == [("t", 0, None)]
    assert store.ready("t", 0)
    syncs = disk.syncs
    files = {topic: disk.list(f"consumequeue/{topic}/0") for topic in disk.list("consumequeue")}
    store.append("t", 0, [draft()], NOW)
    assert disk.syncs == syncs
    assert {topic: disk.list(f"consumequeue/{topic}/0") for topic in disk.list("consumequeue")} == files


def test_many_queues_share_a_sync_and_those_who_wait_are_told_in_order():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    for number in range(200):
        waiting.want(f"t{number}")
        waiting.want(f"t{number % 10}")
    syncs = disk.syncs
    carry_out(store)
    assert disk.syncs - syncs <= 4 + 2  # four batches; each waits for the journal, the first for its name as well
    assert len(waiting.told) == 400
    assert [topic for topic, _, _ in waiting.told if topic == "t3"] == ["t3"] * 21
    firsts = list(dict.fromkeys(topic for topic, _, _ in waiting.told))
    assert firsts == [f"t{number}" for number in range(200)]


def test_offsets_of_a_queue_that_was_made_are_reserved_when_it_is_ready():
    for seed in range(40):
        disk = SimDisk(Random(seed), write_back=0.1)
        store = open_store(disk)
        Waiting(store).want()
        carry_out(store)
        given = store.append("t", 0, [draft()] * (seed % 5 + 1), NOW).queue_offset + seed % 5
        disk.crash(power=True)
        assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset > given


def test_a_queue_without_a_reservation_gets_one_in_the_background():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    close(store)
    edit_journal(disk, Row(Kind.RESERVATION, queue_key("t", 0), None))  # as it is where another broker wrote the store
    store = open_store(disk)
    assert not store.ready("t", 0)
    waiting = Waiting(store)
    waiting.want()
    carry_out(store)
    syncs = disk.syncs
    assert store.append("t", 0, [draft()], NOW).queue_offset == 1
    assert disk.syncs == syncs
    disk.crash(power=True)
    assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset > 1


def test_a_full_disk_refuses_a_queue_and_stores_nothing():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("other", 0, [draft()], NOW)
    waiting = Waiting(store)
    disk.full = True
    waiting.want()
    carry_out(store)
    assert [(topic, type(error)) for topic, _, error in waiting.told] == [("t", OSError)]
    assert store.failure is None
    assert not store.ready("t", 0)
    disk.full = False
    waiting.want()
    carry_out(store)
    assert waiting.told[1] == ("t", 0, None)
    store.append("t", 0, [draft(b"later")], NOW)
    close(store)
    assert list(fsck(disk, small())) == []


def test_a_sync_of_reservations_that_fails_stops_the_store_and_tells_who_waits():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    waiting.want()
    work = making(store)[0]
    waiting.want("late")
    disk.fail_syncs = 1
    run(work)
    assert store.failure is not None
    carry_out(store)
    assert [topic for topic, _, error in waiting.told if error is not None] == ["t", "late"]
    with pytest.raises(StoreNotWritable):
        store.append("t", 0, [draft()], NOW)


def test_a_topic_deleted_while_its_queue_is_made_leaves_nothing_behind():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    waiting.want("t", 0)
    work = making(store)[0]
    waiting.want("t", 1)
    store.delete_topic("t", NOW)
    run(work)
    carry_out(store)
    assert waiting.told == [("t", 0, None), ("t", 1, None)]  # they look again
    assert not store.ready("t", 0)
    assert store.topics() == []
    assert "t" not in disk.list("consumequeue")
    waiting.want("t", 0)
    carry_out(store)
    assert store.append("t", 0, [draft()], NOW).queue_offset == 0
    close(store)
    assert list(fsck(disk, small())) == []


def test_a_queue_wanted_again_while_the_deleted_one_is_made_is_rebuilt():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    waiting.want()
    work = making(store)[0]
    store.delete_topic("t", NOW)
    waiting.want()
    assert making(store) == []  # one at a time
    run(work)
    assert not store.ready("t", 0)
    carry_out(store)
    assert store.ready("t", 0)
    assert len(waiting.told) == 2
    store.append("t", 0, [draft()], NOW)
    disk.crash(power=False)
    assert open_store(disk).queue_max("t", 0) == 1


def test_an_append_beside_the_making_is_refused_and_one_before_it_serves():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    waiting.want()
    store.append("t", 0, [draft()], NOW)
    waiting.want("u")
    work = making(store)[0]
    assert waiting.told == []
    with pytest.raises(StoreNotWritable, match="being created"):
        store.append("u", 0, [draft()], NOW)
    run(work)
    assert waiting.told == [("t", 0, None), ("u", 0, None)]
    assert store.queue_max("t", 0) == 1


def test_a_store_that_stops_makes_no_more_queues():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    waiting = Waiting(store)
    waiting.want()
    close(store)
    assert [type(error) for _, _, error in waiting.told] == [StoreNotWritable]
    assert disk.list("consumequeue") == []


def test_a_name_that_cannot_be_a_directory_is_refused_at_once():
    store = open_store(SimDisk(Random(1)))
    with pytest.raises(UsageError):
        Waiting(store).want("../x")
    assert making(store) == []


def test_a_kill_or_a_loss_in_the_middle_of_making_leaves_a_store_that_opens():
    for seed in range(60):
        disk = SimDisk(Random(seed), write_back=0.2)
        store = open_store(disk)
        store.append("old", 0, [draft(b"old")], NOW)
        waiting = Waiting(store)
        for number in range(5):
            waiting.want(f"t{number}")
        work = making(store)[0]
        disk.stop_after_writes = seed % 12
        with suppress(Stopped):
            run(work)
        disk.crash(power=seed % 2 == 0)
        store = open_store(disk)
        for number in range(5):
            store.append(f"t{number}", 0, [draft()], NOW)
        close(store)
        assert list(fsck(disk, small())) == []
