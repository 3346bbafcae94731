"""`CheckSlots`: which half messages their producers were asked about, when, and what they said. 128 bytes a half message.

Layout of a slot (big endian), at 128 x the half queue offset::

    0 low 16 bits of the half record's physical offset | 2 checks that count u16 | 4 checks sent u16 | 6 crc u16: of the rest
    (with the whole offset) | 8 fifteen times: sent, seconds u32 | answer u8 (0 none yet) | first 3 bytes of the producer's hash

Check number n (from 0) lies in place n mod 15. Not derived from the log and not needed for correctness: what is lost, torn or of
an older form (another crc) reads as never checked, and costs checks that were made already. Files are small and only there where
somebody was asked.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from halfmoon.ports import Disk, File
from halfmoon.store.layout import CHECK, CHECK_SLOT, CHECK_SLOT_BYTES, CHECKS, file_name, file_offset

HISTORY = 15
"""Checks of one message that are remembered."""
SENT_MAX = 0xFFFF
"""Also what pardons all of them."""
FILE_SLOTS = 16_384
"""2 MiB a file."""
_OPEN_MAX = 64
"""Files open at once; one over it closes the one that was used longest ago."""
_EMPTY = bytes(HISTORY * CHECK.size)


class Check(NamedTuple):
    """One check that was sent."""

    sent_s: int
    """When, seconds since the epoch."""
    answer: int
    """0: none yet; else what the broker gave to `CheckSlots.answered`."""
    producer: int
    """24 bits of a hash of the producer that was asked."""


class CheckTable(NamedTuple):
    """Checks of one half message."""

    sent: int
    counted: int
    """Those that were sent and not pardoned."""
    history: list[Check]
    """The last of them, oldest first."""


class CheckSlots:
    """The slots, by half queue offset. ``physical_offset`` tells a slot of another half message with the same index."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file_bytes = FILE_SLOTS * CHECK_SLOT_BYTES
        self._open: dict[int, File] = {}
        self.dirty: dict[int, File] = {}
        """Files written since they were last taken for a sync, by offset."""
        self._bases: set[int] = set()
        """Offsets of the files that are there."""
        self._new_names = False

    def load(self) -> None:
        """Find the files; one of another size is removed."""
        for name in self._disk.list(CHECKS):
            base = file_offset(name)
            if base is None:
                continue
            if self._disk.file_size(f"{CHECKS}/{name}") == self._file_bytes and base % self._file_bytes == 0:
                self._bases.add(base)
            else:
                self._disk.remove(f"{CHECKS}/{name}")

    def checks(self, index: int, physical_offset: int) -> CheckTable:
        """Return how many checks were sent and how many count, and the last of them, oldest first."""
        counted, sent, history = self._read(index, physical_offset)
        newest = [
            Check(sent_s, rest[0], int.from_bytes(rest[1:], "big"))
            for number in range(max(0, sent - HISTORY), sent)
            for sent_s, rest in [CHECK.unpack_from(history, number % HISTORY * CHECK.size)]
        ]
        return CheckTable(sent, counted, newest)

    def checked(self, index: int, physical_offset: int, sent_s: int, producer: int) -> None:
        """Enter a check that was sent now. Raises OSError when the disk is full."""
        counted, sent, history = self._read(index, physical_offset)
        number = min(sent, SENT_MAX - 1)
        CHECK.pack_into(history, number % HISTORY * CHECK.size, sent_s & 0xFFFFFFFF, (producer & 0xFFFFFF).to_bytes(4, "big"))
        self._write(index, physical_offset, min(counted + 1, SENT_MAX), number + 1, history)

    def answered(self, index: int, physical_offset: int, answer: int, *, back: int = 0, pardons: int = 0) -> None:
        """Enter what came of a check, 1 to 255: of the last, or of that ``back`` checks before it, if it is remembered.

        ``pardons``: so many of the checks that were sent do not count any more. Raises OSError when the disk is full.
        """
        if not 0 < answer < 256:
            raise ValueError(f"answer {answer}")
        counted, sent, history = self._read(index, physical_offset)
        if 0 <= back < min(sent, HISTORY):
            history[(sent - 1 - back) % HISTORY * CHECK.size + 4] = answer
            self._write(index, physical_offset, max(0, counted - pardons), sent, history)

    def drop_before(self, index: int) -> list[str]:
        """Forget the files whose slots all lie below an index; return their paths, for somebody else to remove."""
        gone = sorted(base for base in self._bases if base + self._file_bytes <= index * CHECK_SLOT_BYTES)
        for base in gone:
            self._bases.discard(base)
            self.dirty.pop(base, None)
            if base in self._open:
                self._open.pop(base).close()
        return [f"{CHECKS}/{file_name(base)}" for base in gone]

    def take_dirty(self) -> list[File]:
        """Return the files written since the last call, for a sync."""
        files = list(self.dirty.values())
        self.dirty.clear()
        return files

    def take_new_names(self) -> bool:
        """Whether files were made since the last call."""
        made, self._new_names = self._new_names, False
        return made

    def _read(self, index: int, physical_offset: int) -> tuple[int, int, bytearray]:
        file, at = self._file(index), index * CHECK_SLOT_BYTES % self._file_bytes
        if file is not None:
            slot = file.view(at, CHECK_SLOT_BYTES)
            low, counted, sent, crc = CHECK_SLOT.unpack_from(slot)
            history = bytearray(slot[CHECK_SLOT.size :])
            if sent and low == physical_offset & 0xFFFF and crc == _crc(physical_offset, counted, sent, history):
                return counted, sent, history
        return 0, 0, bytearray(_EMPTY)

    def _write(self, index: int, physical_offset: int, counted: int, sent: int, history: bytearray) -> None:
        base = index * CHECK_SLOT_BYTES // self._file_bytes * self._file_bytes
        file = self._file(index)
        if file is None:
            file = self._disk.create(f"{CHECKS}/{file_name(base)}", self._file_bytes)
            self._bases.add(base)
            self._keep(base, file)
            self._new_names = True
        low = physical_offset & 0xFFFF
        head = CHECK_SLOT.pack(low, counted, sent, _crc(physical_offset, counted, sent, history))
        file.write(index * CHECK_SLOT_BYTES - base, head + history)
        self.dirty[base] = file

    def _file(self, index: int) -> File | None:
        base = index * CHECK_SLOT_BYTES // self._file_bytes * self._file_bytes
        if base not in self._bases:
            return None
        file = self._open.pop(base, None) or self._disk.open(f"{CHECKS}/{file_name(base)}")
        self._keep(base, file)
        return file

    def _keep(self, base: int, file: File) -> None:
        if len(self._open) >= _OPEN_MAX:
            oldest = next(iter(self._open))
            self._open.pop(oldest)  # not closed: a sync may still hold it, and its mapping goes with the last who does
        self._open[base] = file


def _crc(physical_offset: int, counted: int, sent: int, history: bytearray) -> int:
    return crc32(history, crc32(b"%d %d %d" % (physical_offset, counted, sent))) & 0xFFFF
