"""Takes the disk's space for what is written later, so that a full disk is found out before a message is accepted and not after."""

from __future__ import annotations

from halfmoon.store.log.segments import Segments

_STEP_BYTES = 16 * 1024
"""Space taken at once, a few pages."""


def take_room(segments: Segments, start: int, end: int) -> int:
    """Write zeros from ``start`` on, where nothing is yet, until ``end`` is reached, making files; return where they end.

    ``start`` is what the last call returned, or behind what is written. Raises OSError when the disk is full; nothing is different.
    """
    while start < end:
        if segments.last is None or start >= segments.end:
            segments.extend(start)
        base = segments.base(start)
        stop = min(base + (start - base) // _STEP_BYTES * _STEP_BYTES + _STEP_BYTES, base + segments.file_bytes)
        segments.write(start, bytes(stop - start))
        start = stop
    return start
