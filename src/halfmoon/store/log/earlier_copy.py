"""The earlier copy of a slave that starts over: all that its store has, moved into one folder of ``quarantine``. Deletes nothing.

A mark is saved first and removed last. While it is there the directory does not open, and `finish` goes on where the process ended.
The directory's id goes with the copy: the slave is another member from then on, which no lease names.
There is room for one copy: more could fill the disk, and whether the first one can go is for a person to decide.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.ports import Disk
from halfmoon.store.layout import ABORT, CHECKPOINT, DIRECTORIES, LOCK, QUARANTINE, RESTORED, STARTING_OVER

log = logging.getLogger("halfmoon.store")

COPY = f"{QUARANTINE}/copy"
_MOVED = (*(name for name in DIRECTORIES if name != QUARANTINE), CHECKPOINT, ABORT, RESTORED)


class EarlierCopy(NamedTuple):
    """Result of a move. ``size_bytes`` counts files as long as they were made, with the room for what was not written yet."""

    path: str
    files: int
    size_bytes: int


def refusal(disk: Disk) -> str | None:
    """Return why a slave does not start over; None: it can."""
    if not disk.exists(COPY):
        return None
    return f"{COPY} in its directory holds an earlier copy: once nobody needs that, remove it, and start again"


def set_aside(disk: Disk, reason: str) -> EarlierCopy:
    """Leave a directory without a store; say where it is now, how large, and why. Waits for the device.

    Raises:
        StoreLocked: a process has the directory.
        StoreError: there is an earlier copy; nothing has changed.
        OSError: the disk fails; the next `finish` goes on.
    """
    lock = disk.lock(LOCK)
    try:
        if not disk.exists(STARTING_OVER):
            if (why := refusal(disk)) is not None:
                raise StoreError(why)
            disk.save(STARTING_OVER, reason.encode(), keep_previous=False)
        return _move(disk)
    finally:
        lock.release()


def finish(disk: Disk) -> EarlierCopy | None:
    """Go on with a move that was not finished; None: there is none. Waits for the device. Raises as `set_aside`."""
    if not disk.exists(STARTING_OVER):
        return None
    lock = disk.lock(LOCK)
    try:
        return _move(disk)
    finally:
        lock.release()


def _move(disk: Disk) -> EarlierCopy:
    for name in _MOVED:
        if disk.exists(name):
            disk.rename(name, _free(disk, f"{COPY}/{name}"))
    disk.sync_directory(COPY)
    disk.sync_directory(QUARANTINE)
    disk.sync_directory("")
    files, size = _measured(disk, COPY)
    reason = (disk.read(STARTING_OVER) or b"").decode(errors="replace")
    log.warning("starting over: %d files of the earlier copy, %d bytes, are kept in %s: %s", files, size, COPY, reason)
    disk.remove(STARTING_OVER)
    disk.sync_directory("")
    return EarlierCopy(COPY, files, size)


def _free(disk: Disk, path: str) -> str:
    number = 0
    while disk.exists(path if not number else f"{path}.{number}"):
        number += 1
    return path if not number else f"{path}.{number}"


def _measured(disk: Disk, path: str) -> tuple[int, int]:
    """Return the number of files in a folder, and of their bytes."""
    files = size = 0
    for name in disk.list(path):
        inner = f"{path}/{name}"
        more = _measured(disk, inner) if disk.is_directory(inner) else (1, disk.file_size(inner))
        files, size = files + more[0], size + more[1]
    return files, size
