"""`Slots`: a table of slots of 256 bytes in small files, each written in place. Knows nothing of what they hold.

Slot 0 of each file is its header. A full file is followed by another one, twice as large and with a number behind its name, so that
nothing is ever moved. A process killed in the middle of a copy leaves a slot half written: whoever reads one checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfmoon.ports import Disk, File

SLOT_BYTES = 256
_SLOTS_FIRST = 256
_NUMBER = re.compile(r"\.([1-9][0-9]{0,3})")


class _Part:
    """One file of slots. ``first`` is the number of its slot 0; ``synced`` says which of its ``written`` writes a sync covered, and
    ``fresh`` that its name is not known to be on the device.
    """

    __slots__ = ("file", "first", "fresh", "number", "synced", "written")

    def __init__(self, number: int, first: int, file: File) -> None:
        self.number, self.first, self.file = number, first, file
        self.written, self.synced, self.fresh = 0, -1, True  # what a process before wrote is not known to be synced


class Slots:
    """The table. ``free`` are the slots that hold nothing, taken from the end."""

    def __init__(self, disk: Disk, path: str, header: bytes) -> None:
        self._disk, self._path, self._header = disk, path, header
        self._directory = path.rpartition("/")[0]
        self.parts: list[_Part] = []
        self.free: list[int] = []
        self._count = 0

    def load(self) -> Iterator[tuple[int, bytes]]:
        """Find the files, and yield the number and bytes of each slot; whoever finds nothing in one adds it to ``free``."""
        name = self._path.rpartition("/")[2]
        found = [each[len(name) :] for each in self._disk.list(self._directory) if each.startswith(name)]
        numbers = sorted(
            int(match[1]) if (match := _NUMBER.fullmatch(each)) else 0 for each in found if not each or _NUMBER.fullmatch(each)
        )
        for number in numbers:
            data = self._disk.read(self._path_of(number)) or b""
            if len(data) < SLOT_BYTES:
                continue  # it was cut off while it was made
            first = self._count
            self.parts.append(_Part(number, first, self._disk.open(self._path_of(number))))
            self._count += len(data) // SLOT_BYTES
            for slot in range(1, len(data) // SLOT_BYTES):
                yield first + slot, data[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES]
        self.free.reverse()

    def _path_of(self, number: int) -> str:
        return f"{self._path}.{number}" if number else self._path

    def take(self) -> int:
        """Return a free slot, adding a file when there is none. Raises OSError when the disk is full."""
        if not self.free:
            slots = max(_SLOTS_FIRST, self._count)
            number = self.parts[-1].number + 1 if self.parts else 0
            file = self._disk.create(self._path_of(number), slots * SLOT_BYTES)
            file.write(0, self._header.ljust(SLOT_BYTES, b"\0"))
            self.parts.append(_Part(number, self._count, file))
            self.free = [*range(self._count + slots - 1, self._count, -1), *self.free]
            self._count += slots
        return self.free.pop()

    def write(self, slot: int, data: bytes) -> None:
        """Write a slot, zeros behind what is given. Raises OSError when the disk is full."""
        part = next(part for part in reversed(self.parts) if part.first <= slot)
        part.file.write((slot - part.first) * SLOT_BYTES, data.ljust(SLOT_BYTES, b"\0"))
        part.written += 1

    def sync(self) -> None:
        """Wait until what was written, by this process or one before, is on the device. May be called from another thread, and from
        two at once: each waits until all is there that was written before its call.
        """
        parts, fresh = list(self.parts), False
        for part in parts:
            written = part.written
            if part.synced < written:
                part.file.sync()
                part.synced = max(part.synced, written)
            fresh |= part.fresh
        if fresh:
            self._disk.sync_directory(self._directory)
            for part in parts:
                part.fresh = False

    def close(self) -> None:
        """Let go of the files."""
        for part in self.parts:
            part.file.close()
