"""`RedoLog`: what happened to half messages, in the order it happened, 20 bytes each; the states can be rebuilt from it.

Layout of a unit (big endian)::

    0 physical offset of a record i64 | 8 its size i32 | 12 tag i64
    tag = -1       the record is a half message
    tag = p >= 0   the record is the visible message that committed the half message at physical offset p
    tag = -2 - p   the record is the op record that rolled back the half message at p

Differs: 3.x has the bare p for both decisions, and the record said which it was; ours is told by the unit, so that states can be
rebuilt without the log. The store time of the article is in the state table. Reads no log; decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error as struct_error

from halfmoon.hot import UNIT
from halfmoon.ports import Disk
from halfmoon.store.layout import REDO_LOG, UNIT_BYTES
from halfmoon.store.log.segments import Segments

PREPARED_TAG = -1
_AT_ONCE = 64 * 1024
_WAITING_BYTES = 16 * 1024
"""Bytes of units that wait in memory at most: nobody reads those that no watermark counts, and a watermark has them written."""


def decided_tag(half_offset: int, *, committed: bool) -> int:
    """Return the tag of a decision about the half record at a physical offset."""
    return half_offset if committed else -2 - half_offset


def half_of(tag: int) -> int:
    """Return the physical offset of the half record that a decision's tag is about."""
    return tag if tag >= 0 else -2 - tag


class RedoLog:
    """The units. ``end`` counts those that were ever written."""

    def __init__(self, disk: Disk, file_units: int) -> None:
        self.segments = Segments(disk, REDO_LOG, file_units * UNIT_BYTES)
        self.per_file = file_units
        self.end = 0
        self._room = 0
        self._waiting = bytearray()
        """Units that `append` took and `write` has not written: the last ones before ``end``."""

    @property
    def first(self) -> int:
        """Number of the first unit that is there; ``end`` when there is none."""
        if self.segments.last is None:
            return self.end - len(self._waiting) // UNIT_BYTES
        return self.segments.first // UNIT_BYTES

    def append(self, units: Sequence[tuple[int, int, int]]) -> None:
        """Take units (physical offset, size, tag) behind the last. They are written by `write`, or once they are many.

        Raises ValueError for numbers that do not fit, and OSError when the disk is full.
        """
        try:
            pack = UNIT.pack
            data = b"".join([pack(physical_offset, size, tag) for physical_offset, size, tag in units])
        except struct_error as exc:
            raise ValueError(f"a unit does not fit the redo log: {exc}") from None
        self.take(data)

    def take(self, units: bytes) -> None:
        """Take units as they are stored behind the last, as `append` does. Raises OSError when the disk is full."""
        self._waiting += units
        self.end += len(units) // UNIT_BYTES
        if len(self._waiting) >= _WAITING_BYTES:
            self.write()

    @property
    def dirty(self) -> bool:
        """Whether something was taken or written since the last sync began."""
        return bool(self._waiting or self.segments.dirty)

    def write(self) -> None:
        """Write what `append` took. Raises OSError when the disk is full; what is not written stays to be written."""
        segments, waiting = self.segments, self._waiting
        while waiting:
            at = self.end * UNIT_BYTES - len(waiting)
            if segments.last is None or at >= segments.end:
                segments.extend(at)
            count = min(len(waiting), segments.file_bytes - at % segments.file_bytes)
            segments.write(at, waiting[:count])
            del waiting[:count]

    def make_room(self, count: int) -> int:
        """Take the disk's space for so many more units; return how many fit. Raises OSError when the disk is full."""
        # The space lies behind units that may wait still: were it the first file of all, theirs could not be made any more.
        self.write()
        self._room = self.segments.preallocate(max(self._room, self.end * UNIT_BYTES), (self.end + count) * UNIT_BYTES)
        return self._room // UNIT_BYTES - self.end

    def units(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the units (physical offset, size, tag) from one number to before another. Raises what `write` does."""
        self.write()
        while start < stop:
            end = min(stop, start + _AT_ONCE, start - start % self.per_file + self.per_file)
            yield from UNIT.iter_unpack(self.segments.view(start * UNIT_BYTES, (end - start) * UNIT_BYTES))
            start = end

    def reset(self) -> None:
        """Forget everything: the files are gone."""
        self.segments.remove_after(-1)
        self.segments.first = self.end = self._room = 0
        self._waiting.clear()

    def cut(self, end: int, *, thorough: bool) -> None:
        """Forget the units from a number on, so that they never come back."""
        self.write()
        if self.segments.last is not None and (end == 0 or end * UNIT_BYTES < self.segments.first):
            self.segments.remove_after(-1)
        else:
            self.segments.clear_from(end * UNIT_BYTES, thorough=thorough)
        self.end, self._room = end, 0

    def drop_before(self, number: int) -> list[str]:
        """Forget the files that end at or before a unit, never the last; return their paths, for somebody else to remove."""
        return self.segments.drop_before(number * UNIT_BYTES)
