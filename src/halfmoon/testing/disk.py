"""`SimDisk`: a disk in memory that forgets. The same ports as `runtime.files.disk`, with faults drawn from a seeded `Random`.

What a real machine may do, it may do: keep any subset of the pages that were not synced, each in any version that was ever
written back; keep or lose names made or removed since their directory was synced; fail a sync and drop the pages; be full; have no
descriptor left; stop in the middle of a copy. Never touches a real file.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from random import Random
from typing import Any

from halfmoon.errors import StoreLocked
from halfmoon.ports import Buffer, DiskUsage, File
from halfmoon.store.layout import LOCK, RESTORED

PAGE_BYTES = 4096

LAZY_BYTES = 1024 * 1024
"""Files from this size on take memory only for the pages that were written: many of them may be there at one time."""


class Stopped(BaseException):
    """The process was stopped in the middle of a write. Not an `Exception`: nothing in the process may go on."""


def zeros(size: int) -> Any:
    """Return memory of zeros: a bytearray, or what can be used as one."""
    return bytearray(size) if size < LAZY_BYTES else mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class SimFile:
    """A file of fixed size: what the page cache holds, what the device holds, and which pages differ."""

    def __init__(
        self, disk: SimDisk, path: str, data: bytearray, durable: bytearray, dirty: set[int], *, empty: bool = False
    ) -> None:
        self.path, self.size = path, len(data)
        self.data, self.durable, self.dirty = data, durable, dirty
        self.modified_ms = disk.now_ms
        self.given_back = False
        self._disk = disk
        pages = () if empty else range(0, len(data), PAGE_BYTES)
        self._touched = {at // PAGE_BYTES for at in pages if self.has_bytes(at // PAGE_BYTES)}
        self._boot = disk.boots

    def write(self, at: int, data: Buffer) -> None:
        """Copy bytes in; they survive the process at once and a power loss after `sync`."""
        disk, end = self._disk, at + len(data)
        disk.check_alive(self._boot)
        if at < 0 or end > self.size:
            raise IndexError(f"{self.path}: a write of {at} to {end} is outside of a file of {self.size} bytes")
        pages = range(at // PAGE_BYTES, -(-end // PAGE_BYTES))
        if not self._touched.issuperset(pages):
            if disk.full:
                raise OSError(errno.ENOSPC, "no space left on device", self.path)
            disk.open_one(self.path)  # space is asked for through a descriptor
        torn = disk.count_write(self.path)
        taken = disk.random.randrange(len(data) + 1) if torn else len(data)
        if len(data) == 4 and at % 4 == 0:  # the processor stores an aligned number whole or not at all
            taken = taken // 4 * 4
        self.data[at : at + taken] = data[:taken]
        self.dirty.update(pages)
        self._touched.update(pages)
        self.modified_ms = disk.now_ms
        if disk.write_back and disk.random.random() < disk.write_back:
            self._write_back(disk.random.choice(sorted(self.dirty)))
        if torn:
            raise Stopped(self.path)

    def write_numbers(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Copy numbers in, each a write of its own."""
        for place, number in zip(places, numbers):
            self.write(int(place), int(number).to_bytes(4, "big", signed=True))

    def has_bytes(self, page: int) -> bool:
        """Whether a page is not all zeros."""
        return bool(self.data[page * PAGE_BYTES : (page + 1) * PAGE_BYTES].strip(b"\0"))

    def view(self, at: int, size: int) -> memoryview:
        """Return bytes without copying."""
        return memoryview(self.data)[at : at + size]

    def prefetch(self, at: int, size: int) -> None:
        """Do nothing: everything is in memory."""

    def peek(self, at: int, size: int) -> bytes:
        """Return a copy of bytes."""
        return bytes(self.data[at : at + size])

    def data_end(self) -> int:
        """Return an offset behind every page that was written."""
        return min(self.size, (max(self._touched, default=-1) + 1) * PAGE_BYTES)

    def look(self, at: int, size: int) -> tuple[bytes, int]:
        """Return a copy of those bytes that lie in pages up to the last that was written, and where that ends."""
        end = self.data_end()
        return self.peek(at, max(0, min(size, end - at))), end

    def missing(self, at: int, size: int) -> list[tuple[int, int]]:
        """Spans of which the device does not have the same bytes, a page each."""
        ends = [*range(at - at % PAGE_BYTES + PAGE_BYTES, at + size, PAGE_BYTES), at + size]
        spans = zip([at, *ends], ends)
        return [(begin, end - begin) for begin, end in spans if self.durable[begin:end] != self.data[begin:end]]

    def sync(self) -> None:
        """Move what was written to the device, or fail and forget that it was not."""
        self._disk.check_alive(self._boot)
        if not self.given_back and not self._disk.exists(self.path):
            raise FileNotFoundError(errno.ENOENT, "no such file", self.path)
        self._disk.open_one(self.path)
        self._disk.syncs += 1
        if self._disk.fail_syncs:
            self._disk.fail_syncs -= 1
            self.dirty.clear()
            raise OSError(errno.EIO, "input/output error", self.path)
        for page in self.dirty:
            self._write_back(page)
        self.dirty.clear()

    def close(self) -> None:
        """Allow it to be removed."""
        self.given_back = True

    def fill(self) -> None:
        """Give every page its place on the device: a full disk refuses no write to it."""
        self._touched.update(range(-(-self.size // PAGE_BYTES)))

    def _write_back(self, page: int) -> None:
        at = page * PAGE_BYTES
        self.durable[at : at + PAGE_BYTES] = self.data[at : at + PAGE_BYTES]

    def copy(self, data: Any) -> Any:
        """Return a copy of what the page cache or the device holds of this file."""
        if self.size < LAZY_BYTES:
            return bytearray(data)
        copied = zeros(self.size)
        for at in (page * PAGE_BYTES for page in self._touched):
            copied[at : at + PAGE_BYTES] = data[at : at + PAGE_BYTES]
        return copied

    def after_kill(self, path: str) -> SimFile:
        """Return the file as the next process finds it, at a path."""
        fresh = SimFile(self._disk, path, self.copy(self.data), self.copy(self.durable), set(self.dirty), empty=True)
        fresh.modified_ms, fresh._touched = self.modified_ms, set(self._touched)
        return fresh

    def after_power_loss(self, path: str) -> SimFile:
        """Return the file as a machine finds it that lost power: unsynced pages are there or not."""
        data = self.copy(self.durable)
        for page in sorted(self.dirty):
            if self._disk.random.random() < 0.5:
                at = page * PAGE_BYTES
                data[at : at + PAGE_BYTES] = self.data[at : at + PAGE_BYTES]
        fresh = SimFile(self._disk, path, data, self.copy(data), set(), empty=True)
        fresh.modified_ms = self.modified_ms
        fresh._touched = {page for page in self._touched if page not in self.dirty or fresh.has_bytes(page)}
        return fresh


class SimLock:
    """The lock of the directory, held by a process of the simulation."""

    def __init__(self, disk: SimDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        """Let others in."""
        if self._disk.locks.get(self._path) is self:
            del self._disk.locks[self._path]


class SimDisk:
    """One directory tree in memory.

    ``write_back`` is the probability that a write is followed by the kernel writing some page back by itself. Set ``full``,
    ``descriptors``, ``fail_syncs``, ``stop_after_writes``, ``used_bytes`` and ``now_ms`` as a test needs them.
    """

    def __init__(self, random: Random, *, write_back: float = 0.05, total_bytes: int = 1 << 40) -> None:
        self.random, self.write_back = random, write_back
        self.total_bytes, self.used_bytes = total_bytes, 0
        self.full = False
        self.descriptors: int | None = None
        """How often a file may be opened from now on, before the process has no descriptor left; None: as often as it likes."""
        self.unwritable: str | None = None
        """How paths begin that may not be saved: the permissions of their directory are gone."""
        self.fail_syncs = 0
        self.stop_after_writes: int | None = None
        """The write after that many copies a part of its bytes and raises `Stopped`."""
        self.stop_behind: tuple[str, int] | None = None
        """How a path begins, and a number: the next write to such a path is not stopped, the write after that many more is;
        a number below 0 stops the write itself. It happens once."""
        self.now_ms = 0
        self.syncs = self.boots = self.machine_boots = 0
        self.locks: dict[str, SimLock] = {}
        self._files: dict[str, SimFile] = {}
        self._directories: set[str] = set()
        self._durable_names: dict[str, SimFile] = {}

    # ------------------------------------------------------------ faults

    def crash(self, *, power: bool) -> None:
        """Stop the process (``power=False``: every write survives) or the machine (``power=True``: unsynced writes may not)."""
        self.boots += 1
        self.stop_after_writes = self.stop_behind = None
        self.locks.clear()
        names = dict(self._files)
        if power:
            self.machine_boots += 1
            for path in sorted(self._files.keys() | self._durable_names.keys()):
                now, before = self._files.get(path), self._durable_names.get(path)
                if now is not before and self.random.random() < 0.5:
                    names.pop(path, None)
                    if before is not None:
                        names[path] = before
        self._files = {}
        durable_names: dict[str, SimFile] = {}
        for path, file in names.items():
            self._files[path] = file.after_power_loss(path) if power else file.after_kill(path)
            self._make_directories(path)
            if power or self._durable_names.get(path) is file:
                durable_names[path] = self._files[path]
        if not power:  # names that were removed but not durably stay in the device's view
            for path, file in self._durable_names.items():
                if path not in durable_names and self._files.get(path) is None:
                    durable_names[path] = file
        self._durable_names = durable_names

    def backup(self) -> SimDisk:
        """Return a disk that holds what a backup of this one would, while no process runs on it."""
        other = SimDisk(self.random, write_back=self.write_back, total_bytes=self.total_bytes)
        other.now_ms, other.boots, other.machine_boots = self.now_ms, self.boots, self.machine_boots
        for path, file in self._files.items():
            if path != LOCK:
                other._files[path] = SimFile(other, path, bytearray(file.data), bytearray(file.data), set())
        other._durable_names, other._directories = dict(other._files), set(self._directories)
        other.save(RESTORED, b"1", keep_previous=False)
        other.sync_directory("")
        other.crash(power=False)  # the files are opened by another process
        return other

    def vanish(self, start: str) -> int:
        """Let every file whose path begins so be gone, as if somebody removed it while nobody ran; return how many that were."""
        gone = [path for path in self._files if path.startswith(start)]
        for path in gone:
            del self._files[path]
            self._durable_names.pop(path, None)
        return len(gone)

    def paths(self) -> list[str]:
        """Return every file there is, sorted."""
        return sorted(self._files)

    def flip(self, path: str) -> int:
        """Turn one bit of a file over, in a byte that is not 0 where there is one, on the device as well; return where."""
        file = self._files[path]
        at = self.random.choice([place for place, byte in enumerate(file.data) if byte] or [0])
        file.data[at] ^= 1 << self.random.randrange(8)
        file.durable[at] = file.data[at]
        return at

    def overwrite(self, path: str, data: Buffer) -> None:
        """Let a file hold these bytes and no others, on the device as well, as if somebody wrote them while nobody ran."""
        file = self._files[path]
        fresh = SimFile(self, path, bytearray(data), bytearray(data), set())
        fresh.modified_ms = file.modified_ms
        self._files[path] = fresh
        if path in self._durable_names:
            self._durable_names[path] = fresh

    def _make_directories(self, path: str) -> None:
        while path := path.rpartition("/")[0]:
            self._directories.add(path)

    def check_alive(self, boot: int) -> None:
        """Raise when a file of a process that is gone is used."""
        assert boot == self.boots, "a file is used by a process that was stopped"

    def open_one(self, path: str) -> None:
        """Take a descriptor. Raises OSError when there is none: nothing was done then."""
        if self.descriptors is not None:
            if self.descriptors <= 0:
                raise OSError(errno.EMFILE, "too many open files", path)
            self.descriptors -= 1

    def count_write(self, path: str) -> bool:
        """Count a write to a file; return whether the process stops in it."""
        if self.stop_behind is not None and path.startswith(self.stop_behind[0]):
            self.stop_after_writes, self.stop_behind = self.stop_behind[1] + 1, None
        if self.stop_after_writes is None:
            return False
        self.stop_after_writes -= 1
        return self.stop_after_writes < 0

    # ------------------------------------------------------------ the port

    def create(self, path: str, size: int) -> SimFile:
        """Make a file of zeros; an existing one is replaced."""
        self.open_one(path)
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        self._files[path] = file = SimFile(self, path, zeros(size), zeros(size), set(), empty=True)
        self._make_directories(path)
        return file

    def open(self, path: str) -> SimFile:
        """Open an existing file. Raises FileNotFoundError."""
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return path in self._files or path in self._directories

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        start = path + "/" if path else ""
        names = self._files.keys() | self._directories
        return sorted({name[len(start) :].partition("/")[0] for name in names if name.startswith(start)})

    def file_size(self, path: str) -> int:
        """Size of a file in bytes."""
        return self.open(path).size

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""
        return path in self._directories

    def rename(self, path: str, to: str) -> None:
        """Give a file or a directory another name; neither the new nor the loss of the old is durable yet."""
        if path in self._directories:
            for name in [name for name in self._files if name.startswith(f"{path}/")]:
                self.rename(name, to + name[len(path) :])
            self._directories -= {name for name in self._directories if f"{name}/".startswith(f"{path}/")}
            self._make_directories(f"{to}/")
            return
        file = self._files[to] = self._files.pop(path)
        file.path = to
        self._make_directories(to)

    def resize(self, path: str, size: int) -> None:
        """Make a file longer."""
        file = self.open(path)
        more = bytes(size - file.size)
        file.data, file.durable, file.size = bytearray(file.data) + more, bytearray(file.durable) + more, size

    def modified_ms(self, path: str) -> int:
        """When the file was last changed."""
        return self.open(path).modified_ms

    def is_private(self, path: str) -> bool:
        """Whether nobody else may read a file; always so."""
        return self.open(path).path == path

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory; missing is no error."""
        if path in self._directories:
            if self.list(path):
                raise OSError(errno.ENOTEMPTY, "directory not empty", path)
            self._directories.remove(path)
        self._files.pop(path, None)

    def read(self, path: str) -> bytes | None:
        """Whole content of a small file, or None."""
        return bytes(self._files[path].data) if path in self._files else None

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        """Replace a small file atomically and durably."""
        if self.unwritable is not None and path.startswith(self.unwritable):
            raise PermissionError(errno.EACCES, "permission denied", path)
        self.open_one(path)
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        self.syncs += 1
        if self.fail_syncs:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "input/output error", path)
        if self.count_write(path):
            raise Stopped(path)
        previous = self._files.get(path)
        if keep_previous and previous is not None:
            self._files[path + ".bak"] = self._durable_names[path + ".bak"] = SimFile(
                self, path + ".bak", bytearray(previous.data), bytearray(previous.data), set()
            )
        self._files[path] = self._durable_names[path] = SimFile(self, path, bytearray(data), bytearray(data), set())
        self._files[path].fill()
        self._make_directories(path)

    def sync_directory(self, path: str) -> None:
        """Make names made in or removed from a directory durable, and the directory's own name."""
        self.open_one(path)
        self.syncs += 1
        if self.fail_syncs:
            self.fail_syncs -= 1
            raise OSError(errno.EIO, "input/output error", path)
        for name in sorted(self._files.keys() | self._durable_names.keys()):
            if name.rpartition("/")[0] == path:
                if name in self._files:
                    self._durable_names[name] = self._files[name]
                else:
                    self._durable_names.pop(name, None)

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Sync one after another."""
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def usage(self) -> DiskUsage:
        """Space as the test says."""
        return DiskUsage(self.total_bytes, self.total_bytes - self.used_bytes)

    def lock(self, path: str) -> SimLock:
        """Take the lock. Raises StoreLocked."""
        if path in self.locks:
            raise StoreLocked(f"{path} is locked by another process")
        if path not in self._files:
            self._files[path] = SimFile(self, path, bytearray(b"lock"), bytearray(b"lock"), set())
        lock = self.locks[path] = SimLock(self, path)
        return lock

    def boot_id(self) -> str | None:
        """Return an id that changes when the machine restarts."""
        return f"boot-{self.machine_boots}"
