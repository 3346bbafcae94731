"""Reservations of queue offsets: why an offset that was answered is never given to another message, power loss included.

A power loss with async flush takes the tail of the log away, and damage does with either, and with it the knowledge which queue
offsets were given out. So a queue only gives out offsets below its *reservation*, which is on the device before. After an unclean
stop of the machine the queue goes on behind it (its *floor*, kept even over clean stops); offsets in between get fillers. The
original reuses the offsets.

Value of a row of the journal: ``reserved i64 | floor i64``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from struct import Struct
from typing import NamedTuple

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.instant import Instant
from halfmoon.store.health import Health
from halfmoon.store.journal import Journal, Kind, Row, queue_key, queue_of
from halfmoon.store.queues.consume_queue import ConsumeQueue

_VALUE = Struct(">qq")
STEP_MIN, STEP_MAX = 4096, 1 << 20
"""Offsets reserved at once: a gap of at most that many fillers (20 MB) follows a power loss, and a queue under the heaviest load
asks again every few seconds."""

_Key = tuple[str, int]


class _Reservation(NamedTuple):
    reserved: int = 0
    floor: int = 0


_NOTHING = _Reservation()


class Extension(NamedTuple):
    """A larger reservation that was written and waits for a sync."""

    queue: ConsumeQueue
    reserved: int


class Reservations:
    """The table: (topic, queue number) to reservation and floor."""

    def __init__(self, journal: Journal, health: Health | None = None) -> None:
        self._journal, self._health = journal, health or Health()
        self._table = {queue_of(key): _Reservation(*_VALUE.unpack(value)) for key, value in journal.rows(Kind.RESERVATION)}
        self.wanted: list[ConsumeQueue] = []
        """Queues that want more in the background."""
        self._syncing = False

    def queues(self) -> list[_Key]:
        """Return the queues that have a reservation or a floor."""
        return list(self._table)

    def floor(self, topic: str, queue_id: int) -> int:
        """Return the queue offset below which no message of a queue gets one any more."""
        return self._table.get((topic, queue_id), _NOTHING).floor

    def reserved(self, topic: str, queue_id: int) -> int:
        """Return the queue offset below which offsets may have been given out."""
        return self._table.get((topic, queue_id), _NOTHING).reserved

    def raise_all_floors(self) -> None:
        """After a loss: make each reservation the floor of its queue, durably."""
        self.raise_floors({key: row.reserved for key, row in self._table.items()})

    def raise_floors(self, floors: Mapping[_Key, int]) -> None:
        """Let queues never go on below these offsets, durably: their last messages are damaged, or gone."""
        raised = {key: floor for key, floor in floors.items() if floor > self.floor(*key)}
        if raised:
            self._write({key: self._table.get(key, _NOTHING)._replace(floor=floor) for key, floor in raised.items()})
            self.sync()

    def cut(self, ends: Mapping[_Key, int], emptied: Collection[_Key]) -> None:
        """Let queues go on at their ends, as the log is about to be cut. `sync` makes it durable. Raises OSError.

        ``emptied`` are those that have no entry left: they go on behind the messages that expired, if there were any.
        """
        floors = {key: end if key in emptied else min(self.floor(*key), end) for key, end in ends.items()}
        unused = [key for key in emptied if not ends[key]]
        self._journal.write(*(Row(Kind.RESERVATION, queue_key(*key), None) for key in unused))
        for key in unused:
            self._table.pop(key, None)
        self._write({key: self._table.get(key, _NOTHING)._replace(floor=floor) for key, floor in floors.items()
                     if floor != self.floor(*key)})  # fmt: skip

    def adopt(self, queue: ConsumeQueue) -> None:
        """Let a queue use what is reserved for it already."""
        queue.reserved = reserved = self._table.get((queue.topic, queue.queue_id), _NOTHING).reserved
        queue.reserve_step = STEP_MIN
        # Early, so that more is reserved in the background before these are used up.
        queue.low_water = max(0, reserved - STEP_MIN // 2)

    def more(self, queue: ConsumeQueue, needed: int) -> None:
        """Ask for more offsets in the background, for a queue that passed its low water and will give out those below ``needed``.

        At once, waiting for the device, when those are not reserved. Raises StoreNotWritable: nothing more is reserved.
        """
        if needed <= queue.reserved:
            # So that it asks once: `granted` sets the next low water.
            queue.low_water = queue.reserved
            self.wanted.append(queue)
            return
        try:
            extension = self.extend(queue, needed)
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("a reservation of queue offsets", exc)) from exc
        try:
            self.sync()
        except OSError as exc:
            raise StoreNotWritable(self._health.sync_failed(exc)) from exc
        self.granted(extension)

    def start(self, leave: Callable[[Work[None]], None]) -> None:
        """Leave the sync of what is wanted as work, one at a time."""
        if self._syncing:
            return
        wanted, self.wanted = self.wanted, []
        try:
            extended = [self.extend(queue, 0) for queue in wanted]
        except OSError as exc:
            self._health.write_failed("a reservation of queue offsets", exc)  # they ask again, at once, when they need it
            return
        self._syncing = True

        def done(result: Exception | None, now: Instant) -> None:
            self._syncing = False
            if isinstance(result, Exception):
                self._health.sync_failed(result)
                return
            for extension in extended:
                self.granted(extension)

        leave(Work(self.sync, done, False, "reserve queue offsets"))

    def extend(self, queue: ConsumeQueue, wanted: int) -> Extension:
        """Write a larger reservation, not yet durable; return it. ``wanted`` is the least that is needed."""
        key = (queue.topic, queue.queue_id)
        row, step = self._table.get(key, _NOTHING), queue.reserve_step
        reserved = max(row.reserved, max(wanted, queue.next_offset) + step)
        queue.reserve_step = min(step * 8, STEP_MAX)
        queue.low_water = queue.reserved  # until the new one is granted, what lies beyond the old one is asked for at once
        self._write({key: row._replace(reserved=reserved)})
        return Extension(queue, reserved)

    def granted(self, extension: Extension) -> None:
        """Let a queue use a reservation that is durable."""
        queue, reserved = extension
        queue.reserved = max(queue.reserved, reserved)
        queue.low_water = queue.reserved - (queue.reserved - queue.next_offset) // 2

    def forget(self, topic: str) -> None:
        """Drop the reservations of a topic that was deleted. Raises OSError."""
        keys = [key for key in self._table if key[0] == topic]
        self._journal.write(*(Row(Kind.RESERVATION, queue_key(*key), None) for key in keys))
        for key in keys:
            del self._table[key]

    def sync(self) -> None:
        """Wait until what was written is on the device. May be called from another thread. Raises OSError."""
        self._journal.sync()

    def _write(self, rows: Mapping[_Key, _Reservation]) -> None:
        """Write rows, and take them. Raises OSError: nothing changed."""
        self._journal.write(*(Row(Kind.RESERVATION, queue_key(*key), _VALUE.pack(*row)) for key, row in rows.items()))
        self._table.update(rows)
