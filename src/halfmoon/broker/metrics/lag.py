"""How old the oldest message is that a group has not consumed. Reads few entries, and each only once while a group stands still."""

from __future__ import annotations

from collections.abc import Callable

from halfmoon.errors import CorruptRecord, StoreError
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.store import Store

READS_MAX = 8192
"""Entries and records of one round that are read from files, some 20 us each; the others are known, or left out."""

KNOWN_MAX = 200_000
"""Entries that are remembered from round to round, some 200 bytes each."""


class OldestMessages:
    """Finds where the next message of a group lies in the log, and when it was stored. `begin` begins a round.

    ``reads`` is how much was read in this round, ``left_out`` how much was not because of `READS_MAX`.
    """

    reads_max = READS_MAX

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[object, int] = {}
        self._last: dict[object, int] = {}
        self.reads = self.left_out = 0

    def begin(self) -> None:
        """Forget what the last round did not ask for."""
        self._last, self._known = self._known, {}
        self.reads = self.left_out = 0

    def place(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the physical offset of a message that is visible; None: there is none any more, or too much was read."""
        return self._find((queue.topic, queue.queue_id, offset), lambda: _place(queue, offset))

    def stored_ms(self, physical_offset: int) -> int | None:
        """Return when the message at a physical offset was stored; None as above."""
        return self._find(physical_offset, lambda: self._store.log.store_ms(physical_offset))

    def _find(self, key: object, read: Callable[[], int | None]) -> int | None:
        found = self._last.get(key)
        if found is None:
            if self.reads >= self.reads_max:
                self.left_out += 1
                return None
            self.reads += 1
            try:
                found = read()
            except (CorruptRecord, StoreError, OSError):
                return None
        if found is not None and len(self._known) < KNOWN_MAX:
            self._known[key] = found
        return found


def _place(queue: ConsumeQueue, offset: int) -> int | None:
    """Read one entry without mapping its file: of many queues each would take the place of one that consumers read."""
    waits = offset >= queue.stored
    entry = queue.entry(offset) if waits else ENTRY.unpack(queue.segments.peek(offset * ENTRY_BYTES, ENTRY_BYTES))
    if 0 < entry[1] != FILLER_SIZE:
        return int(entry[0])
    found = queue.real_entry(offset, queue.max_offset)
    return None if found is None else found[1][0]
