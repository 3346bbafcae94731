"""Effective user of a command of root: the owner of the files that it works on. Changes no owner, so no link can mislead it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfmoon.runtime.files.permissions import ruler_of


@contextmanager
def as_owner_of(path: Path) -> Iterator[None]:
    """Act as the owner of a file or directory where root runs the command.

    No link of the owner's leads anywhere that they could not go, and files that are made are theirs. For a process with nothing
    else to do meanwhile. Raises OSError.
    """
    owner = None if os.geteuid() else ruler_of(path)
    if owner is None:
        yield
        return
    groups, group = os.getgroups(), os.getegid()
    os.setgroups([owner.st_gid])
    os.setegid(owner.st_gid)
    os.seteuid(owner.st_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)
