"""Reservations of queue offsets: why an offset that was answered is never given to another message, power loss included.

A power loss with async flush takes the tail of the log away, and damage does with either, and with it the knowledge which queue
offsets were given out. So a queue only gives out offsets below its *reservation*, which is on the device before. After an unclean
stop of the machine the queue goes on behind it (its *floor*, kept even over clean stops); offsets in between get fillers. Holds one
small file of our own beside RocketMQ's; the original reuses the offsets.

Layout: `Slots`, the first is the header. ``crc u32 | kind u16 | topic length u16 | queueId i32 | reserved i64 |
floor i64 | topic``. A process killed in the middle of a copy leaves a slot half written, and a bit may turn over on the device, so
each queue has two: the one that holds what was granted is not written until the other holds it, and whichever is whole and larger
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.instant import Instant
from halfmoon.ports import Disk
from halfmoon.store.health import Health
from halfmoon.store.layout import RESERVATIONS
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.slots import Slots

_BODY = Struct(">HHiqq128s")  # kind, topic length, queueId, reserved, floor, topic
_CRC = Struct(">I")
_HEADER, _QUEUE = 0x484D, 1
STEP_MIN, STEP_MAX = 4096, 1 << 20
"""Offsets reserved at once: a gap of at most that many fillers (20 MB) follows a power loss, and a queue under the heaviest load
asks again every few seconds."""


def _packed(kind: int, topic: bytes = b"", queue_id: int = 0, reserved: int = 0, floor: int = 0) -> bytes:
    body = _BODY.pack(kind, len(topic), queue_id, reserved, floor, topic)
    return _CRC.pack(crc32(body)) + body


class _Row:
    """What is reserved for one queue, and where it stands: ``last`` was written last, ``granted`` may not be written."""

    __slots__ = ("floor", "granted", "last", "reserved", "slots")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.reserved = self.floor = 0
        self.last = self.granted = 0


_NOTHING = _Row()


class Extension(NamedTuple):
    """A larger reservation that was written and waits for a sync."""

    queue: ConsumeQueue
    row: _Row
    reserved: int

    @property
    def key(self) -> tuple[str, int]:
        """Topic and queue number."""
        return self.queue.topic, self.queue.queue_id


class Reservations:
    """The table: (topic, queue number) to reservation and floor."""

    def __init__(self, disk: Disk, health: Health | None = None) -> None:
        self._health = health or Health()
        self._slots = Slots(disk, RESERVATIONS, _packed(_HEADER))
        self._table: dict[tuple[str, int], _Row] = {}
        self.wanted: list[ConsumeQueue] = []
        """Queues that want more in the background."""
        self._syncing = False

    def load(self) -> None:
        """Read the table; slots that do not check out count as free."""
        for slot, data in self._slots.load():
            body = data[4 : 4 + _BODY.size]
            kind, length, queue_id, reserved, floor, topic = _BODY.unpack(body)
            if kind != _QUEUE or _CRC.unpack_from(data)[0] != crc32(body):
                self._slots.free.append(slot)
                continue
            row = self._table.setdefault((topic[:length].decode("ascii", "replace"), queue_id), _Row())
            row.slots.append(slot)
            if (reserved, floor) > (row.reserved, row.floor):
                row.last = row.granted = slot
            row.reserved, row.floor = max(row.reserved, reserved), max(row.floor, floor)

    def queues(self) -> list[tuple[str, int]]:
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
        for key, row in self._table.items():
            if row.reserved > row.floor:
                row.floor = row.reserved
                self._write_row(key, row)
        self.secure()

    def raise_floors(self, floors: Mapping[tuple[str, int], int]) -> None:
        """Let queues never go on below these offsets, durably: their last messages are damaged, or gone."""
        raised = {key: floor for key, floor in floors.items() if floor > self.floor(*key)}
        for key, floor in raised.items():
            row = self._table.setdefault(key, _Row())
            row.floor = floor
            self._write_row(key, row)
        if raised:
            self.sync()
            for key in raised:
                self._write_twice(key, self._table[key])

    def secure(self) -> None:
        """Bring what the table says to the device, whoever wrote it.

        After an unclean stop its pages may be marked as clean although they never got there, so they are written again.
        """
        for key, row in self._table.items():
            if row.last:
                self._slots.write(row.last, _packed(_QUEUE, key[0].encode(), key[1], row.reserved, row.floor))
        self.sync()
        for key, row in self._table.items():
            self._write_twice(key, row)
        self.sync()

    def adopt(self, queue: ConsumeQueue) -> None:
        """Let a queue use what is reserved for it already."""
        queue.reserved = reserved = self._table.get((queue.topic, queue.queue_id), _NOTHING).reserved
        queue.reserve_step = STEP_MIN
        # Early, so that more is reserved in the background before these are used up.
        queue.low_water = max(0, reserved - STEP_MIN // 2)

    def more(self, queue: ConsumeQueue, needed: int) -> None:
        """A queue passed its low water and will give out offsets below ``needed``: ask for more in the background, and at once,
        waiting for the device, when they are not reserved.

        Raises StoreNotWritable: nothing more is reserved.
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
        row = self._table.get(key) or _Row()
        step = queue.reserve_step
        reserved = max(row.reserved, max(wanted, queue.next_offset) + step)
        queue.reserve_step = min(step * 8, STEP_MAX)
        queue.low_water = queue.reserved  # until the new one is granted, what lies beyond the old one is asked for at once
        before, row.reserved = row.reserved, reserved
        try:
            self._write_row(key, row)
        except OSError:
            row.reserved = before
            raise
        self._table[key] = row
        return Extension(queue, row, reserved)

    def granted(self, extension: Extension) -> None:
        """The reservation is durable: let the queue use it."""
        queue, row, reserved = extension
        if reserved >= row.reserved and self._table.get(extension.key) is row:
            self._write_twice(extension.key, row)  # else a larger one was granted, or is being written, in the meantime
        queue.reserved = max(queue.reserved, reserved)
        queue.low_water = queue.reserved - (queue.reserved - queue.next_offset) // 2

    def forget(self, topic: str) -> None:
        """Drop the reservations of a topic that was deleted."""
        for key in [key for key in self._table if key[0] == topic]:
            for slot in self._table.pop(key).slots:
                self._slots.write(slot, b"")
                self._slots.free.append(slot)

    def sync(self) -> None:
        """Wait until what was written is on the device; see `Slots.sync`."""
        self._slots.sync()

    def close(self) -> None:
        """Let go of the files."""
        self._slots.close()

    def _write_row(self, key: tuple[str, int], row: _Row) -> None:
        """Write a row into the slot that does not hold what was granted."""
        if all(slot == row.granted for slot in row.slots):
            row.slots.append(self._slots.take())
        row.last = next(slot for slot in row.slots if slot != row.granted)
        self._slots.write(row.last, _packed(_QUEUE, key[0].encode(), key[1], row.reserved, row.floor))

    def _write_twice(self, key: tuple[str, int], row: _Row) -> None:
        """A row is on the device: write it into its other slot too, so that a damaged one takes nothing away.

        That one is synced with whatever is written next.
        """
        row.granted = row.last
        try:
            self._write_row(key, row)
        except OSError as exc:
            row.last = row.granted  # it stands in one slot until it grows
            self._health.write_failed("the second copy of a reservation of queue offsets", exc)
