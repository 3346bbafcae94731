"""`RealDisk`: the directory of a store on a real file system. The only place of Halfmoon that opens files of a store.

Files have a fixed size, are sparse until written, and are read through one shared mapping, which costs nothing. Those are bounded,
for the kernel allows so many and there may be more files: who was mapped first goes first, and is mapped again when it is read.
Writes are a ``pwrite``: it costs half of asking the mapping whether it takes them and copying (measured: 1.2 against 2.7 us for 20
bytes), and a third of the page faults of fresh pages (13 against 44 us for 19 KiB). That needs a descriptor, opened for the write;
a file keeps one when it is written often (`runtime.descriptors` bounds how many). Space is asked from the file system in steps of
whole pages *before* it is written to, so that a full disk is an `OSError` and never a signal; see `runtime.files.filesystems` for
those where that is not enough. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Sequence
from errno import EMFILE, ENFILE, ENXIO
from pathlib import Path
from struct import Struct
from threading import Lock

from halfmoon.errors import StoreLocked
from halfmoon.hot import put_numbers
from halfmoon.ports import Buffer, DiskUsage, File
from halfmoon.runtime.descriptors import allow_descriptors, refill_reserve, set_up_reserve, with_reserve, writing_max
from halfmoon.runtime.files.filesystems import PAGE_BYTES, Kind, kind_of, sync_file_system, whole_pages
from halfmoon.runtime.files.mapping import Mapping, mapped
from halfmoon.runtime.files.permissions import NO_LINKS, OWNER, Permissions, make_directory, open_new
from halfmoon.settings.private import is_private

_NUMBER = Struct(">i")
_STEP_MIN = 16 * 1024
"""The first step, doubled with each: most queues stay small."""
_ROOM_MIN, _ROOM_TIMES = 4 * 1024 * 1024, 16
"""Of a file system with less room, or less than so many times what is asked for, a file takes what is written and no more."""
_STEP_MAX = 32 * 1024 * 1024
_LARGE_BYTES = 4096
_NEAR_BYTES = 16 * 1024
"""Numbers that lie so near to each other are asked for at once, whether the file takes them."""
_DIRECT_BYTES, _COMPARED_BYTES = 1024 * 1024, 64 * 1024
_PWRITES_MAX = 2
"""Numbers, up to which writing each costs less than to ask the mapping whether it takes them."""
_HOLES_MAX = 1024 * 1024
"""Bytes of a view that the file system is asked for, where it may not have them."""
MAPPED_MAX = 8192
"""Files that are mapped at once: an eighth of what Linux allows a process by default (vm.max_map_count)."""
_NONE = -1
"""In place of a descriptor."""
_WRITES_OFTEN, _LARGE_WRITE = 16, 8
"""Writes after which a file is given a descriptor, and as how many of them a large one counts. What was taken from it must be
earned again: files that take turns, more than may keep one, cost an open each so many writes, and not each write."""

_TOGETHER_MIN = 64
"""Files and directories that are synced by one call: each by itself costs a write of the file system's journal."""

_writing = Lock()
_kept: dict[RealFile, None] = {}
"""Files that keep a descriptor, in the order in which they were given one; `writing_max` says how many may. Behind the lock, as a
number that another thread's file was given meanwhile must not be written to."""
_mapped: dict[RealFile, None] = {}
"""Files that are mapped, in the order in which they were. Behind the same lock."""


class _Opened:
    """Gives a descriptor, also when the process has no more but those kept for the store. Raises OSError, which names the file
    whatever is done with it.

    ``new`` is the mode of a file that is to be made. A start opens each file of a queue: `contextmanager` would take twice as long.
    """

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str | Path, flags: int, new: int | None = None) -> None:
        self._path = path
        self._fd = with_reserve(
            lambda: os.open(path, flags | NO_LINKS | os.O_CLOEXEC) if new is None else open_new(Path(path), flags, new)
        )

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        os.close(self._fd)
        refill_reserve()
        if isinstance(exc, OSError) and exc.filename is None and exc.errno is not None:
            raise OSError(exc.errno, os.strerror(exc.errno), str(self._path)) from None


