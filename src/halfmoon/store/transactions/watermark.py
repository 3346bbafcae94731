"""The watermark: how far the files of the transaction index were brought, and are synced. The newest whole slot of two counts.

Layout of a slot, at byte 0 and 2048 of a file of 4096 (big endian)::

    magic 8 | version u32 | flags u32 | sequence u64 | position, records, units, settled, redo_from, none_below, end i64
    boot 64 | crc u32

A slot is only written once what it says is on the device, so the older one is as true as the newer; a start from it reads more of
the log. Reads and writes one small file; decides nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.ports import Disk, File
from halfmoon.store.layout import TRANSACTION, TRANSACTION_CHECKPOINT

_SLOT = Struct(">8sIIQqqqqqqq64s")
_CRC = Struct(">I")
_MAGIC, _VERSION, _CLEAN, _FOREIGN = b"halfmoon", 1, 1, 2
_SLOTS = (0, 2048)
_FILE_BYTES = 4096


class Watermark(NamedTuple):
    """What is in the files and on the device."""

    position: int = 0
    """Physical offset: each record of the log below is in the files."""
    records: int = 0
    """Records of the state table, counted from 0."""
    units: int = 0
    """Units of the redo log, counted from 0."""
    settled: int = 0
    """No half message with an index below was pending."""
    redo_from: int = 0
    """All units about half messages with an index of ``settled`` or more have this number or a higher one."""
    none_below: int = 0
    """Half messages with an index below may have no state: another broker settled them before the index was made."""
    end: int = 0
    """Physical offset where the log ended."""
    clean: bool = False
    """Written at a clean stop: nothing was written after it."""
    foreign: bool = False
    """The index is being made for a directory of another broker, and is not whole yet."""
    boot: str = ""
    """Which boot of the machine writes the files."""


class WatermarkFile:
    """The file. ``durable`` is what the device has of it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._sequence = 0
        self._file: File | None = None
        self._new_name = True
        self.last = Watermark()
        self.durable = Watermark()

    def read(self) -> Watermark | None:
        """Return the newest watermark; None: there is none. Nothing is changed."""
        data = self._disk.read(TRANSACTION_CHECKPOINT)
        if data is None or len(data) < _FILE_BYTES:
            return None
        newest = None
        for at in _SLOTS:
            packed = data[at : at + _SLOT.size]
            magic, version, flags, sequence, *numbers, boot = _SLOT.unpack(packed)
            if magic != _MAGIC or version != _VERSION or _CRC.unpack_from(data, at + _SLOT.size)[0] != crc32(packed):
                continue
            if sequence > self._sequence:
                self._sequence = sequence
                text = boot.rstrip(b"\0").decode("utf-8", "replace")
                newest = Watermark._make((*numbers, bool(flags & _CLEAN), bool(flags & _FOREIGN), text))
        return newest

    def write(self, watermark: Watermark) -> None:
        """Put a watermark into the next slot; `sync` makes it durable."""
        if self._file is None:
            path = TRANSACTION_CHECKPOINT
            usable = self._disk.exists(path) and self._disk.file_size(path) == _FILE_BYTES
            self._file = self._disk.open(path) if usable else self._disk.create(path, _FILE_BYTES)
        self._sequence += 1
        *numbers, clean, foreign, boot = watermark
        flags = _CLEAN * clean | _FOREIGN * foreign
        packed = _SLOT.pack(_MAGIC, _VERSION, flags, self._sequence, *numbers, boot.encode()[:64])
        self._file.write(_SLOTS[self._sequence % 2], packed + _CRC.pack(crc32(packed)))
        self.last = watermark

    def sync(self) -> None:
        """Wait until the last written watermark is on the device. May be called from another thread."""
        if self._file is not None:
            watermark = self.last
            self._file.sync()
            if self._new_name:
                self._disk.sync_directory(TRANSACTION)
                self._new_name = False
            self.durable = watermark

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
