"""A stream of bytes cut into frames. Knows lengths only; `halfmoon.wire.command` decodes headers.

Layout (big endian): ``| total i32 | serialisation u8, header length u24 | header | body |``, where ``total`` counts all but itself.
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.errors import BadFrame
from halfmoon.hot import split_frames
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX


class Frame(NamedTuple):
    """One frame; `halfmoon.wire.command.decode` makes a command of it."""

    serialization: int
    header: bytes
    body: bytes


class Inbox:
    """Buffer that takes bytes and returns whole frames. Keeps only the unfinished remainder, which is never longer than a frame.

    Use: ``feed`` for every piece, then ``frames`` once a turn; a piece that holds whole frames only is not copied together.
    """

    __slots__ = ("_data", "_fault", "_frame_bytes_max", "_need", "_partial")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._data = b""  # one piece, as it came
        self._partial: bytearray | None = None  # several pieces
        self._need = 4  # so many bytes are needed before anything new can be said
        self._frame_bytes_max = frame_bytes_max
        self._fault: BadFrame | None = None

    @property
    def pending_bytes(self) -> int:
        """Size of the unfinished remainder, bytes."""
        return len(self._data) if self._partial is None else len(self._partial)

    @property
    def fault(self) -> BadFrame | None:
        """The error at which the stream ends, once known. Nothing after it is read."""
        return self._fault

    def feed(self, data: bytes) -> None:
        """Append bytes without copying earlier ones. After a fault, bytes are dropped."""
        if self._fault is not None:
            return
        if self._partial is not None:
            self._partial += data
        elif self._data:
            self._partial = bytearray(self._data)
            self._partial += data
            self._data = b""
        else:
            self._data = data

    def frames(self) -> list[Frame]:
        """Return all whole frames received so far, in order.

        Frames before a fault are returned first: look at `fault` after the call, or call again until nothing comes.

        Raises:
            BadFrame: the stream cannot go on: a frame shorter than its own prefix, longer than allowed, or with a header that is
                too long or reaches beyond it.
        """
        if self._fault is not None:
            raise self._fault
        if self.pending_bytes < self._need:
            return []
        data = self._data if self._partial is None else bytes(self._partial)
        rows, at, wanted, wrong = split_frames(data, self._frame_bytes_max, HEADER_BYTES_MAX)
        if wrong is None and 4 <= len(data) - at < 8:
            wrong = self._wrong_length(data[at : at + 4])
        self._need = wanted if wanted > 8 else 4
        if wrong is not None:
            self._fault, self._data, self._partial = BadFrame(wrong), b"", None
            if not rows:
                raise self._fault
        elif at:
            self._data, self._partial = data[at:], None
        return [Frame(serialization, data[start:body], data[body:end]) for serialization, start, body, end in rows]

    def _wrong_length(self, data: bytes) -> str | None:
        """Return the error in a frame of which only the length has been received."""
        total = int.from_bytes(data, "big", signed=True)
        return None if 4 <= total <= self._frame_bytes_max - 4 else f"frame length {total} cannot be"
