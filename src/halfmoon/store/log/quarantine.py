"""`Quarantine`: keeps what recovery cuts off the log, so that a repair destroys nothing that was readable.

Whole files are moved into the folder, rests of files copied. The folder is bounded: the oldest files are removed. What is moved,
cannot be kept (on a full disk) or is removed is logged. Halfmoon never reads the folder; it is for people.
"""

from __future__ import annotations

import logging

from halfmoon.ports import Disk
from halfmoon.store.layout import QUARANTINE
from halfmoon.store.log.segments import Segments

log = logging.getLogger("halfmoon.store")

KEPT_MAX = 16
"""Files in the folder. A start cuts at most the files of the log that a loss left behind a missing one, most often none."""
_PIECE_BYTES = 1024 * 1024
_NAMES_MAX = 1000


class Quarantine:
    """The folder of one store."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def file(self, path: str, reason: str) -> None:
        """Move a file into the folder, and say why. Raises OSError when it cannot be moved: it is where it was then."""
        size = self._disk.file_size(path)
        kept = self._free_name(path)
        self._disk.rename(path, kept)
        log.warning("%s, %d bytes, is kept as %s: %s", path, size, kept, reason)
        self._bound()

    def rest(self, segments: Segments, start: int, reason: str) -> None:
        """Copy what a file holds from an offset on, zeros at its end left out, and say why it is cut. Zeros alone are nothing."""
        base = segments.base(start)
        end = base + segments.data_end(base)
        while end > start:
            begin = max(start, end - _PIECE_BYTES)
            chunk = bytes(segments.view(begin, end - begin)).rstrip(b"\0")
            if chunk:
                end = begin + len(chunk)
                break
            end = begin
        if end <= start:
            return
        path, kept = segments.path(base), self._free_name(f"{segments.path(base)}-{start}")
        place = f"{path}, bytes {start - base} to {end - base} (physical offsets {start} to {end})"
        try:
            copy = self._disk.create(kept, end - start)
            for at in range(start, end, _PIECE_BYTES):
                copy.write(at - start, bytes(segments.view(at, min(_PIECE_BYTES, end - at))))
        except OSError as exc:
            # Most often the disk is full, and the store has to open all the same.
            self._disk.remove(kept)
            log.warning("%s: %d bytes are cut and cannot be kept (%s): %s", place, end - start, exc, reason)
            return
        copy.close()
        log.warning("%s: %d bytes are cut and kept as %s: %s", place, end - start, kept, reason)
        self._bound()

    def span(self, segments: Segments, start: int, end: int, reason: str) -> str:
        """Copy the bytes of the log between two offsets into one file, durably, and say why they are cut; return its path.

        Waits for the device. Raises OSError: nothing is kept then.
        """
        kept = self._free_name(f"{segments.path(segments.base(start))}-{start}")
        try:
            copy, at = self._disk.create(kept, end - start), start
            while at < end:
                chunk = bytes(segments.view(at, min(_PIECE_BYTES, end - at)))
                copy.write(at - start, chunk)
                at += len(chunk)
            copy.sync()
            copy.close()
            self._disk.sync_directory(QUARANTINE)
        except OSError:
            self._disk.remove(kept)
            raise
        log.warning("physical offsets %d to %d of the log are kept as %s: %s", start, end, kept, reason)
        self._bound()
        return kept

    def _free_name(self, path: str) -> str:
        name = f"{QUARANTINE}/{path.replace('/', '-')}"
        names = (name if not number else f"{name}.{number}" for number in range(_NAMES_MAX))
        return next((free for free in names if not self._disk.exists(free)), name)

    def _bound(self) -> None:
        paths = [f"{QUARANTINE}/{name}" for name in self._disk.list(QUARANTINE)]
        paths = [path for path in paths if not self._disk.is_directory(path)]  # an earlier copy is no file of this store
        paths.sort(key=lambda path: (self._disk.modified_ms(path), path))
        for path in paths[:-KEPT_MAX]:
            self._disk.remove(path)
            log.warning("%s is removed: no more than %d files are kept there", path, KEPT_MAX)
