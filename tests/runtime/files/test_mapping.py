"""Files as memory: no descriptor is kept, and the memory is there for as long as anybody looks at it."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen, run

import pytest

from halfmoon.runtime.files import disk as disk_module
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.mapping import mapped
from tests.waiting import until


def descriptors(root: Path) -> int:
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(link.startswith(str(root)) for link in links)


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def writing_max() -> int:
    """How many files may keep a descriptor here, and not 512."""
    return 64


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealDisk:
    monkeypatch.setattr(disk_module, "writing_max", writing_max)
    return RealDisk(tmp_path)


def test_files_of_a_store_that_are_read_and_seldom_written_keep_no_descriptor(disk: RealDisk, tmp_path: Path):
    files = [disk.create(f"queue{number}", 6_000_000) for number in range(3 * writing_max())]
    for at in range(5):
        for file in files:
            file.write(at * 5, b"entry")
    for file in files:
        file.write(100_000, bytes(5_000))
        assert bytes(file.view(20, 5)) == b"entry"
    assert descriptors(tmp_path) == 0


@pytest.mark.parametrize("size", [20, 5_000])
def test_files_written_often_keep_one_up_to_a_bound_and_all_of_them_take_more(disk: RealDisk, tmp_path: Path, size: int):
    files = [disk.create(f"log{number}", 40 * size) for number in range(2 * writing_max())]
    for at in range(0, 40 * size, size):
        for number, file in enumerate(files):
            file.write(at, number.to_bytes(4, "big") * (size // 4))
    assert 0 < descriptors(tmp_path) <= writing_max()
    assert all(bytes(file.view(0, 40 * size)) == number.to_bytes(4, "big") * (10 * size) for number, file in enumerate(files))
    for file in files:
        file.close()
    assert descriptors(tmp_path) == 0


def test_files_that_take_turns_are_not_opened_for_each_write_though_more_than_may_keep_a_descriptor(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
):
    files = [disk.create(f"queue{number}", 100_000) for number in range(writing_max() + 20)]
    for file in files:
        file.write(0, b"entry")
    opened = []
    system = os.open
    monkeypatch.setattr(os, "open", lambda *arguments: opened.append(arguments) or system(*arguments))
    for at in range(100):
        for file in files:
            file.write(at * 20, b"entry")
    assert len(opened) < len(files) * 100 / 2


def test_files_that_are_written_are_not_mapped_and_of_those_that_are_read_so_many_at_once(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk_module, "MAPPED_MAX", 10)
    files = [disk.create(f"queue{number}", 100_000) for number in range(30)]
    for number, file in enumerate(files):
        file.write(20, b"entry%d" % number)
    assert maps_of(tmp_path) == 0
    held = files[0].view(20, 6)
    for _ in range(2):
        assert [bytes(file.view(20, 7)).rstrip(b"\0") for file in files] == [b"entry%d" % number for number in range(30)]
    gc.collect()
    assert maps_of(tmp_path) <= 11
    assert bytes(held) == b"entry0"


def test_the_memory_stays_while_anybody_looks_and_no_longer(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(b"abc" * 10_000)
    fd = os.open(path, os.O_RDWR)
    view = mapped(fd, 30_000, str(path)).view
    os.close(fd)
    part = view[3:6]
    del view
    gc.collect()
    assert bytes(part) == b"abc"
    assert maps_of(path) == 1
    del part
    assert maps_of(path) == 0


def test_what_cannot_be_mapped_is_an_error_that_names_the_file(tmp_path: Path):
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match=r"\[Errno \d+\] .*: 'here'"):
            mapped(fd, 4096, "here")
    finally:
        os.close(fd)
    assert bytes(mapped(-1, 0, "an empty file").view) == b""


def test_a_file_that_somebody_cut_short_is_an_error_and_no_signal(disk: RealDisk, tmp_path: Path):
    file = disk.create("log", 100_000)
    os.truncate(tmp_path / "log", 10)
    with pytest.raises(OSError, match=r"cut to 10 bytes of 100000: '.*/log'"):
        file.view(0, 20)


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Callable[[Path], None]]:
    """Gives what makes a file immutable: the kernel refuses writes to it then, as to all of a file system that became read-only."""
    done: list[Path] = []

    def freeze(path: Path) -> None:
        if run(["chattr", "+i", path], capture_output=True).returncode:
            pytest.skip("no file can be made immutable here")
        done.append(path)

    yield freeze
    for path in done:
        run(["chattr", "-i", path], check=True)


def test_a_file_that_takes_no_writes_any_more_is_an_error_and_no_signal(tmp_path: Path, frozen: Callable[[Path], None]):
    """In a process of its own, which a signal would end."""
    program = """
import sys
from halfmoon.runtime.files.disk import RealDisk
file = RealDisk(sys.argv[1]).create("queue", 100_000)
for at in range(0, 20_000, 4_000):
    file.write(at, b"entry")
file.write_numbers([40, 44], [1, 2])
file.sync()
print("written", flush=True)
input()
writes = lambda: file.write(8_100, b"more"), lambda: file.write(50, b"x" * 6_000), lambda: file.write_numbers([40, 44], [3, 4])
for write in writes:
    try:
        write()
    except PermissionError as exc:
        print(exc.filename)
input()
file.write(8_100, b"more")
file.write_numbers([40], [3])
print(bytes(file.view(8_100, 4)), bytes(file.view(40, 8)).hex(), file.view(50, 1)[0])
"""
    path = tmp_path / "queue"
    with Popen([sys.executable, "-c", program, tmp_path], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        frozen(path)
        print(file=process.stdin, flush=True)
        assert [process.stdout.readline() for _ in range(3)] == [f"{path}\n"] * 3
        run(["chattr", "-i", path], check=True)
        print(file=process.stdin, flush=True)
        assert process.stdout.read() == "b'more' 0000000300000002 0\n"
    assert process.returncode == 0


def test_bytes_that_will_be_viewed_are_read_from_the_disk_beforehand(disk: RealDisk, tmp_path: Path):
    file = disk.create("log", 1 << 20)
    file.write(0, bytes(range(256)) * 4096)
    page = 655_360
    fd, address = os.open(tmp_path / "log", os.O_RDONLY), ctypes.addressof(ctypes.c_char.from_buffer(file.view(page, 1)))

    def is_in_memory() -> bool:
        found = ctypes.c_ubyte()
        assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(1), ctypes.byref(found)) == 0
        return bool(found.value & 1)

    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if is_in_memory():
            pytest.skip("this file system keeps everything in memory")
        file.prefetch(page - 50_000, 100_000)
        until(is_in_memory, "the system to read", within_s=10)
    finally:
        os.close(fd)
