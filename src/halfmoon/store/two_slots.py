"""`TwoSlots`: a small file of two slots, written in turn: a process killed in the middle of one leaves the other whole.

Layout of a slot (big endian): magic 8 | version u32 | flags u32 | sequence u64 | what it holds | crc u32 of all before. Reads and
writes one file of 4096 bytes; knows nothing of what the slots hold, nor what lies between them.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.ports import Disk, File

FILE_BYTES = 4096
_HEAD = Struct(">8sIIQ")
_CRC = Struct(">I")
_MAGIC, _VERSION = b"halfmoon", 1


class Slot(NamedTuple):
    """A slot that is whole. The one of the higher sequence was written later."""

    sequence: int
    flags: int
    held: bytes


class TwoSlots:
    """The file. ``sequence`` is the last slot's, 0 before any; ``file`` is None until something is written."""

    def __init__(self, disk: Disk, path: str, places: tuple[int, int], held_bytes: int) -> None:
        """``places`` are where the slots begin, each with ``held_bytes`` of its own."""
        self._disk, self._path, self._places = disk, path, places
        self._packed_bytes = _HEAD.size + held_bytes
        self.sequence = 0
        self.file: File | None = None

    def read(self) -> tuple[bytes, list[Slot]] | None:
        """Return the whole file and its slots that are whole, the newest first; None: there is no such file, or it is too short.

        Nothing is changed; who goes on from a slot sets ``sequence``.
        """
        data = self._disk.read(self._path)
        if data is None or len(data) < FILE_BYTES:
            return None
        slots = []
        for at in self._places:
            packed = data[at : at + self._packed_bytes]
            magic, version, flags, sequence = _HEAD.unpack_from(packed)
            if magic == _MAGIC and version == _VERSION and _CRC.unpack_from(data, at + len(packed))[0] == crc32(packed):
                slots.append(Slot(sequence, flags, packed[_HEAD.size :]))
        return data, sorted(slots, reverse=True)

    def write(self, flags: int, held: bytes) -> File:
        """Write the next slot, and return the file, for what else stands in it; `sync` makes it durable."""
        if self.file is None:
            usable = self._disk.exists(self._path) and self._disk.file_size(self._path) == FILE_BYTES
            self.file = self._disk.open(self._path) if usable else self._disk.create(self._path, FILE_BYTES)
        self.sequence += 1
        packed = _HEAD.pack(_MAGIC, _VERSION, flags, self.sequence) + held
        self.file.write(self._places[self.sequence % 2], packed + _CRC.pack(crc32(packed)))
        return self.file

    def sync(self) -> bool:
        """Wait until what was written is on the device; False: nothing was. May be called from another thread."""
        if self.file is None:
            return False
        self.file.sync()
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self.file is not None:
            self.file.close()
            self.file = None
