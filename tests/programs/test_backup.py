"""Backups: of stopped and running stores, incremental, verified, replaced in one step; restored by starting on them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from errno import ENOSPC
from pathlib import Path
from random import Random
from threading import Event

import pytest

from halfmoon import Admin, ConsumeFrom, Message, MessageModel, Producer, PullConsumer, PushConsumer
from halfmoon.client.ranges import Ranges
from halfmoon.errors import StoreError, StoreLocked, UsageError
from halfmoon.programs import backup as backing
from halfmoon.programs.backup import back_up, copy_stopped
from halfmoon.programs.replacing import MANIFEST, place_of
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.filesystems import Kind
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import JOURNAL, RESTORED
from halfmoon.store.legacy import read_journal
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.local import SMALL, LocalCluster
from halfmoon.wire.bodies import DelayOffsetTable, from_json
from tests.waiting import until

INDEX = StoreSettings(hash_slots=SMALL["maxHashSlotNum"], index_entries_max=SMALL["maxIndexNum"])


def send(cluster, numbers, more_bytes=0):
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        for number in numbers:
            body = f"body {number}".encode() + Random(number).randbytes(more_bytes)  # which no client can compress
            producer.send(Message("orders", body, keys=[f"k{number}"]))


def read(directory):
    """Return the bodies of orders that a broker on a directory has, and what group G consumes next in all."""
    with LocalCluster(directory) as cluster, Admin(nameserver=cluster.nameserver) as admin:
        count = sum(ends.max_offset - ends.min_offset for ends in admin.topic_stats("orders").values())
        with PullConsumer(group="G2", nameserver=cluster.nameserver, auto_commit=False) as consumer:
            queues = list(admin.topic_stats("orders"))
            consumer.assign(queues)
            for queue in queues:
                consumer.seek(queue, 0)
            bodies = set()
            while len(bodies) < count and (messages := consumer.poll(3000)):
                bodies |= {bytes(message.body) for message in messages}
    return bodies


def bodies(numbers):
    return {f"body {number}".encode() for number in numbers}


def listed_index_files(directory):
    return set(Inventory(read_journal(RealDisk(directory))).index)


@pytest.fixture
def store(tmp_path):
    """A stopped store with twenty messages."""
    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(20))
    return tmp_path / "store"


def test_a_stopped_store_is_copied_as_it_is(store, tmp_path):
    made = back_up(store, tmp_path / "backup", verify=True)

    assert not made.running
    for path in store.rglob("*"):
        if path.is_file() and path.name not in ("lock", "spare"):
            assert (tmp_path / "backup" / path.relative_to(store)).read_bytes() == path.read_bytes(), path
    assert list(fsck(RealDisk(tmp_path / "backup"), INDEX)) == []
    assert read(tmp_path / "backup") == bodies(range(20))


def test_a_running_store_is_copied_up_to_its_end_and_goes_on(tmp_path):
    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(20))
        made = back_up(tmp_path / "store", tmp_path / "backup", verify=True)
        send(cluster, range(20, 40))

    assert made.running
    assert made.log_end > 0
    assert read(tmp_path / "backup") == bodies(range(20))
    assert read(tmp_path / "store") == bodies(range(40))
    assert [problem for problem in fsck(RealDisk(tmp_path / "backup"), INDEX) if problem.certain] == []


def test_a_database_of_a_console_that_another_process_keeps_locked_is_named_and_not_copied_as_it_is(store, tmp_path, monkeypatch):
    monkeypatch.setattr("halfmoon.programs.backup._LOCKED_S", 0.01)
    path = store / "console" / "console.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE users (name TEXT)")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLocked, match=r"console\.db is locked by another process"):
            back_up(store, tmp_path / "backup")


def test_the_database_of_a_console_is_copied_between_two_changes_and_a_damaged_one_as_it_is(store, tmp_path):
    path, copy, is_half_written = store / "console" / "console.db", tmp_path / "backup" / "console", Event()
    path.parent.mkdir()

    def change() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.executescript("CREATE TABLE users (name TEXT); PRAGMA cache_size = 1; BEGIN")
            database.executemany("INSERT INTO users VALUES (?)", [(f"user{number}",) for number in range(10_000)])
            is_half_written.set()
            time.sleep(0.5)
            database.execute("COMMIT")

    with ThreadPoolExecutor() as pool:
        changed = pool.submit(change)
        is_half_written.wait()
        back_up(store, tmp_path / "backup")
        changed.result()

    assert [each.name for each in copy.iterdir()] == ["console.db"]
    with closing(sqlite3.connect(copy / "console.db")) as database:
        assert database.execute("SELECT count(*) FROM users").fetchone() == (10_000,)
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    path.write_bytes(b"damaged")
    back_up(store, tmp_path / "backup")
    assert (copy / "console.db").read_bytes() == b"damaged"


def test_a_backup_of_a_running_store_is_sound_without_the_key_index_file_that_was_written(tmp_path):
    index = tmp_path / "store" / "index"
    with LocalCluster(tmp_path / "store", {"flushIntervalConsumeQueue": 10}) as cluster:
        send(cluster, range(20))
        until(lambda: index.exists() and any(index.iterdir()))
        send(cluster, range(20, 25))
        until(lambda: listed_index_files(tmp_path / "store"))
        back_up(tmp_path / "store", tmp_path / "backup")

    assert not (tmp_path / "backup" / "index").exists()
    assert list(fsck(RealDisk(tmp_path / "backup"), INDEX)) == []
    with LocalCluster(tmp_path / "backup") as cluster, Admin(nameserver=cluster.nameserver) as admin:
        until(lambda: len(admin.messages_by_key("orders", "k7")) == 1)


def test_what_follows_an_old_damaged_record_is_copied_too(store, tmp_path):
    log = store / "commitlog" / f"{0:020d}"
    at = log.read_bytes().index(b"body 3")
    with open(log, "r+b") as file:
        file.seek(at)
        file.write(b"BODY")
    with LocalCluster(store) as cluster:
        send(cluster, range(20, 40))
        back_up(store, tmp_path / "backup")

    copied = (tmp_path / "backup" / "commitlog" / log.name).read_bytes()
    assert {body for body in bodies(range(20, 40)) if body in copied} == bodies(range(20, 40))


def test_what_did_not_change_is_not_copied_again(tmp_path):
    with LocalCluster(tmp_path / "store", {"mappedFileSizeCommitLog": 1024**2}) as cluster:
        send(cluster, range(300), more_bytes=10_000)
        first = back_up(tmp_path / "store", tmp_path / "backup")
        send(cluster, range(300, 310))
        again = back_up(tmp_path / "store", tmp_path / "backup", verify=True)

    assert first.linked_bytes == 0
    assert again.linked_bytes >= 2 * 1024**2
    assert again.copied_bytes < first.copied_bytes - 1024**2
    assert again.log_end > first.log_end
    logs = sorted((tmp_path / "backup" / "commitlog").iterdir())
    assert [path.stat().st_nlink for path in logs] == [1] * len(logs), "the older backup is gone"


def test_a_file_of_an_older_backup_that_was_written_since_is_copied_again(tmp_path):
    with LocalCluster(tmp_path / "store", {"mappedFileSizeCommitLog": 1024**2}) as cluster:
        send(cluster, range(300), more_bytes=10_000)
        back_up(tmp_path / "store", tmp_path / "backup")
        spoilt = sorted((tmp_path / "backup" / "commitlog").iterdir())[0]
        data = bytearray(spoilt.read_bytes())
        data[100] ^= 1
        spoilt.write_bytes(data)
        back_up(tmp_path / "store", tmp_path / "backup", verify=True)

    assert spoilt.read_bytes() == (tmp_path / "store" / "commitlog" / spoilt.name).read_bytes()


def test_damage_to_the_copy_is_found_by_its_checksums(store, tmp_path):
    def spoils(done, of_all):
        for path in place_of(store, tmp_path / "older").new.rglob("topics.json"):
            path.write_bytes(b"damaged")

    back_up(store, tmp_path / "older")
    before = (tmp_path / "older" / MANIFEST).read_bytes()

    with pytest.raises(StoreError, match="checksum"):
        back_up(store, tmp_path / "older", verify=True, progress=spoils)
    assert (tmp_path / "older" / MANIFEST).read_bytes() == before, "the older backup is what it was"


def test_what_is_no_backup_is_not_written_over(store, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_bytes(b"1")
    for target in (tmp_path / "other", store, store / "inside", tmp_path):
        with pytest.raises(UsageError):
            back_up(store, target)
    with pytest.raises(UsageError, match="holds no store"):
        back_up(tmp_path / "other", tmp_path / "new2")


def test_a_backup_on_which_a_broker_was_started_is_not_replaced(store, tmp_path):
    back_up(store, tmp_path / "backup")
    with LocalCluster(tmp_path / "backup") as cluster:
        send(cluster, range(20, 22))

    with pytest.raises(UsageError, match="a broker was started on"):
        back_up(store, tmp_path / "backup")
    assert read(tmp_path / "backup") == bodies(range(22))


def test_a_backup_on_which_a_broker_is_started_meanwhile_is_not_replaced(store, tmp_path):
    def starts(done, of_all):
        (tmp_path / "backup" / "lock").write_bytes(b"lock")

    back_up(store, tmp_path / "backup")
    with pytest.raises(UsageError, match="a broker was started on"):
        back_up(store, tmp_path / "backup", progress=starts)
    assert (tmp_path / "backup" / "lock").exists()


def test_a_copy_that_cannot_be_completed_gives_its_room_back(store, tmp_path):
    def is_full(done, of_all):
        raise OSError(ENOSPC, "No space left on device")

    back_up(store, tmp_path / "backup")
    before = (tmp_path / "backup" / MANIFEST).read_bytes()
    with pytest.raises(OSError, match="No space"):
        back_up(store, tmp_path / "backup", progress=is_full)
    with pytest.raises(OSError, match="No space"):
        copy_stopped(store, tmp_path / "copy", is_full)

    assert sorted(path.name for path in tmp_path.iterdir()) == [".backup.lock", ".copy.lock", "backup", "store"]
    assert (tmp_path / "backup" / MANIFEST).read_bytes() == before


def test_a_target_may_be_a_symbolic_link_or_the_directory_one_is_in(store, tmp_path, monkeypatch):
    (tmp_path / "big" / "disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to("big/disk")
    back_up(store, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "big" / "disk" / MANIFEST).exists()

    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    back_up(store, Path("."))
    assert (tmp_path / "here" / MANIFEST).exists()


def test_a_backup_has_what_its_tables_speak_of_though_the_log_rolls_meanwhile(tmp_path, monkeypatch):
    """A delayed message is delivered, into a new file of the log, before the tables are copied."""

    def rolls(copy):
        if not ends:
            send(cluster, range(20, 220), more_bytes=90_000)  # a file has 16 MiB
            with Producer(group="P", nameserver=cluster.nameserver) as producer:
                producer.send(Message("orders", b"later", delay_level=1))
            until(lambda: read_offsets(tmp_path / "store").get(1) == 1)
            ends.append(max(int(path.name) for path in (tmp_path / "store" / "commitlog").iterdir()))
        return paths(copy)

    ends: list[int] = []
    paths = backing._Copy._paths
    monkeypatch.setattr("halfmoon.programs.backup._Copy._paths", rolls)
    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(20))
        made = back_up(tmp_path / "store", tmp_path / "backup")

    assert made.running
    assert made.log_end > ends[0] > 0
    assert read_offsets(tmp_path / "backup")[1] == 1
    assert b"later" in read(tmp_path / "backup")


def read_offsets(directory):
    path = directory / "config" / "delayOffset.json"
    return from_json(DelayOffsetTable, path.read_bytes()).offset_table if path.exists() else {}


@pytest.mark.parametrize("running", [True, False])
def test_the_topics_of_a_restored_backup_have_another_birth_and_keep_it(tmp_path, running):
    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(20))
        born = births(cluster)
        if running:
            back_up(tmp_path / "store", tmp_path / "backup")
    if not running:
        back_up(tmp_path / "store", tmp_path / "backup")
    back_up(tmp_path / "backup", tmp_path / "restored")
    later = []
    for _ in range(2):
        with LocalCluster(tmp_path / "restored") as cluster:
            later.append(births(cluster))

    assert later[0] == later[1]
    assert later[0] > born
    assert not (tmp_path / "restored" / RESTORED).exists()
    with LocalCluster(tmp_path / "store") as cluster:
        assert births(cluster) == born, "the original is what it was"


def births(cluster):
    with Ranges(nameserver=cluster.nameserver) as ranges:
        ranges.bounds("orders")
        [born] = ranges.births("orders").values()
        return born


def test_a_consumer_that_was_ahead_of_the_backup_is_given_all_that_the_restored_broker_stores(tmp_path):
    """Its offsets file speaks of messages that the original stored after the backup."""

    def given(directory, numbers):
        got = set()
        with LocalCluster(directory) as cluster:
            send(cluster, numbers)
            consumer = PushConsumer(
                group="B", nameserver=cluster.nameserver, model=MessageModel.BROADCASTING, instance_name="one",
                consume_from=ConsumeFrom.FIRST_OFFSET, offsets_dir=str(tmp_path / "offsets"),
            )  # fmt: skip
            consumer.subscribe("orders")
            consumer.on_message(lambda messages: got.update(bytes(each.body) for each in messages))
            with consumer:
                until(lambda: bodies(numbers) <= got)
        return got

    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(20))
    back_up(tmp_path / "store", tmp_path / "backup")
    assert given(tmp_path / "store", range(20, 80)) == bodies(range(80))

    assert bodies(range(100, 140)) <= given(tmp_path / "backup", range(100, 140))


def test_a_linked_directory_in_a_store_is_not_left_out_silently(store, tmp_path):
    (store / "consumequeue" / "orders").rename(tmp_path / "elsewhere")
    (store / "consumequeue" / "orders").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="consumequeue/orders is a symbolic link"):
        back_up(store, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_first_file_of_the_log_without_bytes_stops_no_backup(tmp_path, monkeypatch):
    def opens(copy, logs, held):
        [first] = [path for path in (tmp_path / "store" / "commitlog").iterdir() if not int(path.name)]
        first.rename(tmp_path / "first")
        first.write_bytes(b"")
        try:
            return open_logs(copy, logs, held)
        finally:  # at once: the running broker reads it as well
            (tmp_path / "first").rename(first)

    open_logs = backing._Copy._open_logs
    monkeypatch.setattr("halfmoon.programs.backup._Copy._open_logs", opens)
    with LocalCluster(tmp_path / "store") as cluster:
        send(cluster, range(3))
        made = back_up(tmp_path / "store", tmp_path / "backup")
    assert made.running


def test_a_topic_that_is_deleted_meanwhile_is_left_out(store, tmp_path):
    def deletes(done, of_all):
        shutil.rmtree(store / "consumequeue" / "orders", ignore_errors=True)

    back_up(store, tmp_path / "backup", progress=deletes)
    assert not (tmp_path / "backup" / "consumequeue" / "orders").exists()


def test_a_copy_of_a_stopped_store_appears_complete_and_is_no_backup(store, tmp_path):
    def stops(done, of_all):
        if (place_of(store, tmp_path / "copy").new / "commitlog").exists():  # it comes last
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_stopped(store, tmp_path / "copy", stops)
    assert not (tmp_path / "copy").exists()

    copy_stopped(store, tmp_path / "copy")
    assert list(fsck(RealDisk(tmp_path / "copy"), INDEX)) == []
    with pytest.raises(UsageError, match="neither empty nor a backup"):
        back_up(store, tmp_path / "copy")


def test_a_running_store_is_not_copied_as_a_stopped_one(tmp_path):
    with LocalCluster(tmp_path / "store"), pytest.raises(StoreLocked):
        copy_stopped(tmp_path / "store", tmp_path / "copy")


def test_what_quarantine_and_repairs_set_aside_is_not_copied(store, tmp_path):
    for name in ("quarantine", "repaired-20260101T000000Z"):
        (store / name).mkdir(exist_ok=True)
        (store / name / "x").write_bytes(b"1")
    back_up(store, tmp_path / "backup")
    assert not any((tmp_path / "backup" / name).exists() for name in ("quarantine", "repaired-20260101T000000Z"))


def test_nobody_else_may_read_a_backup(store, tmp_path):
    back_up(store, tmp_path / "backup")
    assert {path.stat().st_mode & 0o077 for path in [tmp_path / "backup", *(tmp_path / "backup").rglob("*")]} == {0}


def test_a_backup_of_another_store_is_not_replaced(store, tmp_path):
    with LocalCluster(tmp_path / "other") as cluster:
        send(cluster, range(5))
    back_up(store, tmp_path / "backup")
    before = (tmp_path / "backup" / MANIFEST).read_bytes()

    with pytest.raises(UsageError, match=f"its log holds other messages; it was made of {store}.*give that directory another name"):
        back_up(tmp_path / "other", tmp_path / "backup")
    assert (tmp_path / "backup" / MANIFEST).read_bytes() == before


def test_a_store_that_lost_its_log_replaces_no_backup_of_it(store, tmp_path):
    back_up(store, tmp_path / "backup")
    store.rename(tmp_path / "moved")
    with LocalCluster(store):
        pass  # an empty one in its place, as where a disk is not mounted
    with pytest.raises(UsageError, match="not known to be a backup of this store: their logs have nothing in common"):
        back_up(store, tmp_path / "backup")


def test_a_backup_is_replaced_by_its_store_wherever_that_is_now(store, tmp_path):
    back_up(store, tmp_path / "backup")
    store.rename(tmp_path / "moved")
    back_up(tmp_path / "moved", tmp_path / "backup")

    back_up(tmp_path / "backup", tmp_path / "restored")
    (tmp_path / "restored" / MANIFEST).unlink()
    with LocalCluster(tmp_path / "restored") as cluster:
        send(cluster, range(20, 25))
        back_up(tmp_path / "restored", tmp_path / "backup")
    assert read(tmp_path / "backup") == bodies(range(25))


def test_a_backup_older_than_all_of_the_log_is_replaced_by_a_store_of_the_same_path(store, tmp_path):
    back_up(store, tmp_path / "backup")
    log = store / "commitlog"
    first, *more = sorted(log.iterdir())
    first.rename(log / f"{int(first.name) + (1 + len(more)) * first.stat().st_size:020d}")  # retention has been there
    back_up(store, tmp_path / "backup")

    store.rename(tmp_path / "moved")
    (tmp_path / "moved" / "commitlog" / first.name).write_bytes(b"")
    for left in (tmp_path / "backup" / "commitlog").iterdir():
        left.unlink()
    with pytest.raises(UsageError, match="not known to be"):
        back_up(tmp_path / "moved", tmp_path / "backup")


@pytest.mark.parametrize("tells", [True, False])
def test_small_files_are_synced_together_where_the_file_system_tells_of_failed_writes_and_else_one_by_one(
    tmp_path, monkeypatch, tells
):
    def synced(fd):
        paths.add(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    with LocalCluster(tmp_path / "store") as cluster, Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("orders", queue_count=100)
        send(cluster, range(100))
    paths, fsync = set(), os.fsync
    monkeypatch.setattr("halfmoon.programs.backup.kind_of", lambda device: Kind(True, True, tells))
    monkeypatch.setattr(os, "fsync", synced)
    back_up(tmp_path / "store", tmp_path / "backup")

    queues = {path for path in paths if "consumequeue/orders/" in path}
    assert len(queues) == (0 if tells else 200), "files and directories"
    assert any(path.endswith(f"/{MANIFEST}.tmp") for path in paths)


@pytest.mark.parametrize("places", [{}, {0: 10}, {0: 4096, 8192: 5}, {700_000: 4096, 3_000_000: 1}, {1024**2 - 4096: 8192}])
def test_files_with_holes_are_copied_whole_and_long_holes_are_not_read(tmp_path, monkeypatch, places):
    def counted(fd, count, at):
        asked.append(count)
        return pread(fd, count, at)

    path, expected = tmp_path / "queue", bytearray(6_000_000)
    with path.open("wb") as file:
        file.truncate(len(expected))
        for at, count in places.items():
            file.seek(at)
            file.write(b"x" * count)
            expected[at : at + count] = b"x" * count
    asked, pread = [], os.pread
    monkeypatch.setattr(os, "pread", counted)
    with path.open("rb") as file:
        found = list(backing._pieces(file.fileno(), len(expected)))

    copied = bytearray(len(expected))
    for at, piece in found:
        copied[at : at + len(piece)] = piece
    assert copied == expected
    assert len(places) > 1 or sum(asked) < 1024**2 + 64 * 1024
    assert places != {0: 10} or sum(asked) < 64 * 1024


def test_a_backup_has_a_whole_journal_though_the_broker_goes_on_to_its_next_file_meanwhile(store, tmp_path, monkeypatch):
    """The next file is listed first and not written yet; once it was copied, the broker has written it and removed the other."""
    [whole] = (store / JOURNAL).iterdir()
    begun = store / JOURNAL / f"{int(whole.name) + 1:020}"
    begun.write_bytes(bytes(whole.stat().st_size))
    listed, copied = os.listdir, backing._Copy._file

    def goes_on(copy, path):
        copied(copy, path)
        if path.endswith(begun.name):
            whole.unlink()

    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path), reverse=True))
    monkeypatch.setattr(backing._Copy, "_file", goes_on)
    back_up(store, tmp_path / "backup")

    assert read_journal(RealDisk(tmp_path / "backup")).there
