"""The watermark: how far the files of the transaction index were brought, and are synced. A row of the journal.

Its value (big endian)::

    flags u8 | position, records, units, settled, redo_from, none_below, end i64 | boot 64

It is only written once what it says is on the device, so an older one is as true as the newest; a start from it reads more of the
log. Decides nothing.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.store.journal import Journal, Kind, Row

_VALUE = Struct(">Bqqqqqqq64s")
_CLEAN, _FOREIGN = 1, 2


class Watermark(NamedTuple):
    """Extent of the files that are on the device."""

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


def read_watermark(journal: Journal) -> Watermark | None:
    """Return the newest watermark; None: there is none."""
    value = journal.value(Kind.WATERMARK)
    if value is None:
        return None
    flags, *numbers, boot = _VALUE.unpack(value)
    text = boot.rstrip(b"\0").decode("utf-8", "replace")
    return Watermark._make((*numbers, bool(flags & _CLEAN), bool(flags & _FOREIGN), text))


def raise_none_below(journal: Journal, index: int) -> None:
    """Raise ``none_below`` of the newest watermark to an index, while nobody keeps the files. Raises OSError."""
    was = read_watermark(journal)
    if was is not None and was.none_below < index:
        journal.write(_row(was._replace(none_below=index)))


def _row(watermark: Watermark) -> Row:
    *numbers, clean, foreign, boot = watermark
    flags = _CLEAN * clean | _FOREIGN * foreign
    return Row(Kind.WATERMARK, b"", _VALUE.pack(flags, *numbers, boot.encode()[:64]))


class WatermarkRow:
    """The row. ``last`` was written last; ``durable`` is what the device has."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.last = self.durable = Watermark()

    def write(self, watermark: Watermark) -> None:
        """Write a watermark; `sync` makes it durable. Raises OSError."""
        self._journal.write(_row(watermark))
        self.last = watermark

    def sync(self) -> None:
        """Wait until the last written watermark is on the device. May be called from another thread."""
        watermark = self.last
        self._journal.sync()
        self.durable = watermark
