"""Frames: a run of received bytes cut where its frames lie. Keeps nothing."""

from __future__ import annotations

from struct import Struct

Frame = tuple[int, int, int, int]
"""serialisation, start of header, start of body, end: places in the bytes that were cut."""

_FRAME = Struct(">iI")  # | total i32 | serialisation u8, header length u24 |


def cut(data: bytes, frame_max: int, header_max: int) -> tuple[list[Frame], int, int, str | None]:
    """Cut a run of bytes into whole frames.

    Returns the frames as (serialisation, start of header, start of body, end), how many bytes they take, how many bytes from
    there the next frame needs in all (8 until its length is known), and what is wrong with the next frame, if anything.
    """
    frames: list[Frame] = []
    at, size = 0, len(data)
    unpack = _FRAME.unpack_from
    while size - at >= 8:
        total, mark = unpack(data, at)
        header_size = mark & 0xFFFFFF
        if total < 4 or total + 4 > frame_max:
            return frames, at, 8, f"frame length {total} is not between 4 and {frame_max - 4}"
        if header_size > total - 4 or header_size > header_max:
            return frames, at, 8, f"header length {header_size} does not fit a frame of {total} bytes"
        end = at + 4 + total
        if end > size:
            return frames, at, 4 + total, None
        body = at + 8 + header_size
        frames.append((mark >> 24, at + 8, body, end))
        at = end
    return frames, at, 8, None
