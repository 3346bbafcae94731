"""How old the oldest message is that a group has not consumed. Reads few entries, and each only once while a group stands still."""

from __future__ import annotations

from halfmoon.errors import CorruptRecord, StoreError
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.store import Store

READS_MAX = 8192
"""Entries and records of one round that are read from files, some 20 us each; the others are known, or left out."""

KNOWN_MAX = 200_000
"""Entries that are remembered from round to round, some 200 bytes each."""

_Key = tuple[str, int, int]


class OldestMessages:
    """Finds where the next message of a group lies in the log, and when it was stored. `begin` begins a round."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._places: dict[_Key, int] = {}
        self._last_places: dict[_Key, int] = {}
        self._times: dict[int, int] = {}
        self._last_times: dict[int, int] = {}
        self.reads = 0
        """How much was read in this round."""
        self.left_out = 0
        """How much was not read in this round because of `READS_MAX`."""

    def begin(self) -> None:
        """Forget what the last round did not ask for."""
        self._last_places, self._places = self._places, {}
        self._last_times, self._times = self._times, {}
        self.reads = self.left_out = 0

    def place(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Return the physical offset of a message that is visible; None: there is none any more, or too much was read."""
        key = (queue.topic, queue.queue_id, offset)
        found = self._last_places.get(key)
        if found is None:
            if not self._may_read():
                return None
            found = self._read(queue, offset)
        if found is not None and len(self._places) < KNOWN_MAX:
            self._places[key] = found
        return found

    def stored_ms(self, physical_offset: int) -> int | None:
        """Return when the message at a physical offset was stored; None as above."""
        found = self._last_times.get(physical_offset)
        if found is None:
            if not self._may_read():
                return None
            try:
                found = self._store.log.store_ms(physical_offset)
            except (CorruptRecord, StoreError, OSError):
                return None
        if len(self._times) < KNOWN_MAX:
            self._times[physical_offset] = found
        return found

    def _may_read(self) -> bool:
        if self.reads >= READS_MAX:
            self.left_out += 1
            return False
        self.reads += 1
        return True

    def _read(self, queue: ConsumeQueue, offset: int) -> int | None:
        """Read one entry without mapping its file: of many queues each would take the place of one that consumers read."""
        try:
            if offset < queue.stored:
                entry = ENTRY.unpack(queue.segments.peek(offset * ENTRY_BYTES, ENTRY_BYTES))
            else:
                entry = queue.entry(offset)
            if 0 < entry[1] != FILLER_SIZE:
                return int(entry[0])
            found = queue.real_entry(offset, queue.max_offset)
        except (StoreError, OSError):
            return None
        return None if found is None else found[1][0]
