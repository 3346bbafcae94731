"""The files of the commit log before recovery reads them: which are missing, cut short, or no log files. Reads no record.

A power loss can only take file names that were not synced, behind the checkpoint's durable offset; the files behind such a name
hold nothing that was promised and go into quarantine. Any other missing file held messages: the start refuses.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from halfmoon.errors import StoreError
from halfmoon.ports import Disk
from halfmoon.store.layout import CHECKPOINT, COMMIT_LOG, DIRECTORIES, STARTING_OVER, file_offset
from halfmoon.store.log.quarantine import Quarantine
from halfmoon.store.log.segments import Segments

log = logging.getLogger("halfmoon.store")


def load_log(
    disk: Disk, segments: Segments, quarantine: Quarantine, *, written_offset: int, lost_from: int | None, noted: bool
) -> int | None:  # fmt: skip
    """Find the files of the log; return where the one begins that was cut short and is made as long again, None: there is none.

    ``written_offset``: there were records, and so files, up to here. ``lost_from``: names from this offset on may be lost; None: no
    name can be. ``noted``: files of the log were made here with the size in the settings.

    Raises StoreError, naming the file and what to do, when one is missing or has another size; OSError when the disk fails.
    """
    offsets, cut_short = _usable_files(disk, segments, quarantine, noted=noted)
    gap = _first_gap(offsets, segments.file_bytes, lost_from)
    if gap is not None:
        place, missing = gap
        if lost_from is None or missing < lost_from:
            raise StoreError(_gone(segments, missing))
        for offset in offsets[place:]:
            quarantine.file(segments.path(offset), f"the file before it, {segments.path(missing)}, was lost before it was synced")
        segments.directory_dirty = True
    segments.load()
    if written_offset > (segments.end if segments.last is not None else 0):
        raise StoreError(_gone(segments, segments.base(written_offset - 1)))
    return cut_short


HALF_MOVED = (
    "the copy in this directory was to start over, and that is not finished: start `halfmoon broker` with --slave-of or"
    " --lease on it once more"
)


def check_directories(disk: Disk) -> None:
    """Check that no file has the name of one of the store's directories, and that the store is not half moved aside.

    Raises StoreError.
    """
    if disk.exists(STARTING_OVER):
        raise StoreError(HALF_MOVED)
    for name in DIRECTORIES:
        if disk.exists(name) and not disk.is_directory(name):
            raise StoreError(f"{name} is a file where the store needs a directory: move it away")


def _gone(segments: Segments, missing: int) -> str:
    path = segments.path(segments.base(missing))
    return (
        f"{path} is missing, and held messages: put it back. If it is lost for good, `halfmoon fsck --repair` puts an empty one"
        " in its place: the messages of that file are lost then, and all others stay."
        f" Another setting of mappedFileSizeCommitLog, or the {CHECKPOINT} of another store, looks the same"
    )


def _first_gap(offsets: list[int], file_bytes: int, lost_from: int | None) -> tuple[int, int] | None:
    """Return the index in ``offsets`` of the first file whose predecessor is missing, and the offset of that one; None: no gap."""
    if offsets and lost_from is not None and offsets[0] > lost_from:
        return 0, lost_from
    for place, (before, after) in enumerate(pairwise(offsets), 1):
        if after != before + file_bytes:
            return place, before + file_bytes
    return None


def _usable_files(disk: Disk, segments: Segments, quarantine: Quarantine, *, noted: bool) -> tuple[list[int], int | None]:
    """Return the offsets of the log's files, sorted, each of the right size, and of the one that was cut short.

    What is no file of the log goes into quarantine.
    """
    size = segments.file_bytes
    offsets = sorted(offset for name in disk.list(COMMIT_LOG) if (offset := file_offset(name)) is not None)
    sizes = {offset: disk.file_size(segments.path(offset)) for offset in offsets}
    first_whole = next((offset for offset in offsets if sizes[offset] == size), None)
    size_known = noted or first_whole is not None
    usable, cut_short = list[int](), None
    for offset in offsets:
        path, bytes_there, is_last = segments.path(offset), sizes[offset], offset == offsets[-1]
        if bytes_there == size or (bytes_there == 0 and is_last):
            usable.append(offset)
        elif size_known and (offset - (first_whole or 0)) % size:
            quarantine.file(path, f"it is no file of the log, whose files have {size} bytes each")
        elif size_known and bytes_there < size and is_last:
            disk.resize(path, size)
            log.warning("%s had %d bytes of %d: it was cut short, and is extended again", path, bytes_there, size)
            usable.append(offset)
            cut_short = offset
        else:
            raise StoreError(
                f"{path} has {bytes_there} bytes, but the files of the log have {size} (mappedFileSizeCommitLog):"
                " the size of files cannot change once there are messages."
                f" If the file was cut short, make it as long again: truncate -s {size} {path}"
            )
    while usable and sizes[usable[-1]] == 0:  # the process was killed while it created the file
        disk.remove(segments.path(usable.pop()))
        segments.directory_dirty = True
    return usable, cut_short
