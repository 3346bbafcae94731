"""Opening after an unclean stop: what is recovered reaches the device, also what a sync that failed had left in memory only."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.testing.disk import PAGE_BYTES, SimDisk
from tests.store.driving import HOST, NOW, carry_out, close, draft, open_store, read_all, run, small

SYNC = {"flush_disk_type": "SYNC_FLUSH"}


def bodies_of(store: Store) -> list[bytes]:
    return [body for body, _ in read_all(store, "t", 0).values()]


def store_whose_sync_failed(disk: SimDisk, **settings) -> None:
    """Append three messages, let the sync of them fail, and kill the process."""
    store = open_store(disk, **settings)
    store.append("t", 0, [draft(b"one"), draft(b"two", b"KEYS\x01k\x02"), draft(bytes(9000))], NOW)
    disk.fail_syncs = 1
    if store.sync_flush:
        store.flush(2, NOW)
    else:
        store.tick(instant(NOW + 10_000))
    for work in store.work():
        run(work)
    assert store.failure is not None
    disk.fail_syncs = 0
    disk.crash(power=False)


def test_in_sync_flush_nothing_is_visible_that_a_failed_sync_left_in_memory():
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        store_whose_sync_failed(disk, **SYNC)
        store = open_store(disk, **SYNC)
        found = bodies_of(store)
        assert found == [b"one", b"two", bytes(9000)]
        assert store.durable_offset == store.end_offset
        disk.crash(power=True)
        assert bodies_of(open_store(disk, **SYNC)) == found


def test_in_async_flush_the_next_sync_brings_what_a_failed_one_left_in_memory():
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        store_whose_sync_failed(disk)
        store = open_store(disk)
        found = bodies_of(store)
        assert len(found) == 3
        for now in (NOW + 20_000, NOW + 40_000):
            store.tick(instant(now))
            carry_out(store, now)
        assert store.durable_offset == store.end_offset
        disk.crash(power=True)
        again = open_store(disk)
        assert bodies_of(again) == found
        assert list(fsck(disk, small())) == []


@pytest.mark.slow
def test_queue_offsets_reserved_by_a_process_whose_sync_failed_are_reserved_before_they_are_given_out():
    for seed in range(4):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        for _ in range(2):
            store.append("t", 0, [draft()] * 3000, NOW)  # the second passes the low water: more is asked for
        disk.fail_syncs = 1
        for work in store.work():
            run(work)
        disk.fail_syncs = 0
        disk.crash(power=False)
        store = open_store(disk)
        given = store.append("t", 0, [draft()] * 3000, NOW).queue_offset + 3000  # more than the first reservation
        disk.crash(power=True)
        assert open_store(disk).append("t", 0, [draft()], NOW).queue_offset >= given


@pytest.mark.parametrize("fails", range(8))
def test_a_start_whose_sync_fails_leaves_nothing_that_comes_back_later(fails: int):
    for seed in range(10):
        disk = SimDisk(Random(seed), write_back=0.3)
        store = open_store(disk)
        for number in range(60):
            store.append("t", 0, [draft(b"%d" % number + bytes(500))], NOW)
        disk.crash(power=True)
        syncs, sync = disk.syncs, disk.fail_syncs
        assert sync == 0
        with pytest.MonkeyPatch.context() as patch:
            fail_one(disk, syncs + fails, patch)
            try:
                open_store(disk)
            except OSError:
                pass
        disk.crash(power=False)
        store = open_store(disk)
        survived = read_all(store, "t", 0)
        disk.crash(power=True)
        store = open_store(disk)
        assert read_all(store, "t", 0) == survived
        offset = store.append("t", 0, [draft(b"new")], NOW).queue_offset
        assert offset not in survived
        close(store)
        assert [finding for finding in fsck(disk, small()) if finding.what != "record"] == []


def fail_one(disk: SimDisk, number: int, patch: pytest.MonkeyPatch) -> None:
    """Let the sync with a number, counted by the disk, fail."""
    sync_directory = disk.sync_directory

    def counted(path: str) -> None:
        disk.fail_syncs = int(disk.syncs == number)
        sync_directory(path)

    patch.setattr(disk, "sync_directory", counted)
    disk.fail_syncs = int(disk.syncs == number)


def test_what_a_clean_stop_left_is_not_written_again():
    disk = SimDisk(Random(1))
    store = open_store(disk)
    store.append("t", 0, [draft(b"a")], NOW)
    close(store)
    disk.stop_after_writes = 10
    Store.open(disk, small(), HOST, instant(NOW))
    assert disk.stop_after_writes >= 2  # the checkpoint in both halves of the journal, and its own file with copies and notes


def test_the_index_files_of_a_process_whose_sync_failed_are_whole_after_a_loss():
    for seed in range(10):
        disk = SimDisk(Random(seed), write_back=0)
        store = open_store(disk)
        for number in range(250):  # two files and a half of 99 keys
            store.append("t", 0, [draft(b"%d" % number, b"KEYS\x01k%d\x02" % number)], NOW)
        store.tick(instant(NOW + 1))
        works = store.work()
        disk.fail_syncs = 1
        for work in works:
            if work.name == "sync key index":
                run(work)
        disk.fail_syncs = 0
        disk.crash(power=False)
        store = open_store(disk)
        for now in range(NOW + 1000, NOW + 6000, 500):
            store.tick(instant(now))
            carry_out(store, now)
        assert store._indexing.safe_offset > 0
        disk.crash(power=True)
        store = open_store(disk)
        for number in range(250):
            found = store.query("t", f"k{number}", 32, 0, 2**62)
            assert len(found.records) == 1
        close(store)
        assert list(fsck(disk, small())) == []


def foreign(disk: SimDisk, *, dropped: bool) -> dict[int, tuple[bytes, int]]:
    """Leave what another broker leaves when it is killed: synced, or ``dropped`` by a failed sync; return the messages."""
    store = open_store(disk)
    for number in range(150):
        store.append("t", 0, [draft(b"%d" % number + bytes(1000))], NOW)
    found = read_all(store, "t", 0)
    disk.fail_syncs = 1000 * dropped
    for path in ("commitlog", "consumequeue/t/0"):
        for name in disk.list(path):
            try:
                disk.open(f"{path}/{name}").sync()
            except OSError:
                pass
        disk.fail_syncs = 0
        disk.sync_directory(path)
        disk.fail_syncs = 1000 * dropped
    disk.fail_syncs = 0
    disk.crash(power=False)
    disk.save("checkpoint", bytes(4096), keep_previous=False)
    disk.save("abort", b"", keep_previous=False)
    return found


def test_what_the_device_has_of_another_brokers_log_is_not_written_again():
    disk = SimDisk(Random(1), write_back=0)
    messages = foreign(disk, dropped=False)
    written: dict[str, int] = {}
    for path in (f"{directory}/{name}" for directory in ("commitlog", "consumequeue/t/0") for name in disk.list(directory)):
        count_bytes(disk, path, written)
    store = open_store(disk)
    assert read_all(store, "t", 0) == messages
    assert store.recovered.start == 0
    assert sum(written.values()) <= 64 * 1024 + 8  # of 160 KB; most is the rest of the last queue file, which is made zero
    closed = sum(size for path, size in written.items() if path.startswith("commitlog"))
    assert closed <= 8 + 4096  # the page that its end is in
    disk.crash(power=True)
    assert read_all(open_store(disk), "t", 0) == messages


def count_bytes(disk: SimDisk, path: str, written: dict[str, int]) -> None:
    file = disk.open(path)
    write = file.write

    def counted(at: int, data: bytes) -> None:
        written[path] = written.get(path, 0) + len(data)
        write(at, data)

    file.write = counted  # type: ignore[method-assign]


def test_what_the_device_lacks_of_another_brokers_log_is_written_again():
    for seed in range(10):
        disk = SimDisk(Random(seed), write_back=0)
        messages = foreign(disk, dropped=True)
        store = open_store(disk)
        assert read_all(store, "t", 0) == messages
        disk.crash(power=True)
        assert read_all(open_store(disk), "t", 0) == messages


def test_records_refused_by_a_full_disk_never_come_back_whatever_fails_after_it():
    came_back = 0
    for seed in range(30):
        disk = SimDisk(Random(seed), write_back=1.0)
        store = open_store(disk)
        record = bytes(PAGE_BYTES - 91 - len("t"))  # one page each, so that stale ones can line up
        for _ in range(10):
            store.append("t", 0, [draft(record)], NOW)
        store.tick(instant(NOW + 10_000))
        carry_out(store, NOW + 10_000)
        disk.open("commitlog/00000000000000000000").fill()
        disk.full = True
        with pytest.raises(StoreNotWritable):
            store.append("t", 0, [draft(b"x" + record[1:])] * 8, NOW)  # five would fit, the others need another file
        disk.full = False
        store.append("t", 0, [draft(b"y" + record[1:])], NOW)
        disk.fail_syncs = 2
        store.tick(instant(NOW + 20_000))
        carry_out(store, NOW + 20_000)
        assert store.failure is not None
        disk.fail_syncs = 0
        disk.crash(power=False)
        store = open_store(disk)
        store.tick(instant(NOW + 30_000))
        carry_out(store, NOW + 30_000)
        disk.crash(power=True)
        store = open_store(disk)
        came_back += sum(body.startswith(b"x") for body, _ in read_all(store, "t", 0).values())
    assert came_back == 0
