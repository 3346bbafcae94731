"""Whose files a command of root works on: it acts as their owner. Changes no owner of anything, so no link can mislead it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halfmoon.runtime.files.permissions import ruler_of


@contextmanager
def as_owner_of(path: Path) -> Iterator[None]:
    """Where root runs a command on a file or directory, act as whoever rules over that name: no link of theirs leads anywhere that
    they could not go, and what is made is theirs. For a process with nothing else to do meanwhile. Raises OSError.
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
