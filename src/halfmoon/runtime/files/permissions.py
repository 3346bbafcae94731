"""Who may read what is made: directories and files for their owner alone, unless a setting lets others in. Whatever the umask is.

The mode is given when a name is made, so nobody can look in between. What is there already is left as it is, and reported.

Where root works in a directory of somebody else, the owner may put a link in the place of any name, between a look at it and its
use. So commands act as the owner (`halfmoon.programs.ownership`), modes are changed through descriptors, and root opens no file by
a link (`NO_LINKS`).
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
NO_LINKS = 0 if os.geteuid() else os.O_NOFOLLOW
"""A flag for files that are there already: root follows no link to one."""
_LINKS_MAX = 40
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
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _allow(fd, mode)
    finally:
        os.close(fd)


def open_new(path: Path, flags: int, mode: int = OWNER.file) -> int:
    """Make a file and return its descriptor. Raises FileExistsError, OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _allow(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def _allow(fd: int, mode: int) -> None:
    """Give what was made the mode that the umask took some of; what came from above (setgid) stays."""
    there = os.fstat(fd).st_mode
    if mode & ~there:
        os.fchmod(fd, stat.S_IMODE(there) | mode)


def ruler_of(path: Path) -> os.stat_result | None:
    """Return the first that is not root's of the directories and links on the way to a name, or of the name itself: its owner may
    change all that follows. None: there is none. Raises OSError."""
    at, left, links = Path("/"), [*path.absolute().parts[1:]], 0
    while left:
        name = left.pop(0)
        if name == "..":
            at = at.parent
            continue
        try:
            facts = os.lstat(at / name)
        except FileNotFoundError:
            return None  # root makes it
        if facts.st_uid:
            return facts
        if stat.S_ISLNK(facts.st_mode) and links < _LINKS_MAX:
            target = Path(os.readlink(at / name))
            at, links = (Path("/") if target.is_absolute() else at), links + 1
            left[:0] = [part for part in target.parts if part != "/"]
        else:
            at /= name
    return None


def report_readable(directory: Path, permissions: Permissions) -> None:
    """Say so when a data directory that was there lets more users in than the setting, or root runs on that of somebody else; it is
    not changed."""
    if not os.geteuid() and (owner := ruler_of(directory)):
        log.warning(
            "root runs on the data directory %s, which uid %d rules over and can have root write elsewhere with: run as that user",
            directory, owner.st_uid,
        )  # fmt: skip
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
