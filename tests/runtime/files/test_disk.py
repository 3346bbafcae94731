"""The real disk: the rules of every disk, sparse files, descriptors, locks between processes."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from halfmoon.runtime.files import disk as disk_module
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.filesystems import Kind
from tests.testing.disk_rules import DiskRules


class TestRealDisk(DiskRules):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> RealDisk:
        return RealDisk(tmp_path / "store")


def test_files_are_sparse_until_written(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.create("log", 1 << 30)
    assert os.stat(tmp_path / "log").st_blocks == 0
    file.write(0, b"x")
    assert os.stat(tmp_path / "log").st_blocks * 512 < 16 << 20


def test_no_descriptor_is_kept_for_small_writes(tmp_path: Path):
    disk = RealDisk(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    files = [disk.create(f"{number}", 4096) for number in range(50)]
    for file in files:
        file.write(0, b"x")
        file.sync()
    assert len(os.listdir("/proc/self/fd")) - before < 5 + 50  # mappings may keep one each


def test_a_lock_of_another_process_is_seen(tmp_path: Path):
    pid, (read_end, write_end) = None, os.pipe()
    pid = os.fork()
    if pid == 0:
        RealDisk(tmp_path).lock("lock")
        os.write(write_end, b"1")
        os.read(os.pipe()[0], 1)
    os.read(read_end, 1)
    try:
        with pytest.raises(Exception, match="locked by another process"):
            RealDisk(tmp_path).lock("lock")
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read_end)
        os.close(write_end)


def test_a_process_that_is_killed_loses_no_write(tmp_path: Path):
    pid = os.fork()
    if pid == 0:
        RealDisk(tmp_path).create("log", 4096).write(10, b"survives")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert bytes(RealDisk(tmp_path).open("log").view(10, 8)) == b"survives"


def test_a_save_that_fails_leaves_the_old_content(tmp_path: Path):
    disk = RealDisk(tmp_path)
    disk.save("table", b"old")
    (tmp_path / "table.tmp").mkdir()
    with pytest.raises(OSError):
        disk.save("table", b"new")
    assert disk.read("table") == b"old"


def test_modified_time_is_in_milliseconds(tmp_path: Path):
    disk = RealDisk(tmp_path)
    disk.create("log", 10)
    os.utime(tmp_path / "log", ns=(0, 1_700_000_000_123_000_000))
    assert disk.modified_ms("log") == 1_700_000_000_123


def test_the_first_room_of_a_queue_takes_little_space_and_no_descriptor(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.create("queue", 6_000_000)

    def descriptors() -> int:
        return sum(path.is_symlink() and os.readlink(path) == str(tmp_path / "queue") for path in Path("/proc/self/fd").iterdir())

    file.view(0, 1)
    file.write(0, bytes(16 * 1024))
    assert descriptors() == 0
    assert os.stat(tmp_path / "queue").st_blocks * 512 <= 32 * 1024
    for number in range(1, 40):  # a busy one keeps its descriptor
        file.write(number * 16 * 1024, bytes(16 * 1024))
    assert descriptors() == 1
    file.close()
    assert descriptors() == 0
    assert bytes(disk.open("queue").view(0, 640 * 1024)) == bytes(640 * 1024)


def test_what_the_device_has_otherwise_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = RealDisk(tmp_path)
    file = disk.create("log", 4 << 20)
    file.write(0, bytes(range(256)) * (4 << 12))
    file.sync()
    stored = bytearray(file.view(0, 4 << 20))
    stored[(2 << 20) + 70_000] ^= 1
    stored[5] ^= 1

    def preadv(_fd: int, buffers: list, at: int) -> int:
        buffers[0][:] = stored[at : at + len(buffers[0])]
        return len(buffers[0])

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(os, "O_DIRECT", 0)
    assert file.missing(3, 4_000_000) == [(3, 65_536), ((2 << 20) + 65_536, 65_536)]
    assert file.missing(6, 60_000) == []
    monkeypatch.setattr(os, "preadv", lambda _fd, _buffers, _at: 4096)
    assert file.missing(0, 65_536 + 10) == [(0, 65_536), (65_536, 10)]


def test_where_the_device_cannot_be_asked_all_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = RealDisk(tmp_path).create("log", 4 << 20)

    def refuse(*_arguments: object) -> int:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.missing(100, 5000) == [(100, 5000)]


def test_a_process_without_descriptors_still_syncs_what_it_wrote(tmp_path: Path):
    disk = RealDisk(tmp_path)
    file = disk.create("a/0", 4096)
    file.write(0, b"x" * 4096)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 4000), hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            taken.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(5000))
        assert taken
        for _ in range(3):
            file.sync()
            disk.sync_directory("a")
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_files_are_synced_by_one_call_and_each_by_itself_where_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    disk = RealDisk(tmp_path)
    lock = disk.lock("lock")
    files = [disk.create(f"consumequeue/t/{number}/0", 4096) for number in range(100)]
    for file in files:
        file.write(0, b"entry")
    calls: list[str] = []
    together = [True]
    monkeypatch.setattr(disk_module, "sync_file_system", lambda fd: calls.append("all") or together[0])
    kind = [Kind(keeps=True, reads_holes=True, tells=True)]
    monkeypatch.setattr(disk_module, "kind_of", lambda device: kind[0])
    single = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("one") or single(fd))

    disk.sync_all(files, ["consumequeue"])
    assert calls == ["all"]
    disk.sync_all(files[:3], ["consumequeue"])
    assert calls == ["all"] + ["one"] * 3
    together[0] = False
    disk.sync_all(files, ["consumequeue"])
    assert calls == ["all"] + ["one"] * 3 + ["all"] + ["one"] * 100
    together[0] = True
    calls.clear()
    kind[0] = Kind(keeps=True, reads_holes=True)  # such as overlay: a failed write would go unnoticed
    disk.sync_all(files, [])
    assert calls == ["one"] * 100
    kind[0] = Kind(keeps=True, reads_holes=True, tells=True)
    lock.release()
    calls.clear()
    disk.sync_all(files, [])
    assert calls == ["one"] * 100


def test_a_look_gives_what_was_written_and_where_that_ends(tmp_path: Path):
    file = RealDisk(tmp_path).create("a", 1 << 20)
    file.write(100, b"here")
    data, end = file.look(98, 1 << 20)
    assert data.startswith(b"\0\0here")
    assert end == file.data_end() == 98 + len(data)
    assert file.look(end + 4, 10) == (b"", end) if end < 1 << 20 else end == 1 << 20
    assert file.look(100, 4) == (b"here", end)
