"""`Slots`: a table of slots of 256 bytes in small files, each written in place. Knows nothing of what they hold.

Slot 0 of each file is its header. When a file is full, another follows, twice as large and with a number behind its name, so that
nothing is ever moved. A process killed in the middle of a copy leaves a slot half written: whoever reads a slot checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfmoon.ports import Disk, File

SLOT_BYTES = 256
_SLOTS_FIRST = 256
_SUFFIX = re.compile(r"(?:\.([1-9][0-9]{0,3}))?")


class _SlotFile:
    """One file. ``first`` is the number of its slot 0; ``synced`` says which of its ``written`` writes a sync covered, ``new_name``
    that its name is not known to be on the device.
    """

    __slots__ = ("file", "first", "new_name", "number", "synced", "written")

    def __init__(self, number: int, first: int, file: File) -> None:
        self.number, self.first, self.file = number, first, file
        # What an earlier process wrote is not known to be synced.
        self.written, self.synced, self.new_name = 0, -1, True


class Slots:
    """The table. ``free`` are the slots that hold nothing, taken from the end."""

    def __init__(self, disk: Disk, path: str, header: bytes) -> None:
        self._disk, self._path, self._header = disk, path, header
        self._directory, _, self._name = path.rpartition("/")
        self.files: list[_SlotFile] = []
        self.free: list[int] = []
        self._count = 0

    def load(self) -> Iterator[tuple[int, bytes]]:
        """Find the files, and yield the number and bytes of each slot. The caller adds the empty ones to ``free``."""
        names = [name[len(self._name) :] for name in self._disk.list(self._directory) if name.startswith(self._name)]
        for number in sorted(int(match[1] or 0) for suffix in names if (match := _SUFFIX.fullmatch(suffix))):
            data = self._disk.read(self._path_of(number)) or b""
            if len(data) < SLOT_BYTES:
                continue  # the process was killed while it created the file
            first = self._count
            self.files.append(_SlotFile(number, first, self._disk.open(self._path_of(number))))
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
            number = self.files[-1].number + 1 if self.files else 0
            file = self._disk.create(self._path_of(number), slots * SLOT_BYTES)
            file.write(0, self._header.ljust(SLOT_BYTES, b"\0"))
            self.files.append(_SlotFile(number, self._count, file))
            self.free = [*range(self._count + slots - 1, self._count, -1), *self.free]
            self._count += slots
        return self.free.pop()

    def write(self, slot: int, data: bytes) -> None:
        """Write a slot and fill it up with zeros. Raises OSError when the disk is full."""
        slot_file = next(slot_file for slot_file in reversed(self.files) if slot_file.first <= slot)
        slot_file.file.write((slot - slot_file.first) * SLOT_BYTES, data.ljust(SLOT_BYTES, b"\0"))
        slot_file.written += 1

    def sync(self) -> None:
        """Wait until what was written, by this process or one before, is on the device. May be called from another thread, and from
        two at once: each waits until everything is there that was written before its call.
        """
        files, new_name = list(self.files), False
        for slot_file in files:
            written = slot_file.written  # read before the sync: a write that comes meanwhile is not covered
            if slot_file.synced < written:
                slot_file.file.sync()
                slot_file.synced = max(slot_file.synced, written)
            new_name |= slot_file.new_name
        if new_name:
            self._disk.sync_directory(self._directory)
            for slot_file in files:
                slot_file.new_name = False

    def close(self) -> None:
        """Let go of the files."""
        for slot_file in self.files:
            slot_file.file.close()
