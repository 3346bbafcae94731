"""Reads a stopped store for `halfmoon fsck`: takes its lock, so that no broker runs on it meanwhile. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from errno import EACCES
from pathlib import Path

from halfmoon.errors import StoreError, UsageError
from halfmoon.programs.ownership import as_owner_of
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.check.fsck import Problem, Progress, fsck
from halfmoon.store.layout import CHECKPOINT, COMMIT_LOG, LOCK, STARTING_OVER
from halfmoon.store.log.earlier_copy import COPY
from halfmoon.store.log.files import HALF_MOVED
from halfmoon.store.settings import StoreSettings

__all__ = ["Problem", "problems"]


def problems(directory: Path, settings: StoreSettings | None = None, progress: Progress | None = None) -> Iterator[Problem]:
    """Yield what is wrong with the store in a directory, as it is found.

    Raises:
        UsageError: there is no store.
        StoreError: it is half moved aside, by a slave that starts over.
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


def check_store(directory: Path, kept: str | None = None) -> str:
    """Return which earlier copy a directory keeps of a store that has started over; empty: none. ``kept``: what it was before.

    Raises UsageError where there is no store, StoreError where one is half moved aside or has started over since, PermissionError
    where it may not be read.
    """
    if not os.access(directory, os.R_OK | os.X_OK) and directory.exists():
        raise PermissionError(EACCES, "may not be read by this user", str(directory))
    if (directory / STARTING_OVER).exists():
        raise StoreError(HALF_MOVED)
    try:
        found = (directory / COPY).stat()
        copy = f"{found.st_dev}:{found.st_ino}"
    except FileNotFoundError:
        copy = ""
    if kept not in (None, copy):
        raise StoreError(f"the broker there started over meanwhile, and moved its store to {COPY}: do this again")
    if not (directory / COMMIT_LOG).is_dir() and not (directory / CHECKPOINT).is_file():
        raise UsageError(f"{directory} holds no store: there is no directory {COMMIT_LOG!r} in it")
    return copy
