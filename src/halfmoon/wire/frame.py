"""A stream of bytes cut into frames. Knows lengths only; what a header says is `halfmoon.wire.command`'s.

Layout (big endian): ``| total i32 | serialisation u8, header length u24 | header | body |``, where ``total`` counts all but itself.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.errors import BadFrame
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX

_TOTAL = Struct(">i")
_PREFIX = Struct(">iI")


class Frame(NamedTuple):
    """One frame; `halfmoon.wire.command.decode` makes a command of it."""

    serialization: int
    header: bytes
    body: bytes


class Inbox:
    """Takes bytes as they come and gives whole frames. Keeps only the unfinished remainder, which is never longer than a frame.

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
        """Bytes that are kept now."""
        return len(self._data) if self._partial is None else len(self._partial)

    @property
    def fault(self) -> BadFrame | None:
        """Why the stream cannot go on, once that is known; nothing after it is read."""
        return self._fault

    def feed(self, data: bytes) -> None:
        """Take bytes; costs no copy of what was there before. After a fault they are dropped."""
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
        """Return the whole frames that came, in order.

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
        found: list[Frame] = []
        try:
            at = self._cut(data, found)
        except BadFrame as fault:
            self._fault, self._data, self._partial = fault, b"", None
            if not found:
                raise
            return found
        if at:
            self._data, self._partial = data[at:], None
        return found

    def _cut(self, data: bytes, found: list[Frame]) -> int:
        at, size = 0, len(data)
        while size - at >= 8:
            total, mark = _PREFIX.unpack_from(data, at)
            header_size = mark & 0xFFFFFF
            if total < 4 + header_size or total + 4 > self._frame_bytes_max or header_size > HEADER_BYTES_MAX:
                raise BadFrame(self._reason(total, header_size))
            body_at, end = at + 8 + header_size, at + 4 + total
            if end > size:
                self._need = 4 + total
                return at
            found.append(Frame(mark >> 24, data[at + 8 : body_at], data[body_at:end]))
            at = end
        self._need = 4
        if size - at >= 4:
            (total,) = _TOTAL.unpack_from(data, at)
            if not 4 <= total <= self._frame_bytes_max - 4:
                raise BadFrame(self._reason(total, 0))
            self._need = 8
        return at

    def _reason(self, total: int, header_size: int) -> str:
        if total < 4:
            return f"a frame of {total} bytes is shorter than its own prefix"
        if total + 4 > self._frame_bytes_max:
            return f"a frame of {total + 4} bytes is longer than {self._frame_bytes_max}"
        if header_size > HEADER_BYTES_MAX:
            return f"a header of {header_size} bytes is longer than {HEADER_BYTES_MAX}"
        return f"a header of {header_size} bytes does not fit a frame of {total + 4}"
