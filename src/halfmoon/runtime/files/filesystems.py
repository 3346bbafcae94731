"""What a file system does with blocks that are not there, which decides how its files may be mapped. Knows nothing of stores.

A write through a mapping into a block that the file system cannot give is no error but a signal, SIGBUS, that ends the process; on
some file systems so is a read of a hole.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = mmap.PAGESIZE
_SYSTEM = ctypes.CDLL(None, use_errno=True)
_SYNC = _SYSTEM.syncfs
_WRITE_BACK = getattr(_SYSTEM, "sync_file_range", None)  # Linux has it
if _WRITE_BACK is not None:
    _WRITE_BACK.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_WRITE_AND_WAIT = 1 | 2 | 4
_KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))


class Kind(NamedTuple):
    """``keeps``: a block that was given once is written in place, so that a mapped write into it cannot fail. ``reads_holes``: a
    mapped read of a hole takes no room. ``tells``: a sync of all of it fails when any write to it did.
    """

    keeps: bool
    reads_holes: bool
    tells: bool = False


_KINDS = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs"), Kind(keeps=True, reads_holes=True, tells=True)),
    **dict.fromkeys(("tmpfs", "ramfs", "devtmpfs"), Kind(keeps=True, reads_holes=False, tells=True)),
    # In practice over one of the others, which is the one that is told of failed writes.
    "overlay": Kind(keeps=True, reads_holes=False),
}
_OTHER = Kind(keeps=False, reads_holes=False)
"""Those that copy on write, those of a network, and those that are not known."""


@lru_cache(maxsize=16)
def kind_of(device: int) -> Kind:
    """Return the kind of the file system with a device number (``st_dev``)."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return _OTHER
    for line in lines:
        before, _, behind = line.partition(" - ")
        fields = before.split()
        if len(fields) > 2 and fields[2] == wanted and behind:
            return _KINDS.get(behind.split()[0], _OTHER)
    return _OTHER


def sync_file_system(fd: int) -> bool:
    """Wait until everything that was written to the file system of an open file is on its device; False: nobody knows.

    Linux tells of failed writes here since 5.8; it tells who opened the file before they failed.
    """
    return _KERNEL >= (5, 8) and _SYNC(fd) == 0


def whole_pages(end: int) -> int:
    """Return an offset rounded up to whole pages: a mapping is written a page at a time, however small the blocks are."""
    return -(-end // PAGE_BYTES) * PAGE_BYTES


def write_back(fd: int) -> None:
    """Write what is dirty of a file to the device and wait, without a commit of the file system's journal, which holds up others.

    Promises nothing: a sync must follow. Raises OSError.
    """
    if _WRITE_BACK is None or _WRITE_BACK(fd, 0, 0, _WRITE_AND_WAIT):
        os.fdatasync(fd)
