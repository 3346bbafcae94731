"""A store of leases in memory, shared by members of one process; it can be down, hang, and lose answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from halfmoon.errors import LeaseUnavailable
from halfmoon.ports import Stored


class MemoryLeases:
    """One record; ``written`` are all there ever were.

    ``is_down``: every call fails; ``loses_answers``: writes happen, and the caller does not learn of it; ``refuses`` says which
    writes fail. ``goes_on`` is not set: every call hangs until it is, or its time or ``hangs_ms`` is over.
    """

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.goes_on = Event()
        self.goes_on.set()
        self.hangs_ms = 0
        self.refuses: Callable[[bytes], bool] = lambda text: False
        self.is_down = self.loses_answers = False
        self.written: list[bytes] = []

    def _hang(self, timeout_ms: int) -> None:
        if not self.goes_on.wait(max(timeout_ms, self.hangs_ms) / 1000):
            raise LeaseUnavailable("memory: no answer in time")

    def read(self, timeout_ms: int) -> Stored | None:
        self._hang(timeout_ms)
        if self.is_down:
            raise LeaseUnavailable("memory: down")
        return self.stored

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        self._hang(timeout_ms)
        if self.is_down or self.refuses(text):
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
