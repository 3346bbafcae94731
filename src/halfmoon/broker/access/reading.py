"""The fast path of sends and decisions behind access control: those that may pass go to the reader of the gate, many at once.

A frame passes only when what is checked is what the reader will find: a header that decodes in full, with the code that the reader
goes by. Everything else goes back to the general path, which checks it again and answers refusals. Decides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.broker.access.access import Access
from halfmoon.errors import BadHeader
from halfmoon.hot import Frame, split_frames
from halfmoon.limits import FRAME_BYTES_MAX, HEADER_BYTES_MAX
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import decode
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction
from halfmoon.wire.peer import Peer
from halfmoon.wire.table import request_type

CODES = frozenset(request_type(header).code for header in (SendMessageV2, SendBatchMessage, EndTransaction))
"""Requests that the reader takes."""

_JSON = tuple(b'{"code":%d,' % code for code in CODES)
_ROCKETMQ = tuple(code.to_bytes(2, "big") for code in CODES)

Found = tuple[list[Frame], int, int, str | None]


class CheckedReading:
    """Reads what connections brought, as `Gate.read` does, which is ``read``."""

    def __init__(self, access: Access, read: Callable[[Peer, bytes], Found]) -> None:
        self._access, self._read = access, read

    def read(self, peer: Peer, data: bytes) -> Found:
        """Return what is left for the general path, see `halfmoon.hot.Reader.read`; the others wait for the gate's turn."""
        frames, used, wanted, wrong = split_frames(data, FRAME_BYTES_MAX, HEADER_BYTES_MAX)
        left: list[Frame] = []
        start = end = 0  # of frames that pass, one behind the other
        for frame in frames:
            if self._passes(peer, data, frame):
                start, end = (start if end else frame[1] - 8), frame[3]
                continue
            left += self._taken(peer, data, start, end)
            left.append(frame)
            end = 0
        left += self._taken(peer, data, start, end)
        return left, used, wanted, wrong

    def _passes(self, peer: Peer, data: bytes, frame: Frame) -> bool:
        serialization, start, body, end = frame
        if serialization == JSON:
            if not data.startswith(_JSON, start):
                return False
        elif serialization != ROCKETMQ or not data.startswith(_ROCKETMQ, start):
            return False
        try:
            command = decode(data[start:body], data[body:end], serialization)
        except BadHeader:
            return False
        # a header may name its code twice: the reader goes by the first, and the general path by the last
        first = int(data[start + 8 : data.index(b",", start)]) if serialization == JSON else command.code
        return command.code == first and self._access.passes(command, peer)

    def _taken(self, peer: Peer, data: bytes, start: int, end: int) -> list[Frame]:
        """Hand frames to the gate; return those that it leaves, where they lie in the data."""
        if not end:
            return []
        left = self._read(peer, data[start:end])[0]  # the same object, where it is all of the data
        return [(kind, at + start, body + start, stop + start) for kind, at, body, stop in left] if start else left
