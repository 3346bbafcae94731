"""Permissions of new files and directories: owner only unless a setting says otherwise, independent of the umask.

The mode is set at creation, without a moment of wider access. Existing files stay as they are, and are reported.

If root works in another user's directory, the owner can replace any name by a link between check and use. Commands therefore act
as the owner (`halfmoon.programs.ownership`), modes are changed through descriptors, and root follows no links (`NO_LINKS`).
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
    """Modes of new directories and files."""

    directory: int
    file: int


PERMISSIONS = {
    "owner": Permissions(0o700, 0o600),
    "group": Permissions(0o750, 0o640),
    "all": Permissions(0o755, 0o644),
}
"""Permissions by value of the setting ``readable_by``."""
OWNER = PERMISSIONS["owner"]
NO_LINKS = 0 if os.geteuid() else os.O_NOFOLLOW
"""Flag to open existing files: root follows no links."""
_LINKS_MAX = 40
_ADVICE = {OWNER: "go-rwx", PERMISSIONS["group"]: "g-w,o-rwx", PERMISSIONS["all"]: "go-w"}


def make_directory(path: Path, mode: int = OWNER.directory) -> None:
    """Create a directory and its missing parents with one mode; existing ones keep theirs.

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
        return  # created by another process meanwhile
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _allow(fd, mode)
    finally:
        os.close(fd)


def open_new(path: Path, flags: int, mode: int = OWNER.file) -> int:
    """Create a file and return its descriptor. Raises FileExistsError, OSError."""
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        _allow(fd, mode)
    except OSError:
        os.close(fd)
        raise
    return fd


def _allow(fd: int, mode: int) -> None:
    """Restore the mode bits that the umask removed; inherited bits (setgid) stay."""
    there = os.fstat(fd).st_mode
    if mode & ~there:
        os.fchmod(fd, stat.S_IMODE(there) | mode)


def ruler_of(path: Path) -> os.stat_result | None:
    """Return the first directory or link on the path to a name, or the name itself, that does not belong to root.

    Its owner can replace everything below. None: all belong to root. Raises OSError.
    """
    at, left, links = Path("/"), [*path.absolute().parts[1:]], 0
    while left:
        name = left.pop(0)
        if name == "..":
            at = at.parent
            continue
        try:
            facts = os.lstat(at / name)
        except FileNotFoundError:
            return None  # created by root
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
    """Warn if an existing data directory is open to more users than the setting allows, or root uses another user's.

    The directory is not changed.
    """
    if not os.geteuid() and (owner := ruler_of(directory)):
        log.warning(
            "running as root on the data directory %s of uid %d, who can redirect root's writes by links: run as that user",
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
    """Return whether a directory's mode allows more than intended to users who can reach it."""
    wider = directory.stat().st_mode & 0o077 & ~mode
    for above in directory.resolve().parents:
        there = above.stat().st_mode
        if not there & 0o001:
            wider &= ~0o007
        if not there & 0o011:
            wider &= ~0o070
    return wider != 0
