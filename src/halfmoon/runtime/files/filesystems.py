"""Properties of file systems that decide how files may be mapped: allocation, holes, syncs. Knows nothing of stores.

A write through a mapping into a block that the file system cannot allocate raises SIGBUS, which ends the process; on some file
systems, so does a read of a hole.
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
    """Properties of a file system.

    ``keeps``: allocated blocks are written in place, so that a mapped write cannot fail. ``reads_holes``: a mapped read of a
    hole allocates nothing. ``tells``: a sync of the file system reports all failed writes.
    """

    keeps: bool
    reads_holes: bool
    tells: bool = False


_KINDS = {
    **dict.fromkeys(("ext2", "ext3", "ext4", "xfs"), Kind(keeps=True, reads_holes=True, tells=True)),
    **dict.fromkeys(("tmpfs", "ramfs", "devtmpfs"), Kind(keeps=True, reads_holes=False, tells=True)),
    # usually on top of one of the others, which gets the write errors
    "overlay": Kind(keeps=True, reads_holes=False),
}
_OTHER = Kind(keeps=False, reads_holes=False)
"""Copy-on-write, network and unknown file systems."""


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
    """Sync the file system of an open file; False: the result is unknown.

    Linux reports failed writes here since 5.8, to descriptors opened before the failure.
    """
    return _KERNEL >= (5, 8) and _SYNC(fd) == 0


def whole_pages(end: int) -> int:
    """Return an offset rounded up to whole pages, the unit in which a mapping is written."""
    return -(-end // PAGE_BYTES) * PAGE_BYTES


def write_back(fd: int) -> None:
    """Write dirty pages of a file to the device and wait, without a commit of the file system's journal, which delays others.

    Promises nothing: a sync must follow. Raises OSError.
    """
    if _WRITE_BACK is None or _WRITE_BACK(fd, 0, 0, _WRITE_AND_WAIT):
        os.fdatasync(fd)
