"""A store that is moved aside is whole in its folder, wherever a kill came, and what opens next is empty."""

from __future__ import annotations

import logging
from pathlib import Path
from random import Random

import pytest

from halfmoon.errors import StoreError, StoreLocked
from halfmoon.ports import Disk
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.layout import LOCK, QUARANTINE, STARTING_OVER
from halfmoon.store.log import earlier_copy
from halfmoon.store.log.cutting import cut_log
from halfmoon.store.log.earlier_copy import COPY, EarlierCopy, finish, refusal, set_aside
from halfmoon.store.log.quarantine import KEPT_MAX, Quarantine
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import NOW, carry_out, close, draft, open_store, read_all, small
from tests.store.log.test_cutting import Stopping

TABLES = ("config/topics.json", "config/epochs.json", "restored")
STAYS = ("conf/plain_acl.yml", "console/sessions.json")


class Killed(Stopping):
    """A disk on which a process stops before an operation, and a directory has its new name at once, as in a file system."""

    def rename(self, path: str, to: str) -> None:
        self._count(path)
        left, self.operations = self.operations, None
        super().rename(path, to)
        self.operations = left


def stopped_store(disk: Disk, *, kill: bool = False) -> None:
    """Make a directory with a store, tables, and files that are none of the store's."""
    store = open_store(disk)
    for number in range(100):
        store.append("orders", number % 2, [draft(b"%d" % number + bytes(500), b"KEYS\x01k\x02")], NOW)
        carry_out(store)
    for path in (*TABLES, *STAYS):
        disk.save(path, path.encode())
    disk.create(f"{QUARANTINE}/commitlog-17", 5).write(0, b"older")
    if not kill:
        close(store)


def contents(disk: Disk, folder: str = "") -> dict[str, bytes]:
    """Return what each file below a folder holds."""
    found = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}" if folder else name
        found |= contents(disk, path) if disk.is_directory(path) else {path: disk.read(path) or b""}
    return found


def check(before: dict[str, bytes], disk: Disk) -> None:
    """Raise AssertionError unless the store is in its folder, whole, and everything else where it was."""
    after = contents(disk)
    moved = {path.removeprefix(f"{COPY}/"): data for path, data in after.items() if path.startswith(f"{COPY}/")}
    left = {path: data for path, data in after.items() if not path.startswith(f"{COPY}/") and path != LOCK}
    stays = {path: data for path, data in before.items() if path.startswith((*STAYS, QUARANTINE)) and path != LOCK}
    assert left == stays
    assert moved == {path: data for path, data in before.items() if path not in stays and path != LOCK}


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return RealDisk(tmp_path) if request.param == "real" else SimDisk(Random(1))


