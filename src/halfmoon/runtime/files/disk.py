"""`RealDisk`: the directory of a store on a real file system. The only place of Halfmoon that opens files of a store.

Files have a fixed size, are sparse until written, and are read through one shared mapping. The number of mappings is bounded, as
the kernel limits them: the oldest mapping is closed first, and opened again on the next read. Writes use ``pwrite``, which costs
half of checking and writing the mapping (measured: 1.2 against 2.7 us for 20 bytes) and a third of the page faults of fresh pages
(13 against 44 us for 19 KiB). It needs a descriptor, opened for the write; a file that is written often keeps its descriptor
(`runtime.descriptors` bounds their number). Space is allocated in whole pages *before* it is written, so that a full disk is an
`OSError` and never a signal; `runtime.files.filesystems` covers file systems where that is not enough. Knows nothing of contents.
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
"""First allocation step, doubled with each further one: most queues stay small."""
_ROOM_MIN, _ROOM_TIMES = 4 * 1024 * 1024, 16
"""Free bytes, and multiple of the requested bytes, below which a file allocates no more than it writes."""
_STEP_MAX = 32 * 1024 * 1024
_LARGE_BYTES = 4096
_NEAR_BYTES = 16 * 1024
"""Largest distance of numbers that are checked by one call."""
_DIRECT_BYTES, _COMPARED_BYTES = 1024 * 1024, 64 * 1024
_PWRITES_MAX = 2
"""Count of numbers up to which single writes cost less than checking the mapping."""
_HOLES_MAX = 1024 * 1024
"""Longest view whose holes are allocated before it is returned, bytes."""
MAPPED_MAX = 8192
"""Bound of mapped files: an eighth of the default Linux limit (vm.max_map_count)."""
_NONE = -1
"""Value in place of a descriptor."""
_WRITES_OFTEN, _LARGE_WRITE = 16, 8
"""Writes after which a file keeps a descriptor, and the weight of a large write.

A file that lost its descriptor starts to count again, so that many files in turn do not open one with each write."""

_TOGETHER_MIN = 64
"""Number of files and directories from which one sync of the file system replaces single syncs, each a journal write."""

_writing = Lock()
_kept: dict[RealFile, None] = {}
"""Files that keep a descriptor, oldest first; bounded by `writing_max`.

Guarded by the lock: a descriptor closed here may be reused for another thread's file."""
_mapped: dict[RealFile, None] = {}
"""Mapped files, oldest first. Guarded by the same lock."""


class _Opened:
    """Context of an open descriptor, taken from the store's reserve if the process has no other. OSError names the file.

    ``new`` is the mode of a new file. A class, as `contextmanager` takes twice as long and a start opens each file of a queue.
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
    """File of fixed size, mapped on first read."""

    __slots__ = ("_fd", "_given_back", "_kind", "_mapping", "_reserved", "_root", "_writes", "path", "size")

    def __init__(self, path: str, root: str, size: int) -> None:
        self.path, self.size = path, size
        self._root = root
        self._mapping: Mapping | None = None
        self._reserved = 0
        """End of the allocated bytes, in whole pages."""
        self._kind: Kind | None = None
        """Kind of the file system; None until the file is first opened."""
        self._fd = _NONE
        self._writes = 0
        """Writes since it last had a descriptor."""
        self._given_back = False

    @property
    def _full(self) -> str:
        return f"{self._root}/{self.path}"

    def write(self, at: int, data: Buffer) -> None:
        """Write bytes. Raises OSError if the file system is full, IndexError beyond the file's end."""
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
        """Write big-endian 32-bit numbers, each at its own offset. Raises as `write` does."""
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
        """Return whether numbers may be written through the mapping. Raises OSError if the file is known not to be writable."""
        if end - start <= _NEAR_BYTES:
            return mapping.may_write(start, end - start)
        with _Opened(self._full, os.O_RDWR):
            return True  # too many pages to ask for each; what may not be opened for writing takes none through the mapping either

    def _open_fd(self, at: int, data: Buffer) -> bool:
        """Open the file for a write; without a free descriptor, write ``data`` through the mapping and return False."""
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
        """Keep the descriptor of a file that is written often, and close the oldest one in its place."""
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
        """Return bytes that may contain holes: allocate the holes, or copy the bytes if the file system is full.

        Larger views are returned as they are; their readers stay below `data_end`.
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

    def prefetch(self, at: int, size: int) -> None:
        """Have bytes of the mapping read into memory, while others go on."""
        if self._mapping is not None:
            self._mapping.will_need(at, min(size, self.size - at))

    def data_end(self) -> int:
        """Return an offset after all written bytes; the file's size if the file system does not report holes."""
        with _Opened(self._full, os.O_RDONLY) as fd:
            return _data_end(fd, self.size)

    def look(self, at: int, size: int) -> tuple[bytes, int]:
        """Return a copy of the written bytes, and `data_end`."""
        with _Opened(self._full, os.O_RDONLY) as fd:
            end = _data_end(fd, self.size)
            return os.pread(fd, max(0, min(size, end - at)), at), end

    def missing(self, at: int, size: int) -> list[tuple[int, int]]:
        """Return the spans (at, size) whose content on the device may differ from `view`.

        Reads bypass the page cache, which Linux writes out before; without such reads, everything counts as missing.
        """
        spans: list[tuple[int, int]] = []
        fd = -1
        with mmap.mmap(-1, _DIRECT_BYTES) as buffer:  # direct reads need aligned memory
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
        """Wait until everything written is on the device. A closed file that was removed since needs no sync.

        Opens a new descriptor: Linux reports unseen write-back errors to it as well.
        """
        try:
            with _Opened(self._full, os.O_RDWR) as fd:
                os.fdatasync(fd)
        except FileNotFoundError:
            if not self._given_back:  # another process removed the file and its content
                raise

    def close(self) -> None:
        """Close the mapping; existing views keep it alive."""
        self._given_back = True
        self._reserved = 0
        with _writing:
            self._unmap()
            self._close_fd()

    def _open_map(self) -> Mapping:
        """Map the file, and unmap the oldest one in its place."""
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
        """Allocate all blocks between two offsets. Raises OSError if the file system is full."""
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
                self._ask_for(fd, self._reserved, min(self.size, whole_pages(end)))  # on a nearly full disk, only the needed bytes


