"""Finds the next record behind bytes of the log that are none. Reads only what is written of a file, and changes nothing.

A record proves itself: magic, size, lengths, the body's CRC, and the physical offset that it names, which is where it lies. A blank
tail does by its length, to the end of its file: what stands behind it is of an older life.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from halfmoon.errors import CorruptRecord
from halfmoon.hot import MAGIC, MAGIC_V2
from halfmoon.store.layout import BLANK_MAGIC
from halfmoon.store.log.segments import Segments
from halfmoon.store.records import RecordFacts, check_at

_MARKS = [magic.to_bytes(4, "big", signed=True) for magic in (MAGIC, MAGIC_V2, BLANK_MAGIC)]
_MARK_AT, _MARK_BYTES = 4, 4
_WINDOW_BYTES = 1024 * 1024


def next_record(segments: Segments, start: int, stop: int, *, least_ms: int = 0) -> int | None:
    """Return the offset of the first record or blank tail from ``start`` on, before ``stop``, that proves itself; None: none does.

    ``least_ms``: one that was stored before is of an older life of the file, and is passed over.
    """
    position, stop = start, min(stop, segments.end)
    while position < stop:
        base = segments.base(position)
        at = _in_file(segments, base, position - base, min(stop - base, segments.data_end(base)), least_ms)
        if at is not None:
            return base + at
        position = base + segments.file_bytes
    return None


def _in_file(segments: Segments, base: int, start: int, end: int, least_ms: int) -> int | None:
    view = segments.view(base, segments.file_bytes)
    for window_at in range(start, end, _WINDOW_BYTES):
        # Windows overlap, so that a mark on the border of two is found.
        window = bytes(view[window_at : min(end, window_at + _WINDOW_BYTES + _MARK_AT + _MARK_BYTES - 1)])
        for mark_at in sorted(chain.from_iterable(_places(window, mark) for mark in _MARKS)):
            at = window_at + mark_at - _MARK_AT
            if at < start or int.from_bytes(view[at : at + 4], "big") > segments.file_bytes - at:
                continue
            try:
                record = check_at(view, at, base + at)
            except CorruptRecord:
                continue
            if not isinstance(record, RecordFacts) or (at + record.size_bytes <= end and record.store_ms >= least_ms):
                return at
    return None


def _places(window: bytes, mark: bytes) -> Iterator[int]:
    at = window.find(mark)
    while at >= 0:
        yield at
        at = window.find(mark, at + _MARK_BYTES)
