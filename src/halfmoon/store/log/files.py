"""The files of the commit log before a start reads them: what is missing, too short or no log file at all. Reads no record.

A name that a power loss took can only be one that was not synced yet, behind what the checkpoint knows to be durable; the files
behind it hold nothing that was promised and are set aside. Anything else that is missing held messages: the start refuses.
"""

from __future__ import annotations

import logging

from halfmoon.errors import StoreError
from halfmoon.ports import Disk
from halfmoon.store.layout import CHECKPOINT, COMMIT_LOG, CONSUME_QUEUE, DIRECTORIES, file_offset
from halfmoon.store.log.segments import Segments
from halfmoon.store.log.set_aside import Aside

log = logging.getLogger("halfmoon.store")


def load_log(disk: Disk, segments: Segments, aside: Aside, *, known_to: int, lost_from: int | None, noted: bool) -> int | None:
    """Find the files of the log; return where one begins that was cut short and is as long again, None: there is none.

    ``known_to``: there were records, and so files, up to this offset. ``lost_from``: names from this offset on may be lost; None:
    no name can be. ``noted``: files of the log were made here with the size of the settings.

    Raises StoreError, naming the file and what to do, when one is missing or has another size; OSError when the disk fails.
    """
    check_directories(disk)
    offsets, doubtful_from = _offsets(disk, segments, aside, noted=noted)
    size = segments.file_bytes
    for place, offset in enumerate(offsets):
        missing = offset - size if place and offset != offsets[place - 1] + size else None
        if not place and lost_from is not None and offset > lost_from:
            missing = lost_from
        if missing is None:
            continue
        missing = offsets[place - 1] + size if place else missing
        if lost_from is None or missing < lost_from:
            raise StoreError(_gone(segments, missing))
        for each in offsets[place:]:
            aside.file(segments.path(each), f"the file before it, {segments.path(missing)}, was lost before it was synced")
        segments.directory_dirty = True
        break
    segments.load()
    if known_to > (segments.end if segments.last is not None else 0):
        raise StoreError(_gone(segments, segments.base(known_to - 1)))
    return doubtful_from


def check_directories(disk: Disk) -> None:
    """See that no file has the name of one of the store's directories. Raises StoreError."""
    for name in DIRECTORIES:
        if disk.exists(name) and not disk.is_directory(name):
            raise StoreError(f"{name} is a file where a directory of the store is to be: move it away")


def _gone(segments: Segments, missing: int) -> str:
    path = segments.path(segments.base(missing))
    return (
        f"{path} is missing, and held messages: put it back. If it is lost for good, put an empty one in its place"
        f" (truncate -s {segments.file_bytes} {path}) and remove {CONSUME_QUEUE}, which the next start makes anew: the messages of"
        f" that file are lost then, and all others stay."
        f" Other settings of mappedFileSizeCommitLog, or a {CHECKPOINT} of another store, look the same"
    )


def _offsets(disk: Disk, segments: Segments, aside: Aside, *, noted: bool) -> tuple[list[int], int | None]:
    """Return the offsets of the log's files, sorted, each of the right size, and of the one that was cut short.

    What is no file of the log is set aside.
    """
    size = segments.file_bytes
    offsets = sorted(offset for name in disk.list(COMMIT_LOG) if (offset := file_offset(name)) is not None)
    sizes = {offset: disk.file_size(segments.path(offset)) for offset in offsets}
    whole = [offset for offset in offsets if sizes[offset] == size]
    found, doubtful_from = [], None
    for offset in offsets:
        path, bytes_there = segments.path(offset), sizes[offset]
        is_last = offset == offsets[-1]
        if offset in whole or (bytes_there == 0 and is_last):
            found.append(offset)
        elif (whole or noted) and (offset - (whole or [0])[0]) % size:
            aside.file(path, f"it is no file of the log, whose files have {size} bytes each")
        elif (whole or noted) and bytes_there < size and is_last:
            disk.resize(path, size)
            log.warning("%s had %d bytes of %d: it was cut short, and is as long again", path, bytes_there, size)
            found.append(offset)
            doubtful_from = offset
        else:
            raise StoreError(
                f"{path} has {bytes_there} bytes, but the files of the log have {size} (mappedFileSizeCommitLog):"
                " the size of files cannot change once there are messages."
                f" If the file was cut short, make it as long again: truncate -s {size} {path}"
            )
    while found and sizes[found[-1]] == 0:  # cut off while it was made
        disk.remove(segments.path(found.pop()))
        segments.directory_dirty = True
    return found, doubtful_from
