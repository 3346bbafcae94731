"""A store of leases in memory, shared by members of one process; it can be down, hang, and lose answers."""

from __future__ import annotations

from halfmoon.errors import LeaseUnavailable
from halfmoon.ports import Stored


class MemoryLeases:
    """One record; ``written`` are all there ever were.

    ``is_down``: every call fails; ``loses_answers``: writes happen, and the caller does not learn of it.
    """

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.is_down = self.loses_answers = False
        self.written: list[bytes] = []

    def read(self, timeout_ms: int) -> Stored | None:
        if self.is_down:
            raise LeaseUnavailable("memory: down")
        return self.stored

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        if self.is_down:
            raise LeaseUnavailable("memory: down")
        if (None if self.stored is None else self.stored.version) != expected:
            return None
        self.written.append(text)
        self.stored = Stored(text, str(len(self.written)))
        if self.loses_answers:
            raise LeaseUnavailable("memory: no answer")
        return self.stored.version

    def close(self) -> None:
        pass
