"""What consumers see and when, and the space for entries that is taken before their records are written."""

from __future__ import annotations

from errno import EMFILE
from random import Random

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.visible_offsets import Arrival, VisibleOffsets
from halfmoon.testing.disk import SimDisk
from tests.store.driving import HOST, NOW, carry_out, draft, entries_of, open_store, read_all


def visible_on(disk: SimDisk) -> tuple[VisibleOffsets, list[str]]:
    reasons: list[str] = []
    health = Health(reasons.append)
    return VisibleOffsets(CommitLog(disk, 65536, HOST, 1 << 20), health), reasons


def test_entries_wait_until_the_log_is_durable_and_come_a_queue_at_a_time():
    disk = SimDisk(Random(1))
    visible, _ = visible_on(disk)
    one, two = ConsumeQueue(disk, "t", 0, 6000), ConsumeQueue(disk, "t", 1, 6000)
    visible.wait(100, one, 0, entries_of([0, 100, 5]))
    visible.wait(200, two, 0, entries_of([100, 100, 6]))
    visible.wait(300, one, 1, entries_of([200, 100, 7]))
    visible.wait(400, one, 2, entries_of([300, 100, 8]))
    visible.publish_kept(300, NOW)
    assert visible.take_arrivals() == [
        Arrival("t", 0, 2, entries_of([0, 100, 5, 200, 100, 7])), Arrival("t", 1, 1, entries_of([100, 100, 6]))
    ]  # fmt: skip
    assert (visible.end, visible.end_ms) == (300, NOW)
    assert visible.take_changed() == [one, two]
    visible.publish_kept(400, NOW)
    assert visible.take_arrivals() == [Arrival("t", 0, 3, entries_of([300, 100, 8]))]


def test_a_deleted_topic_and_a_failed_store_show_nothing_more():
    disk = SimDisk(Random(1))
    visible, _ = visible_on(disk)
    for topic in ("gone", "kept"):
        visible.wait(100, ConsumeQueue(disk, topic, 0, 6000), 0, entries_of([0, 100, 5]))
    visible.forget("gone")
    visible.publish_kept(100, NOW)
    assert [arrival.topic for arrival in visible.take_arrivals()] == ["kept"]
    visible.wait(200, ConsumeQueue(disk, "kept", 1, 6000), 0, entries_of([100, 100, 5]))
    visible.drop_pending()
    visible.publish_kept(200, NOW)
    assert visible.take_arrivals() == []


def test_without_descriptors_a_queue_is_refused_and_the_store_goes_on(monkeypatch: pytest.MonkeyPatch):
    disk = SimDisk(Random(1))
    visible, reasons = visible_on(disk)

    def none_left(*_: object) -> None:
        raise OSError(EMFILE, "Too many open files")

    queue = ConsumeQueue(disk, "t", 0, 6000)
    monkeypatch.setattr(ConsumeQueue, "make_room", none_left)
    with pytest.raises(StoreNotWritable, match="Too many open files"):
        visible.make_room(queue, 0, 1)
    assert reasons == []


def test_a_disk_that_fails_is_told_and_a_full_one_is_not():
    disk = SimDisk(Random(1))
    visible, reasons = visible_on(disk)
    disk.full = True
    with pytest.raises(StoreNotWritable, match="no space"):
        visible.make_room(ConsumeQueue(disk, "t", 0, 6000), 0, 1)
    assert reasons == []
    disk.full = False
    disk.fail_syncs = 1
    with pytest.raises(StoreNotWritable, match="input/output"):
        visible.make_room(ConsumeQueue(disk, "t", 1, 6000), 7, 1)  # fillers are synced
    assert len(reasons) == 1


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_disk_that_is_full_where_a_queue_needs_a_file_refuses_the_append_and_hides_nothing(flush: str):
    disk = SimDisk(Random(1), write_back=0)
    store = open_store(disk, flush_disk_type=flush)
    store.append("t", 0, [draft(b"first" + bytes(2000))], NOW)
    store.flush(1, NOW)
    carry_out(store)
    disk.full = True
    sent: list[bytes] = [b"first"]
    for number in range(2000):
        queue_id = number % 2  # the second queue is new
        body = b"%d" % number
        try:
            store.append("t", queue_id, [draft(body)], NOW)
        except StoreNotWritable:
            continue
        if queue_id == 0:
            sent.append(body)
        store.flush(1, NOW)
        carry_out(store)
    assert store.failure is None
    assert store.queue_max("t", 1) == 0
    disk.full = False
    assert store.append("t", 1, [draft(b"new")], NOW).queue_offset == 0
    assert store.append("t", 0, [draft(b"last")], NOW).queue_offset == len(sent)
    store.flush(2, NOW)
    carry_out(store)
    assert [body.rstrip(b"\0") for body, _ in read_all(store, "t", 0).values()] == [*sent, b"last"]
    assert [body for body, _ in read_all(store, "t", 1).values()] == [b"new"]
