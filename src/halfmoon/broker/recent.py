"""Half messages as the second phase needs them, and those that came lately: most are decided within milliseconds of their send.

The recent ones are bounded by number and bytes; the oldest goes. Everything here is in the log and in the transaction index too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from halfmoon.hot import Messages

COUNT_MAX = 8192
BYTES_MAX = 8 * 1024 * 1024


class HalfMessage(msgspec.Struct, gc=False):
    """One half message: where it lies, its producer group, where it belongs, and ``message``, which is that one alone."""

    physical_offset: int
    group: str
    topic: str
    queue_id: int
    message: Messages


class Recent:
    """Pending half messages by half queue offset. One that is here is pending: whoever decides it takes it out."""

    def __init__(self) -> None:
        self._halves: OrderedDict[int, HalfMessage] = OrderedDict()  # whose first is found at once, however many went before it
        self._sizes: dict[int, int] = {}
        self._bytes = 0
        self.get = self._halves.get

    def __len__(self) -> int:
        return len(self._halves)

    def add(self, index: int, half: HalfMessage, size_bytes: int) -> None:
        """Keep one, of about this size; the oldest go when there are too many."""
        self._halves[index] = half
        self._sizes[index] = size_bytes
        self._bytes += size_bytes
        while self._bytes > BYTES_MAX or len(self._halves) > COUNT_MAX:
            self.take((next(iter(self._halves)),))

    def take(self, indexes: Iterable[int]) -> None:
        """Let those go that are here."""
        for index in indexes:
            if self._halves.pop(index, None) is not None:
                self._bytes -= self._sizes.pop(index)
