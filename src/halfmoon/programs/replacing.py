"""Where a backup goes: a directory that is replaced in one step, its two neighbours, and the lock that keeps a second backup out.

Beside ``TARGET`` the new copy grows as ``.TARGET.halfmoon-new``; the older one is ``.TARGET.halfmoon-old`` between the two renames
of the replacement and until it is removed. Both are removed only if they are backups (``backup.json`` can be read) on which nobody
started a broker since: a backup has no file ``lock``, and a start makes one. ``.TARGET.lock`` is locked during a run and stays.

A backup is replaced by one of the same store only. A store has no name of its own, and it may be moved, restored or written by
Apache's broker; but its log never changes below its end, and no other store has the same record at the same place. Where the two
logs have no file in common, the path of the source decides, unless its log ends before the backup's begins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from halfmoon.conversion import json_decoder
from halfmoon.errors import StoreLocked, UsageError
from halfmoon.runtime.files.permissions import OWNER, make_directory
from halfmoon.store.layout import BLANK, BLANK_MAGIC, COMMIT_LOG, LOCK, file_offset

__all__ = ["MANIFEST", "BackupPlace", "Copied", "Manifest", "check_same_store", "place_of", "sync_directory", "write_manifest"]

MANIFEST = "backup.json"
_FRESH_MANIFEST = f"{MANIFEST}.tmp"
_HEAD_BYTES = 88
"""Beginning of a record that tells it from others at its place: up to its time, with addresses of IPv4 or IPv6."""


class Copied(msgspec.Struct, frozen=True):
    """A file of a backup: its size, time and checksum in the source, and its time in the backup."""

    size: int
    modified_ns: int
    crc: int
    copied_ns: int


class Manifest(msgspec.Struct):
    """Content of ``backup.json``. ``log_end`` is the physical offset behind the last record, -1: not known, of a stopped store.

    ``source`` is the path of the store, without symbolic links.
    """

    complete: bool
    taken_ms: int
    running: bool
    log_end: int = -1
    files: dict[str, Copied] = {}
    source: str = ""


class BackupPlace(NamedTuple):
    """Where a backup goes, all without symbolic links."""

    target: Path
    new: Path
    old: Path
    lock: Path

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Keep other backups to the target out. Raises StoreLocked: there is one; OSError."""
        make_directory(self.target.parent, OWNER.directory)
        # Never removed: another process could lock the removed one.
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked(f"{self.lock} is locked: another backup to {self.target} is under way") from None
            yield
        finally:
            os.close(fd)

    def prepare(self) -> Manifest | None:
        """Return what is known of an older backup in the target, None without one; remove what a stopped run left beside it.

        An older backup that a run was about to replace when it was killed gets its name back. Raises UsageError where something
        is no backup, or a broker was started on it; OSError.
        """
        old, target = _backup_in(self.old), _backup_in(self.target)
        _backup_in(self.new)
        self.discard()
        if old is not None and target is None:
            _remove(self.target)
            self.old.rename(self.target)
            return old
        self._discard_old()
        return target

    def discard(self) -> None:
        """Remove the new copy. Raises OSError."""
        _remove(self.new)

    def replace(self) -> None:
        """Give the new backup its name. A process killed in between leaves the older one under its other name.

        Raises UsageError where a broker was started on the older one meanwhile; OSError.
        """
        _backup_in(self.target)
        replaced = self.target.exists()
        if replaced:
            self.target.rename(self.old)
        try:
            self.new.rename(self.target)
        except OSError:
            if replaced:
                self.old.rename(self.target)
            raise
        sync_directory(self.target.parent)
        self._discard_old()

    def _discard_old(self) -> None:
        """Remove the older backup under the name of a new one: what has the name of an older one is whole."""
        if self.old.exists():
            self.old.rename(self.new)
            self.discard()


def place_of(source: Path, target: Path) -> BackupPlace:
    """Return where a backup goes. Raises UsageError where source, target or a neighbour of it are one inside the other."""
    here, there = source.resolve(), target.resolve()
    if not there.name:
        raise UsageError(f"{target} cannot be replaced: give a directory in it")
    hidden = f".{there.name}"
    place = BackupPlace(
        there, there.with_name(f"{hidden}.halfmoon-new"), there.with_name(f"{hidden}.halfmoon-old"),
        there.with_name(f"{hidden}.lock"),
    )  # fmt: skip
    for path in (place.target, place.new, place.old):
        if here == path or here in path.parents or path in here.parents:
            raise UsageError(f"{path} and {source} are one inside the other")
    return place


def check_same_store(source: Path, backup: Path, manifest: Manifest) -> None:
    """Check that a backup is one of the store in ``source``. Raises UsageError where it is not, or cannot be known to be."""
    ours, others = _log_heads(source), _log_heads(backup)
    common = ours.keys() & others.keys()
    if any(ours[base] == others[base] for base in common):
        return
    is_behind = max(ours, default=-1) < min(others, default=-1)
    if not common and not is_behind and manifest.source == str(source.resolve()):
        return
    raise UsageError(
        f"{backup} is not known to be a backup of this store: "
        + ("its log holds other messages" if common else "their logs have nothing in common")
        + (f"; it was made of {manifest.source}" if manifest.source else "")
        + ". Nothing is written there: give that directory another name, or back up to another one"
    )


def _log_heads(directory: Path) -> dict[int, bytes]:
    """Return the first bytes of each file of a log that begins with a message, by its offset."""
    heads: dict[int, bytes] = {}
    log = directory / COMMIT_LOG
    for name in os.listdir(log) if log.is_dir() else ():
        base = file_offset(name)
        if base is None:
            continue
        with suppress(FileNotFoundError), open(log / name, "rb") as file:  # retention may take it away meanwhile
            head = file.read(_HEAD_BYTES)
            if len(head) == _HEAD_BYTES and any(head) and BLANK.unpack_from(head)[1] != BLANK_MAGIC:
                heads[base] = head
    return heads


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Say what a copy holds, durably. Raises OSError."""
    fresh = directory / _FRESH_MANIFEST
    with open(fresh, "wb", opener=_private) as file:
        file.write(msgspec.json.encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(directory / MANIFEST)
    sync_directory(directory)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the device. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _backup_in(directory: Path) -> Manifest | None:
    """Return what a backup's manifest says; None: there is no directory, or nothing in it but a manifest that was begun.

    Raises UsageError for anything else: it is not ours to remove.
    """
    if not os.path.lexists(directory):
        return None
    names = set(os.listdir(directory)) if directory.is_dir() and not directory.is_symlink() else {""}
    if names <= {_FRESH_MANIFEST}:
        return None
    if MANIFEST not in names:
        raise UsageError(f"{directory} is neither empty nor a backup: nothing is written there")
    if LOCK in names:
        raise UsageError(
            f"a broker was started on {directory}, a backup: to keep what it stored, nothing is written there. "
            "Give the directory another name, or back up to another one"
        )
    try:
        manifest: Manifest = json_decoder(Manifest).decode((directory / MANIFEST).read_bytes())
    except msgspec.DecodeError as exc:
        raise UsageError(f"{directory / MANIFEST} cannot be read, nothing is written there: {exc}") from None
    return manifest


def _remove(directory: Path) -> None:
    """Remove a backup, its manifest last: what is left of it when the process is killed is known to be one."""
    if not directory.exists():
        return
    for entry in os.scandir(directory):
        if entry.name in (MANIFEST, _FRESH_MANIFEST):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    for name in (MANIFEST, _FRESH_MANIFEST):
        with suppress(FileNotFoundError):
            (directory / name).unlink()
    directory.rmdir()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
