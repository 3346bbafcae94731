"""`temporary_directory`: where servers that keep nothing keep it while they run."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir

from halfmoon.errors import StoreLocked
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.layout import LOCK

_PREFIX = "halfmoon-ephemeral-"
_ABANDONED_S = 3600
"""Younger directories are not looked at: a server that starts has no lock yet."""


@contextmanager
def temporary_directory() -> Iterator[Path]:
    """Make a directory that is removed at the end, and remove what servers that were killed left behind an hour ago or earlier.

    Raises OSError: there is no room for one.
    """
    for left in Path(gettempdir()).glob(f"{_PREFIX}*"):
        if _is_abandoned(left):
            rmtree(left, ignore_errors=True)
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _is_abandoned(directory: Path) -> bool:
    """Whether a directory is this user's, old, and no server has it."""
    try:
        facts = directory.lstat()
        old = time.time() - facts.st_mtime >= _ABANDONED_S
        if not (old and stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()):
            return False
        for lock in directory.rglob(LOCK):
            RealDisk(lock.parent).lock(LOCK).release()
    except (OSError, StoreLocked):
        return False
    return True
