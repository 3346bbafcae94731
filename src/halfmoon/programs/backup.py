"""Copies a broker's directory, stopped or running, so that a broker can start on the copy. Writes nothing in the source.

What makes the copy of a *running* store one moment of it:

* The log is append-only and never changes below its end, so whoever reads it needs no lock. Everything else in the directory is
  derived from the log, or progress that a start takes back to it: tables in ``config`` are replaced by a rename, the
  journal is append-only as well; the console's database is read under its lock.
* So what is derived is copied first, and only then the end of the copied log is chosen: behind the last whole record there is,
  found from the running broker's checkpoint on. Nothing in the copy speaks of a message that the copy lacks.
* The copy is marked as left behind by a loss of power (``abort`` names no boot). A start then believes of it what the checkpoint
  calls durable and finds the rest in the log, as after any loss of power. The file of the key index that is being written is left
  out.

Of a *stopped* store everything is copied as it is, under its lock. Either copy is marked (``restored``): the original goes on and
gives out offsets that the copy gives out to other messages, so the first start on it gives its topics another birth.

A target that holds an older backup is replaced in one step once the new one is complete and on the device. Until then the new one
grows beside it (`halfmoon.programs.replacing`); files that cannot have changed are hard links to those of the older one: full
files of the log that ended below its end, and full files of queues and of the key index, if size and time of the source are those
of the manifest (``backup.json``) and the target's file was not written since. The copy is written back in steps of 16 MiB, so that
a broker that syncs its log meanwhile never waits for gigabytes of ours, and each file is synced at its end. Small files, of which
there is one a queue, are synced together.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import CorruptRecord, HalfmoonError, StoreError, StoreLocked, UsageError
from halfmoon.hot import crc32
from halfmoon.programs.replacing import (
    MANIFEST,
    BackupPlace,
    Copied,
    Manifest,
    check_same_store,
    place_of,
    sync_directory,
    write_manifest,
)
from halfmoon.programs.verify import check_store
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.runtime.files.filesystems import kind_of, sync_file_system, write_back
from halfmoon.runtime.files.permissions import NO_LINKS, OWNER, make_directory
from halfmoon.store.check.aside import is_folder
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.layout import (
    ABORT,
    BACKUP_MARK,
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    INDEX,
    JOURNAL,
    LOCK,
    QUARANTINE,
    RESTORED,
    SPARE,
    TRANSACTION,
    file_offset,
)
from halfmoon.store.legacy import read_journal
from halfmoon.store.records import RecordFacts, check_at

__all__ = ["BackUp", "back_up", "copy_stopped"]

Say = Callable[[str], None]
Progress = Callable[[int, int], None]

_PIECE_BYTES, _SYNC_BYTES = 1024 * 1024, 16 * 1024 * 1024
_SMALL_BYTES, _TRIES = 1024 * 1024, 20
_SYNCED_TOGETHER_MIN, _SYNCED_TOGETHER_MAX = 64, 1024
"""Small files: to sync one by itself is a write of the file system's journal, some milliseconds."""
_ZEROS = bytes(_PIECE_BYTES)
_CONSOLE, _LOCKED_S = "console/console.db", 5.0
_AT = Struct(">Q")
_RESTORED_TEXT = b"a backup: the first start gives its topics another birth\n"
_IN_USE = 2
"""Files at the end of a queue that may be written: space is taken ahead."""


class BackUp(NamedTuple):
    """Result of a backup."""

    running: bool
    """Whether a broker ran on the source."""
    log_end: int
    files: int
    copied_bytes: int
    linked_bytes: int
    seconds: float