class RealFile:
    """A file of fixed size, mapped when it is first read."""

    __slots__ = ("_fd", "_given_back", "_kind", "_mapping", "_reserved", "_root", "_writes", "path", "size")

    def __init__(self, path: str, root: str, size: int) -> None:
        self.path, self.size = path, size
        self._root = root
        self._mapping: Mapping | None = None
        self._reserved = 0
        """Bytes below have their blocks, in whole pages."""
        self._kind: Kind | None = None
        """None until it is opened for the first time."""
        self._fd = _NONE
        self._writes = 0
        """Since it last had a descriptor."""
        self._given_back = False

    @property
    def _full(self) -> str:
        return f"{self._root}/{self.path}"

    def write(self, at: int, data: Buffer) -> None:
        """Copy bytes in. Raises OSError when the file system has no room, IndexError beyond the file's end."""
        end = at + len(data)
        if end > self._reserved:
            self._reserve(end)
        with _writing:  # a pwrite that fails gives the system's reason, and no signal
            if self._fd < 0 and not self._open_fd(at, data):
                return
            try:
                written = os.pwrite(self._fd, data, at)
                while written < len(data):  # a signal may cut a write short
                    written += os.pwrite(self._fd, memoryview(data)[written:], at + written)
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, self._full) from None
            finally:
                if self not in _kept:
                    self._keep_or_close(len(data))

    def write_numbers(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Copy big-endian 32-bit numbers in, each at its own place. Raises as `write` does."""
        if not places:
            return
        start, end = min(places), max(places) + 4
        if end > self._reserved:
            self._reserve(end)
        if not (self._fd >= 0 and len(places) <= _PWRITES_MAX):
            mapping = self._mapping or self._open_map()
            if self._kind.keeps and self._takes(mapping, start, end):  # type: ignore[union-attr]  # it is opened
                put_numbers(mapping.view, places, numbers)
                return
        for place, number in zip(places, numbers):
            self.write(place, _NUMBER.pack(number))

    def _takes(self, mapping: Mapping, start: int, end: int) -> bool:
        """Whether numbers between two places may be written through the mapping. Raises OSError where that is known already."""
        if end - start <= _NEAR_BYTES:
            return mapping.may_write(start, end - start)
        with _Opened(self._full, os.O_RDWR):
            return True  # too many pages to ask for each; what may not be opened for writing takes none through the mapping either

    def _open_fd(self, at: int, data: Buffer) -> bool:
        """Open the file for a write, whose ``data`` is copied where there is no descriptor left, and False returned."""
        try:
            self._fd = with_reserve(lambda: os.open(self._full, os.O_RDWR | NO_LINKS | os.O_CLOEXEC))
        except OSError as exc:
            mapping = self._mapping
            if exc.errno not in (EMFILE, ENFILE) or mapping is None or not mapping.may_write(at, len(data)):
                raise
            mapping.view[at : at + len(data)] = data  # slower, and needs no descriptor
            return False
        return True

    def _keep_or_close(self, written_bytes: int) -> None:
        """Keep the descriptor of a file that is written often; that of the file that was given one first is closed for it."""
        self._writes += _LARGE_WRITE if written_bytes >= _LARGE_BYTES else 1
        if self._writes < _WRITES_OFTEN:
            os.close(self._fd)
            self._fd = _NONE
            return
        _kept[self] = None
        while len(_kept) > writing_max():
            next(iter(_kept))._close_fd()

    def _close_fd(self) -> None:
        _kept.pop(self, None)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._writes = _NONE, 0

    def view(self, at: int, size: int) -> memoryview:
        """Return bytes without copying; shorter at the file's end."""
        mapping = self._mapping or self._open_map()
        if at + size > self._reserved and not self._kind.reads_holes and at < self.size:  # type: ignore[union-attr]  # it is opened
            return self._view_of_holes(mapping.view, at, size)
        return mapping.view[at : at + size]

    def _view_of_holes(self, view: memoryview, at: int, size: int) -> memoryview:
        """Return bytes of which the file system may not have every block: it is asked for them; without room they are copied.

        Of what is larger, whoever looks reads what was written only (see `data_end`).
        """
        size = min(size, self.size - at)
        if size <= _HOLES_MAX:
            first = at // PAGE_BYTES * PAGE_BYTES
            with _Opened(self._full, os.O_RDWR) as fd:
                try:
                    if not _has_room(fd, size):
                        return memoryview(os.pread(fd, size, at))
                    os.posix_fallocate(fd, first, min(whole_pages(at + size), self.size) - first)
                except OSError:
                    return memoryview(os.pread(fd, size, at))
        return view[at : at + size]

    def peek(self, at: int, size: int) -> bytes:
        """Return a copy of bytes without mapping the file; shorter at its end."""
        if self._mapping is not None:
            return bytes(self.view(at, size))
        with _Opened(self._full, os.O_RDONLY) as fd:
            return os.pread(fd, min(size, self.size - at), at)

    def data_end(self) -> int:
        """Return an offset behind everything that was written; the file's size where the file system does not know of holes."""
        with _Opened(self._full, os.O_RDONLY) as fd:
            return _data_end(fd, self.size)

    def look(self, at: int, size: int) -> tuple[bytes, int]:
        """Return a copy of those bytes that were written, as far as is known, and `data_end`."""
        with _Opened(self._full, os.O_RDONLY) as fd:
            end = _data_end(fd, self.size)
            return os.pread(fd, max(0, min(size, end - at)), at), end

    def missing(self, at: int, size: int) -> list[tuple[int, int]]:
        """Spans, as (at, size), of which the device may not have what `view` shows.

        They are read past the page cache, which Linux writes out before; where the file system knows no such reads, all is missing.
        """
        spans: list[tuple[int, int]] = []
        fd = -1
        with mmap.mmap(-1, _DIRECT_BYTES) as buffer:  # such reads want aligned memory
            try:
                fd = os.open(self._full, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
                for begin in range(at - at % _DIRECT_BYTES, at + size, _DIRECT_BYTES):
                    last = min(at + size, begin + _DIRECT_BYTES)
                    there = begin + os.preadv(fd, [buffer], begin)
                    for first in range(max(at, begin), last, _COMPARED_BYTES):
                        end = min(first + _COMPARED_BYTES, last)
                        if there < end or buffer[first - begin : end - begin] != bytes(self.view(first, end - first)):
                            spans.append((first, end - first))
            except OSError:
                return [(at, size)]
            finally:
                if fd >= 0:
                    os.close(fd)
        return spans

    def sync(self) -> None:
        """Wait until everything written is on the device. A file that was given back, and removed since, needs no sync.

        The descriptor is opened anew: Linux reports an error of the write-back that nobody has seen yet to it as well.
        """
        try:
            with _Opened(self._full, os.O_RDWR) as fd:
                os.fdatasync(fd)
        except FileNotFoundError:
            if not self._given_back:  # somebody else took it away, and what was written with it
                raise

    def close(self) -> None:
        """Let go of the mapping; it lives on in views that are still held."""
        self._given_back = True
        self._reserved = 0
        with _writing:
            self._unmap()
            self._close_fd()

    def _open_map(self) -> Mapping:
        """Map the file; the one that was mapped first is let go for it."""
        with _Opened(self._full, os.O_RDWR) as fd:
            self._kind = kind_of(os.fstat(fd).st_dev)
            if not self._kind.reads_holes and (end := min(whole_pages(self.data_end()), self.size)) > self._reserved:
                self._ask_for(fd, self._reserved, end)
            mapping = self._mapping = mapped(fd, self.size, self._full)
        with _writing:
            _mapped[self] = None
            while len(_mapped) > MAPPED_MAX:
                next(iter(_mapped))._unmap()
        return mapping

    def _unmap(self) -> None:
        _mapped.pop(self, None)
        self._mapping = None

    def _ask_for(self, fd: int, start: int, end: int) -> None:
        """Have the file system give every block between two offsets. Raises OSError when it has no room."""
        os.posix_fallocate(fd, start, end - start)
        self._reserved = end

    def _reserve(self, end: int) -> None:
        if end > self.size:
            raise IndexError(f"{self.path}: a write up to {end} is beyond the end of the file at {self.size}")
        step = min(max(self._reserved, _STEP_MIN), _STEP_MAX)
        with _Opened(self._full, os.O_RDWR) as fd:
            self._kind = self._kind or kind_of(os.fstat(fd).st_dev)
            if not _has_room(fd, step):
                step = 0
            wanted = min(self.size, whole_pages(end + step))
            try:
                self._ask_for(fd, self._reserved, wanted)
            except OSError:
                if whole_pages(end) >= wanted:
                    raise
                self._ask_for(fd, self._reserved, min(self.size, whole_pages(end)))  # on a disk that is nearly full, what is needed


def _data_end(fd: int, size: int) -> int:
    end = 0
    try:
        while end < size:  # from one stretch of data to the next, over the hole between them
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as exc:
        if exc.errno != ENXIO:  # which says that nothing follows
            return size
    return min(end, size)


def _has_room(fd: int, size: int) -> bool:
    """Whether a file system has much more room than a size: the little that a start has on a full disk must do for all files."""
    facts = os.fstatvfs(fd)
    return facts.f_bavail * facts.f_frsize >= max(_ROOM_MIN, _ROOM_TIMES * size)


class RealLock:
    """The directory's lock file, held. ``directory_fd`` is the directory itself, open since then: errors of its file system that
    come later are told to who syncs through it.
    """

    def __init__(self, fd: int, directory_fd: int) -> None:
        self._fd, self.directory_fd = fd, directory_fd

    def release(self) -> None:
        """Let others in. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self.directory_fd)
            self._fd = self.directory_fd = _NONE


class RealDisk:
    """One directory tree of the file system; made when it is missing. ``permissions`` are those of what is made in it."""

    def __init__(self, root: str | os.PathLike[str], permissions: Permissions = OWNER) -> None:
        self.root = Path(root)
        self._text = str(self.root)
        self.permissions = permissions
        self._make_directory(self.root)
        self._locks: list[RealLock] = []
        allow_descriptors()
        set_up_reserve()

    def _full(self, path: str) -> str:
        return f"{self._text}/{path}"

    def create(self, path: str, size: int) -> RealFile:
        """Make a sparse file of zeros; an existing one is replaced (views of it stay valid)."""
        full = self.root / path
        self._make_directory(full.parent)
        full.unlink(missing_ok=True)
        with _Opened(full, os.O_RDWR, self.permissions.file) as fd:
            os.ftruncate(fd, size)
        return RealFile(path, self._text, size)

    def open(self, path: str) -> RealFile:
        """Open an existing file. Raises FileNotFoundError."""
        return RealFile(path, self._text, self.file_size(path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory."""
        return os.path.exists(self._full(path))

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when it is missing."""
        try:
            return sorted(with_reserve(lambda: os.listdir(self._full(path))))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def file_size(self, path: str) -> int:
        """Size of a file in bytes."""
        return os.stat(self._full(path)).st_size

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory."""
        return (self.root / path).is_dir()

    def rename(self, path: str, to: str) -> None:
        """Give a file another name; directories are made."""
        self._make_directory((self.root / to).parent)
        (self.root / path).rename(self.root / to)

    def resize(self, path: str, size: int) -> None:
        """Make a file longer; what is new are zeros."""
        os.truncate(self.root / path, size)

    def modified_ms(self, path: str) -> int:
        """When the file was last changed, milliseconds since the epoch."""
        return (self.root / path).stat().st_mtime_ns // 1_000_000

    def is_private(self, path: str) -> bool:
        """Whether nobody but its owner may use a file."""
        return is_private((self.root / path).stat().st_mode)

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory; missing is no error."""
        full = self.root / path
        try:
            full.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            if not full.is_dir():
                raise
            full.rmdir()

    def read(self, path: str) -> bytes | None:
        """Whole content of a small file, or None when it is missing."""
        try:
            return with_reserve((self.root / path).read_bytes)
        except FileNotFoundError:
            return None

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        """Replace a small file atomically and durably; the old one is kept as ``.bak`` (a hard link, so it is never half there)."""
        full = self.root / path
        self._make_directory(full.parent)
        fresh = full.with_name(full.name + ".tmp")
        fresh.unlink(missing_ok=True)  # of a process that was killed while it saved
        with _Opened(fresh, os.O_WRONLY, OWNER.file if private else self.permissions.file) as fd:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        if keep_previous and full.exists():
            link = full.with_name(full.name + ".bak.tmp")
            link.unlink(missing_ok=True)
            os.link(full, link)
            os.replace(link, full.with_name(full.name + ".bak"))
        os.replace(fresh, full)  # after the fsync: else a crash could leave the name on an empty file
        self._sync_directory(full.parent)

    def sync_directory(self, path: str) -> None:
        """Make names made in or removed from a directory durable, and the directory's own name too."""
        full = self.root / path
        if full.is_dir():
            self._sync_directory(full)
        if path:
            self._sync_directory(full.parent)

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Sync files and directories; many of them by one call for the whole file system, where that tells of every error."""
        if len(files) + len(directories) >= _TOGETHER_MIN and self._sync_file_system(files, directories):
            return
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def _sync_file_system(self, files: Sequence[File], directories: Sequence[str]) -> bool:
        """Sync all that is dirty; False: it failed, perhaps for a file of somebody else, or may not tell."""
        fd = self._locks[-1].directory_fd if self._locks else _NONE
        if fd < 0:
            return False
        device = os.fstat(fd).st_dev
        tops = {path.partition("/")[0] for path in (*(file.path for file in files), *directories)}
        if not kind_of(device).tells or any((self.root / top).stat().st_dev != device for top in tops):
            return False
        return sync_file_system(fd)

    def _make_directory(self, full: Path) -> None:
        make_directory(full, self.permissions.directory)

    @staticmethod
    def _sync_directory(full: Path) -> None:
        if not full.is_dir():
            return
        with _Opened(full, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)

    def usage(self) -> DiskUsage:
        """Space of the file system, as ``df`` counts it for ordinary users."""
        facts = os.statvfs(self.root)
        used = facts.f_blocks - facts.f_bfree
        return DiskUsage((used + facts.f_bavail) * facts.f_frsize, facts.f_bavail * facts.f_frsize)

    def lock(self, path: str) -> RealLock:
        """Take the lock file exclusively and write ``lock`` into it.

        Two locks are taken, ``flock`` and the record lock on byte 0 that a Java process takes, so that each keeps the other out.
        """
        full = self.root / path
        self._make_directory(full.parent)
        try:
            fd = open_new(full, os.O_RDWR, self.permissions.file)
        except FileExistsError:
            fd = os.open(full, os.O_RDWR | NO_LINKS | os.O_CLOEXEC)  # never removed: another process could lock the removed one
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            os.close(fd)
            raise StoreLocked(f"{full} is locked by another process: is a broker running on {self.root}?") from None
        if os.pread(fd, 8, 0) != b"lock":
            os.pwrite(fd, b"lock", 0)
        self._locks.append(RealLock(fd, os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
        return self._locks[-1]

    def abandon(self) -> None:
        """Let others in, as the system does for a process that is gone."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def boot_id(self) -> str | None:
        """The kernel's random id of this boot; None where there is none."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
        except OSError:
            return None
