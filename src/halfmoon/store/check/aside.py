"""`Aside`: the folder in a store's directory where a repair puts what it takes out of the store. Deletes nothing of the store's.

Each repair has a folder of its own, ``repaired-<time>``; at most `FOLDERS_MAX` are kept, and the oldest go. No program reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from halfmoon.ports import Disk
from halfmoon.store.log.segments import Segments

FOLDERS_MAX = 4
_FOLDER = re.compile(r"repaired-[0-9]{8}T[0-9]{6}Z(\.[0-9]{1,4})?")
_PIECE_BYTES = 1024 * 1024
_NAMES_MAX = 10_000


def is_folder(name: str) -> bool:
    """Whether a name in a store's directory is that of such a folder."""
    return _FOLDER.fullmatch(name) is not None


class Aside:
    """The folder of one repair, made when the first thing is put into it. ``say`` is told of each."""

    def __init__(self, disk: Disk, now: int, say: Callable[[str], None]) -> None:
        self._disk, self.say = disk, say
        name = datetime.fromtimestamp(now // 1000, UTC).strftime("repaired-%Y%m%dT%H%M%SZ")
        self.folder = next(free for free in _numbered(name) if not disk.exists(free))

    def move(self, path: str) -> None:
        """Move a file or directory into the folder. Waits for the device; raises OSError."""
        kept = self._free(path)
        self._disk.rename(path, kept)
        self._disk.sync_directory(self.folder)
        self._disk.sync_directory(path.rpartition("/")[0])
        self.say(f"{path} is kept as {kept}")

    def copy(self, segments: Segments, start: int, size: int) -> None:
        """Copy bytes of one file of the log into the folder; zeros alone are nothing. Waits for the device; raises OSError."""
        end = start + size
        if not any(_chunks(segments, start, end)):
            return
        kept = self._free(f"{segments.path(segments.base(start))}-{start}")
        copy = self._disk.create(kept, size)
        for at, chunk in enumerate(_chunks(segments, start, end)):
            if chunk:
                copy.write(at * _PIECE_BYTES, chunk)
        copy.sync()
        copy.close()
        self._disk.sync_directory(self.folder)
        self.say(f"bytes {start} to {end} of the log are kept as {kept}")

    def bound(self) -> None:
        """Remove the oldest folders beyond `FOLDERS_MAX`, and say so. Raises OSError."""
        for name in sorted(filter(is_folder, self._disk.list("")))[:-FOLDERS_MAX]:
            self._remove(name)
            self.say(f"{name} is removed: what the last {FOLDERS_MAX} repairs set aside is kept")

    def _remove(self, path: str) -> None:
        if self._disk.is_directory(path):
            for name in self._disk.list(path):
                self._remove(f"{path}/{name}")
        self._disk.remove(path)

    def _free(self, path: str) -> str:
        name = f"{self.folder}/{path.replace('/', '-')}"
        return next(free for free in _numbered(name) if not self._disk.exists(free))


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}.{number}" for number in range(1, _NAMES_MAX))


def _chunks(segments: Segments, start: int, end: int) -> Iterator[bytes]:
    """Yield the pieces of a range, each without the zeros at its end."""
    for at in range(start, end, _PIECE_BYTES):
        yield bytes(segments.view(at, min(_PIECE_BYTES, end - at))).rstrip(b"\0")
