"""The whole store through its public face, on the simulated and on a real disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from halfmoon.errors import MessageIllegal, StoreLocked, StoreNotWritable, UsageError
from halfmoon.hot import DURABLE, Draft, Messages
from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import ReadStatus, Store, StoreSettings
from halfmoon.store.journal import Kind, Row
from halfmoon.testing.disk import SimDisk
from tests.store.driving import BORN, HOST, NOW, carry_out, close, draft, facts_of, open_store, read_all, run

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(Random(1))


# ---------------------------------------------------------------- append and read


def test_what_is_appended_is_read_back_with_its_numbers(disk: SimDisk):
    store = open_store(disk)
    first = store.append("orders", 3, [draft(b"one", b"TAGS\x01a\x02", flag=7, tag=97), draft(b"two")], NOW)
    second = store.append("orders", 3, [draft(b"three")], NOW + 1)
    assert (first.queue_offset, second.queue_offset) == (0, 2)
    assert second.physical_offsets == [first.end_offset]
    found = store.read("orders", 3, 0, 32)
    assert (found.status, found.next_offset, found.min_offset, found.max_offset, found.count) == (ReadStatus.FOUND, 3, 0, 3, 3)
    records = facts_of(found)
    assert [body for _, _, body in records] == [b"one", b"two", b"three"]
    assert [facts.queue_offset for _, facts, _ in records] == [0, 1, 2]
    assert [facts.store_ms for _, facts, _ in records] == [NOW, NOW, NOW + 1]
    assert records[0][1].properties == b"TAGS\x01a\x02"


@pytest.mark.parametrize("body_bytes", [0, 32 * 1024])
def test_neighbours_of_the_log_come_as_one_piece_and_others_as_several_where_they_are_long(disk: SimDisk, body_bytes: int):
    store, body = open_store(disk, commit_log_file_bytes=256 * 1024), bytes(body_bytes)
    store.append("t", 0, [draft(body), draft(body)], NOW)
    store.append("t", 1, [draft(body)], NOW)
    store.append("t", 0, [draft(body)], NOW)
    size = store.queues["t", 0].entry(0)[1]
    found = store.read("t", 0, 0, 32)
    assert [len(piece) for piece in found.pieces] == ([2 * size, size] if body_bytes else [3 * size])
    assert found.size_bytes == sum(map(len, found.pieces)) == 3 * size
    assert b"".join(found.pieces) == b"".join(store.read("t", 0, offset, 1).pieces[0] for offset in range(3))


def test_arrivals_tell_what_became_visible_once(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 1, [draft(tag=5), draft(tag=-6)], NOW)
    assert [(*arrival[:3], arrival.tag_codes) for arrival in store.arrivals()] == [("t", 1, 2, [5, -6])]
    assert store.arrivals() == []


@pytest.mark.mission("004-22")
def test_prepared_and_rollback_records_are_stored_but_not_queued(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft(b"a")], NOW)
    for bits in (4, 12):
        appended = store.append("t", 0, [draft(b"hidden", sys_flag=bits)], NOW)
        assert appended.queue_offset == 0
        record = store.record(appended.physical_offsets[0])
        assert record is not None
        assert int.from_bytes(record[20:28], "big") == 0
    committed = store.append("t", 0, [draft(b"b", sys_flag=8, prepared=97)], NOW)
    assert committed.queue_offset == 1
    assert [body for body, _ in read_all(store, "t", 0).values()] == [b"a", b"b"]


@pytest.mark.mission("004-21")
def test_bytes_20_to_27_of_a_record_are_its_queue_offset(disk: SimDisk):
    store = open_store(disk)
    appended = store.append("t", 0, [draft()] * 3, NOW)
    assert [int.from_bytes(store.record(at)[20:28], "big") for at in appended.physical_offsets] == [0, 1, 2]


def test_ipv6_hosts_take_twenty_bytes(disk: SimDisk):
    store = open_store(disk)
    appended = store.append("t", 0, [draft(b"six", sys_flag=0x10, born=bytes(15) + b"\1" + bytes(4)), draft(b"four")], NOW)
    record = store.record(appended.physical_offsets[0])
    assert len(record) == 91 + 12 + 1 + 3
    assert int.from_bytes(record[36:40], "big") == 0x10
    assert [body for _, _, body in facts_of(store.read("t", 0, 0, 32))] == [b"six", b"four"]
    other = Store.open(SimDisk(Random(2)), store.settings, bytes(20), instant(NOW))
    other.append("t", 0, [draft(b"x")], NOW)
    assert facts_of(other.read("t", 0, 0, 32))[0][1].sys_flag == 0x20


def asked(drafts: list[Draft]) -> Messages:
    messages = Messages(drafts)
    messages.sent(1, 0, 0, DURABLE, len(drafts))
    return messages


def test_a_batch_goes_into_one_file_as_a_whole(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft(bytes(60_000))], NOW)
    split = store.append("t", 1, [draft(bytes(3000))] * 3, NOW)
    assert split.physical_offsets[0] < 65536 < split.physical_offsets[2]
    store.append("t", 0, [draft(bytes(50_000))], NOW)
    whole = store.append("t", 2, asked([draft(bytes(3000))] * 3), NOW)
    assert whole.physical_offsets[0] // 65536 == whole.physical_offsets[2] // 65536
    with pytest.raises(MessageIllegal):
        store.append("t", 2, asked([draft(bytes(40_000))] * 2), NOW)
    assert len(read_all(store, "t", 1)) == 3
    assert len(read_all(store, "t", 2)) == 3


def test_messages_that_cannot_be_stored_are_refused_and_leave_nothing(disk: SimDisk):
    store = open_store(disk, message_bytes_max=1000)
    end = store.end_offset
    for bad in (draft(bytes(70_000)), draft(b"x", bytes(32_768)), draft(flag=2**31)):
        with pytest.raises(MessageIllegal):
            store.append("t", 0, [draft(), bad], NOW)
    assert store.end_offset == end
    assert store.queue_max("t", 0) == 0
    assert store.append("t", 0, [draft()], NOW).queue_offset == 0


@pytest.mark.parametrize("topic", ["", "../x", "a/b", "a" * 128, "ü", "a b", "."])
def test_a_topic_that_cannot_be_a_directory_is_refused(disk: SimDisk, topic: str):
    with pytest.raises(UsageError):
        open_store(disk).append(topic, 0, [draft()], NOW)
    assert disk.list("consumequeue") == []


def test_a_record_is_found_by_its_physical_offset_only(disk: SimDisk):
    store = open_store(disk)
    at = store.append("t", 0, [draft(b"a"), draft(b"b")], NOW).physical_offsets[1]
    assert len(store.record(at)) == 93
    assert len(store.record(at, 93)) == 93
    for wrong in (at - 1, at + 1, -1, 10**12):
        assert store.record(wrong) is None
    assert store.record(at, 92) is None


# ---------------------------------------------------------------- sync flush


def test_in_sync_flush_a_message_is_visible_once_it_is_durable(disk: SimDisk):
    store = open_store(disk, **SYNC)
    appended = store.append("t", 0, [draft()], NOW)
    store.flush(1, NOW)
    [work] = store.work()
    assert work.inline
    assert store.read("t", 0, 0, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert store.record(appended.physical_offsets[0]) is None
    assert store.arrivals() == []
    assert store.durable_offset < appended.end_offset
    run(work)
    assert store.durable_offset == appended.end_offset
    assert [(*arrival[:3], arrival.tag_codes) for arrival in store.arrivals()] == [("t", 0, 1, [0])]
    assert store.read("t", 0, 0, 32).status is ReadStatus.FOUND


def test_what_is_appended_during_a_sync_waits_together_for_the_next(disk: SimDisk):
    store = open_store(disk, **SYNC)
    store.append("t", 0, [draft()], NOW)
    store.flush(2, NOW)
    [first] = store.work()
    for number in range(5):
        store.append("t", number, [draft()], NOW)
        store.flush(1, NOW)
        assert store.work() == []
    syncs = disk.syncs
    run(first)
    [second] = store.work()
    run(second)
    assert disk.syncs - syncs == 3  # both times the log, the first time its new directory entry too
    assert store.durable_offset == store.end_offset


def test_what_nobody_waits_for_becomes_visible_soon(disk: SimDisk):
    store = open_store(disk, **SYNC)
    store.append("t", 0, [draft()], NOW)
    store.flush(0, NOW)
    assert store.work() == []
    assert store.due() <= NOW + 10
    store.tick(instant(NOW + 10))
    carry_out(store)
    assert store.queue_max("t", 0) == 1


def test_a_failed_sync_stops_the_store_for_good_and_shows_nothing(disk: SimDisk):
    store = open_store(disk, **SYNC)
    store.append("t", 0, [draft(b"kept")], NOW)
    store.flush(1, NOW)
    carry_out(store)
    appended = store.append("t", 0, [draft(b"lost")], NOW)
    store.flush(1, NOW)
    disk.fail_syncs = 1
    carry_out(store)
    assert "sync failed" in store.refusal
    assert store.durable_offset < appended.end_offset
    assert store.queue_max("t", 0) == 1
    with pytest.raises(StoreNotWritable, match="sync failed"):
        store.append("t", 0, [draft()], NOW)
    store.tick(instant(NOW + 10_000))
    assert store.work() == []
    close(store)
    assert disk.exists("abort")


def test_a_failed_sync_stops_async_flush_too(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    disk.fail_syncs = 1
    store.tick(instant(NOW + 600))
    carry_out(store)
    assert "sync failed" in store.refusal
    assert store.due() is None


# ---------------------------------------------------------------- the disk


def test_a_full_disk_refuses_an_append_and_takes_the_next_when_there_is_room(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft(bytes(30_000))], NOW)
    disk.full = True
    with pytest.raises(StoreNotWritable):
        store.append("t", 0, [draft(bytes(30_000))] * 2, NOW)
    disk.full = False
    assert store.append("t", 0, [draft(b"after")], NOW).queue_offset == 1
    assert [len(body) for body, _ in read_all(store, "t", 0).values()] == [30_000, 5]


def test_a_disk_above_the_warning_ratio_refuses_writes_until_it_is_below(disk: SimDisk):
    store = open_store(disk)
    disk.used_bytes = disk.total_bytes * 91 // 100
    store.tick(instant(NOW + 60_000))
    assert "the disk is full" in store.refusal
    with pytest.raises(StoreNotWritable, match="disk is full"):
        store.append("t", 0, [draft()], NOW)
    disk.used_bytes = 0
    store.tick(instant(NOW + 120_000))
    assert store.refusal is None


def test_two_stores_cannot_have_one_directory(tmp_path):
    store = open_store(RealDisk(tmp_path))
    with pytest.raises(StoreLocked):
        open_store(RealDisk(tmp_path))
    close(store)
    close(open_store(RealDisk(tmp_path)))


def test_files_of_another_size_are_refused(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    close(store)
    with pytest.raises(Exception, match="the size of files cannot change"):
        open_store(disk, commit_log_file_bytes=128 * 1024)
    close(open_store(disk))


# ---------------------------------------------------------------- time and other facts


def test_a_checkpoint_follows_about_every_second_and_idle_stores_are_left_alone(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    assert store.due() <= NOW + 500
    for now in range(NOW, NOW + 3000, 100):
        store.tick(instant(now))
        carry_out(store, now)
    assert store.durable_offset == store.end_offset
    assert store.due() > NOW + 5000


def test_queues_and_topics_are_known(disk: SimDisk):
    store = open_store(disk)
    for topic, queue_id in (("b", 2), ("b", 0), ("a", 1)):
        store.append(topic, queue_id, [draft()], NOW)
    assert store.topics() == ["a", "b"]
    assert store.queue_ids("b") == [0, 2]
    assert store.queue_ids("none") == []
    assert (store.queue_min("b", 0), store.queue_max("b", 0), store.queue_max("none", 0)) == (0, 1, 0)


def test_store_times_are_known_by_queue_offset(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft()], NOW)
    store.append("t", 0, [draft(sys_flag=0x10, born=bytes(20))], NOW + 9)
    assert [store.store_ms("t", 0, offset) for offset in (-1, 0, 1, 2)] == [-1, NOW, NOW + 9, -1]
    assert store.store_ms("none", 0, 0) == -1


def test_a_deleted_topic_is_gone_and_begins_anew(disk: SimDisk):
    store = open_store(disk)
    store.append("t", 0, [draft(b"old")] * 3, NOW)
    store.append("other", 0, [draft()], NOW)
    store.delete_topic("t", NOW)
    assert store.topics() == ["other"]
    assert disk.list("consumequeue") == ["other"]
    assert store.append("t", 0, [draft(b"new")], NOW).queue_offset == 0
    carry_out(store)
    assert [body for body, _ in read_all(store, "t", 0).values()] == [b"new"]
    disk.crash(power=False)
    assert [body for body, _ in read_all(open_store(disk), "t", 0).values()][:1] == [b"new"]


def test_a_store_on_a_real_disk_survives_stops(tmp_path):
    for count in range(3):
        store = open_store(RealDisk(tmp_path))
        assert store.queue_max("t", 0) == count
        store.append("t", 0, [draft(b"%d" % count)], NOW)
        close(store)
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_defaults_are_those_of_the_original():
    settings = StoreSettings()
    assert (settings.commit_log_file_bytes, settings.queue_file_bytes) == (1 << 30, 6_000_000)
    assert 40 + 4 * settings.hash_slots + 20 * settings.index_entries_max == 420_000_040
    assert HOST != BORN


def test_a_closed_store_leaves_no_file_open_or_mapped_but_what_is_being_read(tmp_path: Path):
    store = open_store(RealDisk(tmp_path))
    for number in range(200):
        store.append("t", number % 4, [draft(bytes(900), b"KEYS\x01k\x02")], NOW)
    for now in (NOW + 1000, NOW + 2000):
        store.tick(instant(now))
        carry_out(store, now)
    piece = store.read("t", 0, 0, 1).pieces[0]
    before = bytes(piece)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    close(store)
    assert bytes(piece) == before
    del piece
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    opened = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    assert not [fd for fd in opened if os.readlink(fd).startswith(str(tmp_path))]


def test_a_topic_is_deleted_on_a_full_disk_and_the_store_goes_on(disk: SimDisk, caplog: pytest.LogCaptureFixture):
    store = open_store(disk)
    store.append("old", 0, [draft()], NOW)
    carry_out(store)
    disk.full = True
    with suppress(OSError):
        while True:
            store.journal.write(Row(Kind.INDEX, b"x", bytes(20)))  # until its last quarter is used, too

    store.delete_topic("old", NOW)

    assert (store.topics(), store.failure) == ([], None)
    assert "the deletion of topic old cannot be written" in caplog.text
