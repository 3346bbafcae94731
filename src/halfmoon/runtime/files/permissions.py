"""Who may read what is made: directories and files for their owner alone, unless a setting lets others in. Whatever the umask is.

The mode is given when a name is made, so nobody can look in between. What is there already is left as it is, and reported.
"""

from __future__ import annotations

import logging
import os
import stat
from errno import ENOTDIR
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger("halfmoon.serve")


class Permissions(NamedTuple):
    """Modes of the directories and of the files that are made."""

    directory: int
    file: int


PERMISSIONS = {
    "owner": Permissions(0o700, 0o600),
    "group": Permissions(0o750, 0o640),
    "all": Permissions(0o755, 0o644),
}
"""By the values of the setting ``readable_by``."""
OWNER = PERMISSIONS["owner"]
_ADVICE = {OWNER: "go-rwx", PERMISSIONS["group"]: "g-w,o-rwx", PERMISSIONS["all"]: "go-w"}


def make_directory(path: Path, mode: int = OWNER.directory) -> None:
    """Make a directory, and the missing ones above it, all with one mode; those that are there keep theirs.

    Raises NotADirectoryError: a file has that name, or one above it; OSError.
    """
    if path.is_dir():
        return
    if path.parent != path:
        make_directory(path.parent, mode)
    try:
        path.mkdir(mode)
    except FileExistsError:
        if not path.is_dir():
            raise NotADirectoryError(
                ENOTDIR, "a file is where a directory is to be: move it away, or use another directory", str(path)
            ) from None
        return  # another process was quicker
    there = path.stat().st_mode
    if mode & ~there:  # the umask took some away; what came from above (setgid) stays
        path.chmod(stat.S_IMODE(there) | mode)


def open_new(path: Path, flags: int, mode: int = OWNER.file) -> int:
    """Make a file and return its descriptor. Raises FileExistsError, OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        there = os.fstat(fd).st_mode
        if mode & ~there:
            os.fchmod(fd, stat.S_IMODE(there) | mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def report_readable(directory: Path, permissions: Permissions) -> None:
    """Say so when a data directory that was there lets more users in than the setting; it is not changed."""
    if _is_wider(directory, permissions.directory):
        log.warning(
            "the data directory %s is open to other users (mode %04o): what is made in it from now on is not, what was there stays "
            "as it is; close it with chmod -R %s %s, or say with readable_by who may read it",
            directory,
            stat.S_IMODE(directory.stat().st_mode),
            _ADVICE[permissions],
            directory,
        )


def _is_wider(directory: Path, mode: int) -> bool:
    """Whether users may do more in a directory than its mode is to let them, who can get there."""
    wider = directory.stat().st_mode & 0o077 & ~mode
    for above in directory.resolve().parents:
        there = above.stat().st_mode
        if not there & 0o001:
            wider &= ~0o007
        if not there & 0o011:
            wider &= ~0o070
    return wider != 0