def test_everything_of_the_store_is_kept_and_nothing_else_is_moved(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    stopped_store(disk)
    before = contents(disk)
    found = set_aside(disk, "the log ends at 5")
    check(before, disk)
    kept = contents(disk, COPY)
    assert found == EarlierCopy(COPY, len(kept), sum(map(len, kept.values())))
    assert f"{len(kept)} files of the earlier copy, {found.size_bytes} bytes, are kept in quarantine/copy: the log ends at 5" in (
        caplog.text
    )
    store = open_store(disk)
    assert (store.end_offset, store.topics()) == (0, [])
    close(store)
    assert finish(disk) is None


def test_what_is_kept_is_a_store_that_opens(tmp_path: Path) -> None:
    disk = RealDisk(tmp_path)
    stopped_store(disk)
    set_aside(disk, "why")
    store = open_store(RealDisk(tmp_path / COPY))
    assert len(read_all(store, "orders", 0)) == 50
    close(store)


def test_a_second_copy_is_not_kept_and_nothing_is_moved(disk: Disk) -> None:
    stopped_store(disk)
    assert refusal(disk) is None
    set_aside(disk, "first")
    stopped_store(disk)
    before = contents(disk)
    with pytest.raises(StoreError, match="quarantine/copy in its directory holds an earlier copy: once nobody needs"):
        set_aside(disk, "second")
    assert contents(disk) == before
    close(open_store(disk))


def test_a_directory_in_use_is_not_moved(disk: Disk) -> None:
    stopped_store(disk)
    store = open_store(disk)
    with pytest.raises(StoreLocked):
        set_aside(disk, "why")
    close(store)
    disk.save(STARTING_OVER, b"why")
    lock = disk.lock(LOCK)
    with pytest.raises(StoreLocked):
        finish(disk)
    lock.release()


@pytest.mark.parametrize("kill", [False, True])
def test_a_kill_anywhere_leaves_a_directory_that_opens_as_before_or_not_at_all_until_it_is_finished(kill: bool) -> None:
    steps = 0
    while True:
        disk = Killed(Random(1), write_back=0.0)
        stopped_store(disk, kill=kill)
        disk.crash(power=False)
        before, disk.operations = contents(disk), steps
        try:
            set_aside(disk, "the log ends at 5")
        except Stopped:
            disk.crash(power=False)
            if disk.exists(STARTING_OVER):
                refused(disk)
                disk.operations = steps // 2
                try:
                    finish(disk)
                except Stopped:
                    disk.crash(power=False)
                    finish(disk)
                disk.operations = None
                check(before, disk)
            elif disk.exists(COPY):
                check(before, disk)
            else:
                assert contents(disk).keys() - {STARTING_OVER, LOCK} == before.keys() - {LOCK}
            close(open_store(disk))
            steps += 1
            continue
        break
    assert steps > 10
    check(before, disk)


def refused(disk: Disk) -> None:
    """Raise AssertionError unless nothing opens or cuts a store that is half moved."""
    with pytest.raises(StoreError, match="was to start over, and that is not finished: start `halfmoon broker` with --slave-of"):
        open_store(disk)
    with pytest.raises(StoreError, match="was to start over"):
        cut_log(disk, small(), 0)


def test_the_mark_is_the_first_and_the_last_and_names_are_on_the_device_before_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(Random(1))
    stopped_store(disk)
    done: list[tuple[str, str]] = []
    for name in ("save", "rename", "sync_directory", "remove"):
        real = getattr(disk, name)
        monkeypatch.setattr(
            disk, name, lambda path, *rest, real=real, name=name, **how: (done.append((name, path)), real(path, *rest, **how))
        )
    set_aside(disk, "why")
    moved = [path for name, path in done if name == "rename" and "/" not in path]
    assert done[0] == ("save", STARTING_OVER)
    assert done[-2:] == [("remove", STARTING_OVER), ("sync_directory", "")]
    last = max(place for place, (name, _) in enumerate(done) if name == "rename")
    assert done[last + 1 : -2] == [("sync_directory", path) for path in (COPY, QUARANTINE, "")]
    assert set(moved) >= {"commitlog", "consumequeue", "config", "checkpoint", "journal"}


def test_a_disk_that_fails_is_reported_and_the_next_start_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    stopped_store(disk)
    before = contents(disk)
    disk.full = True
    with pytest.raises(OSError, match="no space left"):
        set_aside(disk, "why")
    assert contents(disk) == before, "nothing has changed"
    assert LOCK not in disk.locks
    disk.full, disk.fail_syncs = False, 2  # the save of the mark fails
    with pytest.raises(OSError, match="input/output error"):
        set_aside(disk, "why")
    assert not disk.exists(STARTING_OVER)
    disk.fail_syncs = 0
    with caplog.at_level(logging.WARNING):
        set_aside(disk, "why")
    check(before, disk)


def test_a_move_that_failed_in_the_middle_goes_on_with_the_next_try(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped_store(disk)
    before, real, renames = contents(disk), disk.rename, list[str]()

    def rename(path: str, to: str) -> None:
        renames.append(path)
        if len(renames) == 3:
            raise OSError("input/output error")
        real(path, to)

    monkeypatch.setattr(disk, "rename", rename)
    with pytest.raises(OSError, match="input/output error"):
        set_aside(disk, "why")
    set_aside(disk, "why")
    check(before, disk)


def test_what_something_made_meanwhile_is_kept_beside_it(disk: Disk) -> None:
    stopped_store(disk)
    disk.save(STARTING_OVER, b"why")
    disk.rename("config", f"{COPY}/config")
    disk.save("config/epochs.json", b"made meanwhile")
    finish(disk)
    assert disk.read(f"{COPY}/config/epochs.json") == b"config/epochs.json"
    assert disk.read(f"{COPY}/config.1/epochs.json") == b"made meanwhile"


def test_the_bound_of_the_quarantine_does_not_meet_the_copy() -> None:
    disk = SimDisk(Random(1))
    stopped_store(disk)
    set_aside(disk, "why")
    kept, quarantine = contents(disk, COPY), Quarantine(disk)
    for number in range(KEPT_MAX + 3):
        disk.now_ms = number
        disk.create("commitlog/stray", 1)
        quarantine.file("commitlog/stray", "it is no file of the log")
    assert contents(disk, COPY) == kept
    assert len([name for name in disk.list(QUARANTINE) if not disk.is_directory(f"{QUARANTINE}/{name}")]) == KEPT_MAX


def test_every_name_that_is_moved_is_one_of_the_stores() -> None:
    assert QUARANTINE not in earlier_copy._MOVED
    assert LOCK not in earlier_copy._MOVED
