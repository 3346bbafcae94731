"""Reads a stopped store for `halfmoon fsck`: takes its lock, so that no broker runs on it meanwhile. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EACCES
from pathlib import Path

from halfmoon.errors import UsageError
from halfmoon.programs.ownership import as_owner_of
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import Problem, Progress, fsck
from halfmoon.store.layout import CHECKPOINT, COMMIT_LOG, LOCK
from halfmoon.store.settings import StoreSettings

__all__ = ["Problem", "problems"]


def problems(directory: Path, settings: StoreSettings | None = None, progress: Progress | None = None) -> Iterator[Problem]:
    """Yield what is wrong with the store in a directory, as it is found.

    Raises:
        UsageError: there is no store.
        StoreLocked: a broker runs on it.
        OSError: it may not be read, or the disk fails.
    """
    check_store(directory)
    with as_owner_of(directory):
        yield from _problems(RealDisk(directory), settings, progress)


def _problems(disk: RealDisk, settings: StoreSettings | None, progress: Progress | None) -> Iterator[Problem]:
    lock = disk.lock(LOCK) if disk.exists(LOCK) else None
    try:
        yield from fsck(disk, settings, progress)
    finally:
        if lock is not None:
            lock.release()


def check_store(directory: Path) -> None:
    """Raise UsageError where there is no store in a directory, PermissionError where it may not be read."""
    if not os.access(directory, os.R_OK | os.X_OK) and directory.exists():
        raise PermissionError(EACCES, "may not be read by this user", str(directory))
    if not (directory / COMMIT_LOG).is_dir() and not (directory / CHECKPOINT).is_file():
        raise UsageError(f"{directory} holds no store: there is no directory {COMMIT_LOG!r} in it")
