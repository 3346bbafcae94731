"""The watermark: how far the files of the transaction index were brought, and are synced. The newest whole slot of two counts.

The slots (`store.two_slots`) begin at byte 0 and 2048, and hold (big endian)::

    position, records, units, settled, redo_from, none_below, end i64 | boot 64

A slot is only written once what it says is on the device, so the older one is as true as the newer; a start from it reads more of
the log. Reads and writes one small file; decides nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.ports import Disk
from halfmoon.store.layout import TRANSACTION, TRANSACTION_CHECKPOINT
from halfmoon.store.two_slots import TwoSlots

_SLOT = Struct(">qqqqqqq64s")
_CLEAN, _FOREIGN = 1, 2


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
        self._slots = TwoSlots(disk, TRANSACTION_CHECKPOINT, (0, 2048), _SLOT.size)
        self._new_name = True
        self.last = Watermark()
        self.durable = Watermark()

    def read(self) -> Watermark | None:
        """Return the newest watermark; None: there is none. Nothing is changed."""
        _, slots = self._slots.read() or (b"", [])
        if not slots:
            return None
        newest = slots[0]
        self._slots.sequence = max(self._slots.sequence, newest.sequence)
        *numbers, boot = _SLOT.unpack(newest.held)
        text = boot.rstrip(b"\0").decode("utf-8", "replace")
        return Watermark._make((*numbers, bool(newest.flags & _CLEAN), bool(newest.flags & _FOREIGN), text))

    def write(self, watermark: Watermark) -> None:
        """Put a watermark into the next slot; `sync` makes it durable."""
        *numbers, clean, foreign, boot = watermark
        self._slots.write(_CLEAN * clean | _FOREIGN * foreign, _SLOT.pack(*numbers, boot.encode()[:64]))
        self.last = watermark

    def sync(self) -> None:
        """Wait until the last written watermark is on the device. May be called from another thread."""
        watermark = self.last
        if self._slots.sync():
            if self._new_name:
                self._disk.sync_directory(TRANSACTION)
                self._new_name = False
            self.durable = watermark

    def close(self) -> None:
        """Let go of the file."""
        self._slots.close()
