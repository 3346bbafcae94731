"""Backups: of stopped and running stores, incremental, verified, replaced in one step; restored by starting on them."""

from __future__ import annotations

import shutil
from random import Random

import pytest

from halfmoon import Admin, Message, Producer, PullConsumer
from halfmoon.errors import StoreError, StoreLocked, UsageError
from halfmoon.programs import backup as backing
from halfmoon.programs.backup import MANIFEST, back_up, copy_stopped
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import fsck
from halfmoon.store.settings import StoreSettings
from halfmoon.testing.local import SMALL, LocalCluster

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


def test_damage_to_the_copy_is_found_by_its_checksums(store, tmp_path, monkeypatch):
    def spoils(fd, data, at):
        wrong(fd, bytes([data[0] ^ 1]) + data[1:], at)

    back_up(store, tmp_path / "older")
    before = (tmp_path / "older" / MANIFEST).read_bytes()
    wrong = backing._write_all
    monkeypatch.setattr("halfmoon.programs.backup._write_all", spoils)

    with pytest.raises(StoreError, match="checksum"):
        back_up(store, tmp_path / "older", verify=True)
    assert (tmp_path / "older" / MANIFEST).read_bytes() == before, "the older backup is what it was"


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_backup_that_is_stopped_leaves_the_older_one_and_the_next_one_ends_it(store, tmp_path, monkeypatch, renames):
    back_up(store, tmp_path / "backup")
    done = []

    def stops(path, to):
        if str(path).endswith(("backup.partial", "backup")):
            done.append(path)
            if len(done) > renames:
                raise KeyboardInterrupt
        shutil.move(path, to)

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.rename", stops)
        if renames < 2:
            with pytest.raises(KeyboardInterrupt):
                back_up(store, tmp_path / "backup")
        else:
            back_up(store, tmp_path / "backup")
    there = [path for path in (tmp_path / "backup", tmp_path / "backup.previous") if path.exists()]
    assert there
    assert (there[0] / MANIFEST).exists()
    back_up(store, tmp_path / "backup", verify=True)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("backup")) == ["backup"]


def test_what_is_no_backup_is_not_written_over(store, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_bytes(b"1")
    for target in (tmp_path / "other", store, store / "inside", tmp_path):
        with pytest.raises(UsageError):
            back_up(store, target)
    (tmp_path / "new.partial").mkdir()
    (tmp_path / "new.partial" / "precious").write_bytes(b"1")
    with pytest.raises(UsageError, match="in the way"):
        back_up(store, tmp_path / "new")
    with pytest.raises(UsageError, match="holds no store"):
        back_up(tmp_path / "other", tmp_path / "new2")


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
