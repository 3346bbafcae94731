"""Files for the console's user alone: how they are made, locked between processes and made durable. Knows no contents."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from halfmoon.errors import UsageError

WAIT_S = 5
"""Longest wait for another process, which holds a lock for one write."""


@contextmanager
def locked(path: Path, flags: int) -> Iterator[int]:
    """Lend the descriptor of a file, made with mode 0600 where there is none, while all others are kept out, threads too.

    Links are not followed. What root makes belongs to the owner of the directory: a command that root runs does not shut the
    running console out. Raises UsageError when another process keeps the lock, and OSError.
    """
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made_for: os.stat_result | None = os.stat(path.parent)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        descriptor, made_for = os.open(path, flags), None
    try:
        if made_for and os.geteuid() == 0:
            os.fchown(descriptor, made_for.st_uid, made_for.st_gid)
        end = time.monotonic() + WAIT_S
        while not _takes_lock(descriptor):
            if time.monotonic() > end:
                raise UsageError(f"{path}: another process has had it locked for {WAIT_S} s: see which, and end it")
            time.sleep(0.01)
        yield descriptor
    finally:
        os.close(descriptor)


def _takes_lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def sync_directory(path: Path) -> None:
    """Have the names in a directory outlive a power failure. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
