"""Rounds in which waiting entries are written, and what a kill finds before one."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from random import Random

import pytest

from halfmoon.hot import ENTRY_BYTES
from halfmoon.instant import instant
from halfmoon.runtime.files import disk as disk_module
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.legacy import read_journal
from halfmoon.store.queues.consume_queue import WAITING_MAX
from halfmoon.store.store import Store
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, close, draft, open_store, read_all

QUEUES = 400


def filled(disk: SimDisk) -> Store:
    store = open_store(disk, NOW)
    for number in range(2 * QUEUES):
        store.append("t", number % QUEUES, [draft(b"%d" % number)], NOW)
    return store


def waiting(store: Store) -> int:
    return sum(queue.waiting is not None for queue in store.queues.values())


def published_offset(disk: SimDisk) -> int:
    return CheckpointFile(disk, read_journal(disk)).read().published_offset


def test_a_round_writes_some_queues_at_a_time_and_the_checkpoint_follows_its_end():
    disk = SimDisk(Random(1), write_back=0)
    store = filled(disk)
    end, now = store.end_offset, NOW + 1000
    store.tick(instant(now))
    assert 0 < waiting(store) < QUEUES
    store.append("t", 0, [draft(b"late")], now)  # its queue was written in this round already
    while waiting(store) > 1:
        assert published_offset(disk) < end
        carry_out(store, now)
        assert store.due() <= now + 10
        now += 10
        store.tick(instant(now))
    assert published_offset(disk) == end
    carry_out(store, now)
    store.tick(instant(now + 1000))
    assert waiting(store) == 0
    assert published_offset(disk) == store.end_offset


def test_when_too_many_entries_wait_in_all_a_round_makes_no_pause(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("halfmoon.store.queues.write_out.WAITING_BYTES_MAX", 3 * QUEUES * ENTRY_BYTES - 1)
    store = filled(SimDisk(Random(1)))
    now = NOW + 1000
    store.tick(instant(now))
    assert store.due() == now + 10
    for number in range(QUEUES):
        store.append("t", number, [draft(b"more")], now)
    store.tick(instant(now + 10))
    assert store.due() == now + 10
    while waiting(store) > QUEUES - 128:
        store.tick(instant(now + 10))


@pytest.mark.parametrize(("bytes_max", "left"), [(0, 0), (1_000_000, 1)])
def test_a_round_that_took_long_is_followed_at_once_only_when_too_many_entries_wait(monkeypatch, bytes_max: int, left: int):
    monkeypatch.setattr("halfmoon.store.queues.write_out.WAITING_BYTES_MAX", bytes_max)
    store, now = filled(SimDisk(Random(1))), NOW + 1000
    while waiting(store):
        store.tick(instant(now))
        now += 1000
    store.append("t", 0, [draft()], now)
    store.tick(instant(now + 1000))
    assert waiting(store) == left


def test_readers_see_entries_that_wait_and_those_on_both_sides_alike():
    store = open_store(SimDisk(Random(1)))
    for number in range(10):
        store.append("t", 0, [draft(b"%d" % number)], NOW)
        if number == 5:
            store.tick(instant(NOW + 1000))
    queue = store.queues["t", 0]
    assert (queue.stored, queue.written) == (6, 10)
    assert [body for body, _ in read_all(store, "t", 0).values()] == [b"%d" % number for number in range(10)]
    assert bytes(queue.entries(4, 4)) == b"".join(bytes(queue.entries(number, 1)) for number in range(4, 8))


def test_a_reader_at_the_end_of_a_file_misses_no_message_of_the_next_one_while_others_wait():
    store = open_store(SimDisk(Random(1)))
    store.append("t", 0, [draft()], NOW)
    queue = store.queues["t", 0]
    for _ in range(queue.per_file + 4):
        store.append("t", 0, [draft()], NOW)
    queue.write_out()
    for _ in range(10):
        store.append("t", 0, [draft()], NOW)
    assert queue.stored == queue.per_file + 5 == queue.written - 10
    result = store.read("t", 0, queue.per_file - 3, 32)
    assert (result.count, result.next_offset) == (18, queue.written)


def test_a_kill_in_the_middle_of_a_round_loses_nothing():
    disk = SimDisk(Random(1), write_back=0)
    store = filled(disk)
    store.tick(instant(NOW + 1000))
    disk.crash(power=False)
    again = open_store(disk)
    assert [again.queue_max("t", queue_id) for queue_id in range(QUEUES)] == [2] * QUEUES
    assert waiting(again) == 0


def test_entries_that_no_sync_covers_are_not_noted_as_durable():
    disk = SimDisk(Random(1), write_back=0)
    store = filled(disk)
    for now in range(NOW + 1000, NOW + 1100, 10):  # a round, its sync, and more queues than are noted after one
        store.tick(instant(now))
        carry_out(store, now)
    rows = store._inventory.queues
    queue_id = next(queue_id for queue_id in range(QUEUES) if rows["t", queue_id].durable < 2)
    for other in range(QUEUES):
        if other != queue_id:
            store.append("t", other, [draft()], now)
    store.tick(instant(now + 2000))
    for _ in range(WAITING_MAX + 1):  # so many that they are written, outside of the round
        store.append("t", queue_id, [draft()], now)
    assert store.queues["t", queue_id].stored > 2
    for later in range(now + 2010, now + 2100, 10):
        store.tick(instant(later))
        carry_out(store, later)
    assert rows["t", queue_id].durable == 2


def test_entries_of_a_sync_that_found_no_descriptor_are_noted_as_durable_with_the_next_one():
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    disk.descriptors = 0
    store.tick(instant(NOW + 1000))
    carry_out(store, NOW + 1000)
    rows = store._inventory.queues
    assert (rows["t", 0].durable, store.failure) == (-1, None)
    disk.descriptors = None
    store.tick(instant(NOW + 3000))
    carry_out(store, NOW + 3000)
    assert rows["t", 0].durable == 1


def test_a_stop_leaves_no_entry_in_memory():
    disk = SimDisk(Random(1), write_back=0)
    store = filled(disk)
    close(store)
    assert waiting(store) == 0
    assert open_store(disk).recovered.records == 0


def test_a_deleted_topic_is_written_no_more():
    disk = SimDisk(Random(1), write_back=0)
    store = filled(disk)
    store.tick(instant(NOW + 1000))
    store.delete_topic("t", NOW + 1000)
    for now in range(NOW + 1010, NOW + 1200, 10):
        store.tick(instant(now))
        carry_out(store, now)
    assert store.failure is None
    assert not [path for path in disk.paths() if path.startswith("consumequeue/t/")]


def test_more_queues_than_descriptors_and_mappings_are_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_module, "MAPPED_MAX", 32)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        disk = RealDisk(tmp_path)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, limits[1]))
        store = open_store(disk)
        for number in range(2 * QUEUES):
            store.append("t", number % QUEUES, [draft(b"%d" % number)], NOW)
        for now in range(NOW + 1000, NOW + 1200, 10):
            store.tick(instant(now))
            carry_out(store, now)
        assert waiting(store) == 0
        for queue_id in range(QUEUES):
            assert [body for body, _ in read_all(store, "t", queue_id).values()] == [b"%d" % queue_id, b"%d" % (queue_id + QUEUES)]
        assert store.failure is store.refusal is None
        close(store)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_end_that_is_told_has_its_entries_in_the_files_and_a_store_that_failed_tells_it_too():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("t", 0, [draft(b"1"), draft(b"2")], NOW)
    queue = store.queues["t", 0]
    assert (store.queue_max("t", 0), queue.stored) == (2, 0)
    assert (store.reported_max("t", 0), queue.stored) == (2, 2)
    assert store.reported_max("t", 7) == 0
    store.append("t", 0, [draft(b"3")], NOW)
    store.health.fail("for the test")
    assert (store.reported_max("t", 0), queue.stored) == (3, 2)