def back_up(
    source: Path, target: Path, *, bytes_a_second: int = 0, verify: bool = False, progress: Progress | None = None
) -> BackUp:
    """Copy the store in ``source`` to ``target``, which is new, empty or an older backup. ``bytes_a_second`` 0: as fast as it goes.

    ``verify`` reads the copy again and compares its checksums with what was read from the source.

    Raises:
        UsageError: there is no store, or the target is something else, or a backup of another store, or a broker was started on it.
        StoreLocked: another backup to the target is under way.
        StoreError: what was copied does not read as it was written; or the store is moved aside, by a slave that starts over.
        OSError: the disk fails or is full; an older backup is what it was.
    """
    kept = check_store(source)
    place = place_of(source, target)
    began = time.monotonic()
    with place.taken():
        older = place.prepare()
        if older is not None:
            check_same_store(source, place.target, older)
        make_directory(place.new, OWNER.directory)
        with _removed_if_it_fails(place), ExitStack() as held:
            running = not _taken(source, held)
            copy = _Copy(source, place, older, running=running, bytes_a_second=bytes_a_second, progress=progress)
            copy.write_manifest(complete=False)
            copy.run(held, restored=True)
            check_store(source, kept)
            held.close()  # a broker may start while the copy is read again
            if verify:
                copy.verify()
            copy.write_manifest(complete=True)
        place.replace()
    return BackUp(running, copy.log_end, len(copy.files), copy.copied, copy.linked, time.monotonic() - began)


def copy_stopped(source: Path, into: Path, progress: Progress | None = None) -> None:
    """Copy a stopped store to a new or empty directory, which appears when it is complete.

    Raises StoreLocked where a broker runs on it; else as `back_up`.
    """
    check_store(source)
    place = place_of(source, into)
    with place.taken():
        if place.prepare() is not None:
            raise UsageError(f"{into} holds a backup: give a directory that is new or empty")
        make_directory(place.new, OWNER.directory)
        with _removed_if_it_fails(place), ExitStack() as held:
            if not _taken(source, held):
                raise StoreLocked(f"{source} is locked by another process: is a broker running on it?")
            copy = _Copy(source, place, None, running=False, bytes_a_second=0, progress=progress)
            copy.write_manifest(complete=False)
            copy.run(held)
            copy.write_manifest(complete=True)
        place.replace()
        (place.target / MANIFEST).unlink()  # it is a store to work on, which no backup may replace


@contextmanager
def _removed_if_it_fails(place: BackupPlace) -> Iterator[None]:
    """Give the room back that a copy took which cannot be completed. After a kill the next run does."""
    try:
        yield
    except (OSError, HalfmoonError):
        with suppress(OSError):
            place.discard()
        raise


def _taken(source: Path, held: ExitStack) -> bool:
    """Take the lock of a store until ``held`` ends; False: a broker runs on it."""
    if not (source / LOCK).exists():
        return True
    try:
        lock = RealDisk(source).lock(LOCK)
    except StoreLocked:
        return False
    held.callback(lock.release)
    return True