def _data_end(fd: int, size: int) -> int:
    end = 0
    try:
        while end < size:  # from one stretch of data to the next, over the hole between them
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as exc:
        if exc.errno != ENXIO:  # no data follows
            return size
    return min(end, size)


def _has_room(fd: int, size: int) -> bool:
    """Return whether a file system has much more room than a size: on a nearly full disk, all files share the rest."""
    facts = os.fstatvfs(fd)
    return facts.f_bavail * facts.f_frsize >= max(_ROOM_MIN, _ROOM_TIMES * size)


class RealLock:
    """Held lock file of the directory.

    ``directory_fd`` is the directory, open since then: later errors of its file system are reported to a sync through it.
    """

    def __init__(self, fd: int, directory_fd: int) -> None:
        self._fd, self.directory_fd = fd, directory_fd

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            os.close(self.directory_fd)
            self._fd = self.directory_fd = _NONE


class RealDisk:
    """Directory tree of the file system, created if missing. ``permissions`` apply to new files and directories."""

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
        """Create a sparse file of zeros, and replace an existing one (its views stay valid)."""
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
        """Return whether a file or directory exists."""
        return os.path.exists(self._full(path))

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is missing."""
        try:
            return sorted(with_reserve(lambda: os.listdir(self._full(path))))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def file_size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return os.stat(self._full(path)).st_size

    def is_directory(self, path: str) -> bool:
        """Return whether a directory exists."""
        return (self.root / path).is_dir()

    def rename(self, path: str, to: str) -> None:
        """Rename a file, and create missing directories."""
        self._make_directory((self.root / to).parent)
        (self.root / path).rename(self.root / to)

    def resize(self, path: str, size: int) -> None:
        """Extend a file with zeros."""
        os.truncate(self.root / path, size)

    def modified_ms(self, path: str) -> int:
        """Return the time of the last change, milliseconds since the epoch."""
        return (self.root / path).stat().st_mtime_ns // 1_000_000

    def is_private(self, path: str) -> bool:
        """Return whether only the owner may access a file."""
        return is_private((self.root / path).stat().st_mode)

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory, if it exists."""
        full = self.root / path
        try:
            full.unlink(missing_ok=True)
        except (IsADirectoryError, PermissionError):
            if not full.is_dir():
                raise
            full.rmdir()

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it is missing."""
        try:
            return with_reserve((self.root / path).read_bytes)
        except FileNotFoundError:
            return None

    def save(self, path: str, data: bytes, *, keep_previous: bool = True, private: bool = False) -> None:
        """Replace a small file atomically and durably; the old one is kept as ``.bak`` (a hard link, never incomplete)."""
        full = self.root / path
        self._make_directory(full.parent)
        fresh = full.with_name(full.name + ".tmp")
        fresh.unlink(missing_ok=True)  # left by a process that was killed while saving
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
        os.replace(fresh, full)  # after the fsync: otherwise a crash could leave an empty file under this name
        self._sync_directory(full.parent)

    def sync_directory(self, path: str) -> None:
        """Sync a directory: names created or removed in it, and its own name."""
        full = self.root / path
        if full.is_dir():
            self._sync_directory(full)
        if path:
            self._sync_directory(full.parent)

    def sync_all(self, files: Sequence[File], directories: Sequence[str]) -> None:
        """Sync files and directories; many of them by one call for the file system, if that reports every error."""
        if len(files) + len(directories) >= _TOGETHER_MIN and self._sync_file_system(files, directories):
            return
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def _sync_file_system(self, files: Sequence[File], directories: Sequence[str]) -> bool:
        """Sync the whole file system; False: it failed, possibly for a foreign file, or may hide errors."""
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
        """Return the space of the file system, as ``df`` shows it to ordinary users."""
        facts = os.statvfs(self.root)
        used = facts.f_blocks - facts.f_bfree
        return DiskUsage((used + facts.f_bavail) * facts.f_frsize, facts.f_bavail * facts.f_frsize)

    def lock(self, path: str) -> RealLock:
        """Take the lock file exclusively and write ``lock`` into it.

        Takes ``flock`` and the record lock on byte 0 that a Java process takes, so that both exclude each other.
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
        """Release the lock as the system does for a process that died."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    def boot_id(self) -> str | None:
        """Return the kernel's random id of this boot; None if there is none."""
        try:
            return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
        except OSError:
            return None