class _Copy:
    """One copy under way. ``files`` are those that are there."""

    def __init__(
        self, source: Path, place: BackupPlace, older: Manifest | None, *, running: bool, bytes_a_second: int,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._source, self._partial, self._target, self._older, self._running = source, place.new, place.target, older, running
        self._rate, self._progress = bytes_a_second, progress or (lambda done, of_all: None)
        self._began, self._all_bytes = time.monotonic(), 0
        self.files: dict[str, Copied] = {}
        self.copied = self.linked = 0
        self.log_end = -1
        self._unsynced: list[Path] = []
        self._unsynced_bytes = 0
        self._file_system = -1

    def run(self, held: ExitStack, *, restored: bool = False) -> None:
        """Copy everything in order, and sync it. ``restored``: mark the copy as one that does not go on as the source does."""
        logs: dict[int, int] = {}
        self._open_logs(logs, held)
        # Before anything is written: who opens it later is not told of writes that have failed.
        self._file_system = os.open(self._partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        held.callback(os.close, self._file_system)
        paths = sorted(self._paths(), key=_order)
        self._all_bytes = sum(os.fstat(fd).st_blocks * 512 for fd in logs.values())
        self._journal()
        for path in paths:
            if not (self._running and path == _newest_index(paths)):
                self._file(path)
        if restored and RESTORED not in self.files:
            self._write(RESTORED, _RESTORED_TEXT)
        self._open_logs(logs, held)  # what was made since: tables that are copied speak of it
        end = _log_end(logs, self._partial) if self._running else None
        for base, fd in sorted(logs.items()):
            size = os.fstat(fd).st_size
            self._log_file(base, fd, size if end is None else min(size, max(0, end - base)))
        if end is not None:
            self.log_end = end
            self._write(ABORT, BACKUP_MARK)
        if not self._sync_all():
            self._sync_small()
            for directory, _, _ in os.walk(self._partial):
                sync_directory(Path(directory))

    def _sync_all(self) -> bool:
        """Have everything on the device, where the file system can tell that it is."""
        return kind_of(os.fstat(self._file_system).st_dev).tells and sync_file_system(self._file_system)

    def _sync_small(self) -> None:
        """Have the small files on the device that are not there yet."""
        if len(self._unsynced) < _SYNCED_TOGETHER_MIN or not self._sync_all():
            for path in self._unsynced:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        self._unsynced.clear()
        self._unsynced_bytes = 0

    def _synced_later(self, path: Path, count: int) -> None:
        self._unsynced.append(path)
        self._unsynced_bytes += count
        if len(self._unsynced) >= _SYNCED_TOGETHER_MAX or self._unsynced_bytes >= _SYNC_BYTES:
            self._sync_small()

    def _paths(self) -> Iterator[str]:
        """Yield what is copied besides the log and the journal, relative to the source."""
        for directory, names, files in os.walk(self._source, onerror=_unless_gone):
            at = Path(directory).relative_to(self._source)
            if at == Path():
                names[:] = [name for name in names if name not in (COMMIT_LOG, JOURNAL, QUARANTINE) and not is_folder(name)]
            if linked := [name for name in names if (Path(directory) / name).is_symlink()]:
                raise UsageError(f"{Path(directory) / linked[0]} is a symbolic link to a directory, which a backup does not follow")
            for name in files:
                path = (at / name).as_posix()
                unwanted = name == LOCK or name.endswith(".tmp") or path in (SPARE, MANIFEST, f"{_CONSOLE}-journal")
                if not unwanted and not (self._running and path == ABORT):
                    yield path

    def _journal(self) -> None:
        """Copy the journal, oldest file first: a running store removes one, which is then not found, once the next is whole."""
        journal = self._source / JOURNAL
        for _ in range(_TRIES):
            paths = [f"{JOURNAL}/{name}" for name in sorted(os.listdir(journal))] if journal.is_dir() else []
            for path in paths:
                self._file(path)
            if not paths or self.files.keys() & paths:
                return
        raise StoreError(f"{journal} goes on to another file faster than one is copied")

    def _open_logs(self, logs: dict[int, int], held: ExitStack) -> None:
        """Open every file of the log that is not among ``logs``, so that retention takes none away meanwhile."""
        log = self._source / COMMIT_LOG
        for name in os.listdir(log) if log.is_dir() else ():
            base = file_offset(name)
            if base is not None and base not in logs:
                with suppress(FileNotFoundError):
                    logs[base] = os.open(log / name, os.O_RDONLY | NO_LINKS | os.O_CLOEXEC)
                    held.callback(os.close, logs[base])

    # ------------------------------------------------------------ files

    def _file(self, path: str) -> None:
        """Copy a file, or link it where an older backup has the same. One that is gone meanwhile is left out."""
        try:
            fd = os.open(self._source / path, os.O_RDONLY | NO_LINKS | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            size = os.fstat(fd).st_size
            if not self._link(path, fd, frozen=self._is_full(path)):
                if path == _CONSOLE:
                    self._write(path, _database(self._source / path), fd)
                elif self._running and size <= _SMALL_BYTES:
                    self._write(path, _stable(fd), fd)
                else:
                    self._contents(path, fd, size, size)
        finally:
            os.close(fd)

    def _log_file(self, base: int, fd: int, used: int) -> None:
        path, size = f"{COMMIT_LOG}/{base:020d}", os.fstat(fd).st_size
        if used <= 0 and self._running:
            return
        known = self._older.log_end if self._older is not None else -1
        if not self._link(path, fd, frozen=base + size <= known):
            self._contents(path, fd, size, used)

    def _is_full(self, path: str) -> bool:
        """Whether a file of a queue or of the key index is written no more."""
        directory, _, name = path.rpartition("/")
        if not path.startswith((f"{CONSUME_QUEUE}/", f"{INDEX}/")):
            return False
        try:
            names = os.listdir(self._source / directory)
        except FileNotFoundError:  # the topic was deleted meanwhile
            return False
        return sum(other.isdigit() and other > name for other in names) >= _IN_USE

    def _link(self, path: str, fd: int, *, frozen: bool) -> bool:
        """Link a file to that of the older backup, if it cannot have changed; return whether it was."""
        known = self._older.files.get(path) if self._older is not None and frozen else None
        facts, there = os.fstat(fd), self._target / path
        if known is None or (known.size, known.modified_ns) != (facts.st_size, facts.st_mtime_ns):
            return False
        try:
            if there.stat().st_mtime_ns != known.copied_ns:
                return False
            self._made(path)
            os.link(there, self._partial / path)
        except OSError:  # gone, or a file system without links
            return False
        self.files[path] = known
        self.linked += facts.st_blocks * 512
        return True

    def _contents(self, path: str, fd: int, size: int, used: int) -> None:
        """Copy the first ``used`` bytes of a file; the rest up to ``size`` are a hole, as are runs of zeros."""
        full, crc, waiting, written = self._made(path), 0, 0, 0
        out = os.open(full, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(out, size)
            for at, piece in _pieces(fd, used):
                crc = crc32(piece, crc32(_AT.pack(at), crc))
                _write_all(out, piece, at)
                waiting += len(piece)
                written += len(piece)
                if waiting >= _SYNC_BYTES:
                    write_back(out)
                    waiting = 0
                self._went_on(len(piece))
            if written <= _SMALL_BYTES:
                self._synced_later(full, written)
            else:
                os.fsync(out)
                os.posix_fadvise(out, 0, 0, os.POSIX_FADV_DONTNEED)  # a running broker has better use for the memory
            self._add(path, fd, size, crc, os.fstat(out).st_mtime_ns)
        finally:
            os.close(out)

    def _write(self, path: str, data: bytes, fd: int | None = None) -> None:
        full = self._made(path)
        out = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_all(out, data, 0)
            self._synced_later(full, len(data))
            crc = 0
            for at in range(0, len(data), _PIECE_BYTES):
                if piece := data[at : at + _PIECE_BYTES].rstrip(b"\0"):
                    crc = crc32(piece, crc32(_AT.pack(at), crc))
            self._add(path, fd, len(data), crc, os.fstat(out).st_mtime_ns)
        finally:
            os.close(out)
        self._went_on(len(data))

    def _add(self, path: str, fd: int | None, size: int, crc: int, copied_ns: int) -> None:
        self.files[path] = Copied(size, os.fstat(fd).st_mtime_ns if fd is not None else 0, crc, copied_ns)

    def _made(self, path: str) -> Path:
        full = self._partial / path
        make_directory(full.parent, OWNER.directory)
        return full

    def _went_on(self, count: int) -> None:
        self.copied += count
        self._progress(self.copied, self._all_bytes)
        if self._rate:
            ahead_s = self.copied / self._rate - (time.monotonic() - self._began)
            if ahead_s > 0:
                time.sleep(ahead_s)

    # ------------------------------------------------------------ what it is like

    def verify(self) -> None:
        """Read the copy and compare its checksums. Raises StoreError."""
        for path, known in self.files.items():
            fd = os.open(self._partial / path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                crc = 0
                for at, piece in _pieces(fd, known.size):
                    crc = crc32(piece, crc32(_AT.pack(at), crc))
            finally:
                os.close(fd)
            if crc != known.crc:
                raise StoreError(f"{self._partial / path} does not read as it was written: its checksum is wrong")

    def write_manifest(self, *, complete: bool) -> None:
        """Say what the copy holds, durably."""
        taken_ms = time.time_ns() // 1_000_000
        write_manifest(
            self._partial, Manifest(complete, taken_ms, self._running, self.log_end, self.files, str(self._source.resolve()))
        )


def _order(path: str) -> tuple[int, str]:
    """Return a sort key: checkpoint and tables, behind the journal, come before the files that they describe."""
    return {CHECKPOINT: 0, TRANSACTION: 2, INDEX: 3, CONSUME_QUEUE: 4}.get(path.partition("/")[0], 1), path


def _newest_index(paths: list[str]) -> str:
    """Return the file of the key index that is being written, empty without one."""
    return max((path for path in paths if path.startswith(f"{INDEX}/")), default="")


def _stable(fd: int) -> bytes:
    """Read a small file that may be written meanwhile, until it reads the same twice."""
    data = os.pread(fd, _SMALL_BYTES + 1, 0)
    for _ in range(_TRIES):
        before, data = data, os.pread(fd, _SMALL_BYTES + 1, 0)
        if before == data:
            break
    return data


def _database(path: Path) -> bytes:
    """Return the console's database as it is between two changes, whoever writes it meanwhile; one that is damaged as it is.

    Raises StoreLocked: another process has it locked for longer than a change takes.
    """
    uri = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(uri, _LOCKED_S, uri=True, isolation_level=None)) as database:
            database.execute("BEGIN")
            database.execute("SELECT * FROM sqlite_master").fetchall()  # from now on nobody may write the file
            return path.read_bytes()
    except sqlite3.Error as exc:
        if getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY:
            raise StoreLocked(f"{path} is locked by another process, which may be changing it") from None
    return path.read_bytes()


def _pieces(fd: int, used: int) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a file, each at a multiple of its greatest size and without zeros at its end; holes are not read."""
    at = 0
    while at < used:
        try:
            data_at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return  # nothing follows but a hole
        at = data_at // _PIECE_BYTES * _PIECE_BYTES
        if at >= used:
            return
        piece = os.pread(fd, _data_end(fd, data_at, min(at + _PIECE_BYTES, used)) - at, at)
        if not piece:
            return
        if piece != _ZEROS[: len(piece)]:
            yield at, piece.rstrip(b"\0")
        at += _PIECE_BYTES


def _data_end(fd: int, data_at: int, piece_end: int) -> int:
    """Return where the data in a piece ends, if one hole follows it: a new queue has 4 KiB of data in 6 MB."""
    try:
        hole_at = os.lseek(fd, data_at, os.SEEK_HOLE)
    except OSError:  # the file was cut
        return piece_end
    if hole_at >= piece_end:
        return piece_end
    with suppress(OSError):  # no data follows
        if os.lseek(fd, hole_at, os.SEEK_DATA) < piece_end:
            return piece_end
    return hole_at


def _log_end(logs: dict[int, int], copied: Path) -> int:
    """Return the offset behind the last whole record of a log that is being written."""
    disk = RealDisk(copied)
    file = CheckpointFile(disk, read_journal(disk))
    checkpoint = file.read()
    published = checkpoint.published_offset if file.ours else 0
    bases = sorted(logs)
    if not bases:
        return 0
    size = max(os.fstat(fd).st_size for fd in logs.values())
    end = published if published >= bases[0] else bases[max(0, len(bases) - _IN_USE)]
    if not size:  # all of them are names without bytes yet
        return end
    while (fd := logs.get(end // size * size)) is not None and os.fstat(fd).st_size == size:
        base = end // size * size
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
            end, closed = _end_in_file(view, base, end)
        if not closed:
            break
    return end


def _end_in_file(view: memoryview, base: int, end: int) -> tuple[int, bool]:
    """Return the offset behind the last whole record of a file, and whether the file is closed there."""
    while True:
        try:
            record = check_at(view, end - base, end)
        except CorruptRecord:
            return end, False
        if not isinstance(record, RecordFacts):
            return base + len(view), True
        end += record.size_bytes


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _write_all(fd: int, data: bytes, at: int) -> None:
    written = os.pwrite(fd, data, at)
    while written < len(data):
        written += os.pwrite(fd, memoryview(data)[written:], at + written)
