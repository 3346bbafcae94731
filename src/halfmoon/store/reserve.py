"""Reservations of queue offsets: why an offset that was answered is never given to another message, power loss included.

With async flush a power loss takes the tail of the log away, and with it the knowledge which queue offsets were given out. So a
queue only gives out offsets below its *reservation*, which is on the device before. After an unclean stop of the machine the
queue goes on behind it (its *floor*, kept even over clean stops); offsets in between get fillers. Holds one small file of our
own beside RocketMQ's; the original reuses the offsets.

Layout: slots of 256 bytes; the first is the header. ``crc u32 | kind u16 | topic length u16 | queueId i32 | reserved i64 |
floor i64 | topic``. A process killed in the middle of a copy leaves a slot half written, so each queue has two and the one that
holds what was granted is never written: whichever is whole and larger counts. A full file is followed by another one, twice as
large and with a number behind its name, so that nothing granted is ever moved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.ports import Disk, File
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.health import Health
from halfmoon.store.layout import RESERVE

_SLOT_BYTES = 256
_BODY = Struct(">HHiqq128s")  # kind, topic length, queueId, reserved, floor, topic
_CRC = Struct(">I")
_HEADER, _QUEUE = 0x484D, 1
_SLOTS_FIRST = 256
STEP_MIN, STEP_MAX = 4096, 1 << 20
"""Offsets reserved at once: a gap of at most that many fillers (20 MB) follows a power loss, and a queue under the heaviest load
asks anew every few seconds."""


def _packed(kind: int, topic: bytes = b"", queue_id: int = 0, reserved: int = 0, floor: int = 0) -> bytes:
    body = _BODY.pack(kind, len(topic), queue_id, reserved, floor, topic)
    return (_CRC.pack(crc32(body)) + body).ljust(_SLOT_BYTES, b"\0")


class _Row:
    """What is reserved for one queue, and where it stands: ``last`` was written last, ``granted`` may not be written."""

    __slots__ = ("floor", "granted", "last", "reserved", "slots")

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.reserved = self.floor = 0
        self.last = self.granted = 0


_NOTHING = _Row()


class _Part:
    """One file of slots. ``first`` is the number of its slot 0; ``synced`` says which of its ``written`` writes a sync covered, and
    ``fresh`` that its name is not known to be on the device.
    """

    __slots__ = ("file", "first", "fresh", "number", "synced", "written")

    def __init__(self, number: int, first: int, file: File) -> None:
        self.number, self.first, self.file = number, first, file
        self.written, self.synced, self.fresh = 0, -1, True  # what a process before wrote is not known to be synced


def _path(number: int) -> str:
    return f"{RESERVE}.{number}" if number else RESERVE


_PART = re.compile(r"queueReserve(?:\.([1-9][0-9]{0,3}))?")
_DIRECTORY = RESERVE.rpartition("/")[0]


class Extension(NamedTuple):
    """A larger reservation that was written and waits for a sync."""

    queue: ConsumeQueue
    row: _Row
    reserved: int


class Reserve:
    """The table: (topic, queue number) to reservation and floor."""

    def __init__(self, disk: Disk, health: Health | None = None) -> None:
        self._disk, self._health = disk, health or Health()
        self._parts: list[_Part] = []
        self._slots = 0
        self._free: list[int] = []
        self._table: dict[tuple[str, int], _Row] = {}
        self.wanted: list[ConsumeQueue] = []
        """Queues that want more in the background."""
        self._syncing = False

    def load(self) -> None:
        """Read the table; slots that do not check out count as free."""
        names = (_PART.fullmatch(name) for name in self._disk.list(_DIRECTORY))
        for number in sorted(int(name[1] or 0) for name in names if name is not None):
            data = self._disk.read(_path(number)) or b""
            if len(data) >= _SLOT_BYTES:  # else it was cut off while it was made
                self._parts.append(_Part(number, self._slots, self._disk.open(_path(number))))
                self._load_part(data, self._slots)
                self._slots += len(data) // _SLOT_BYTES
        self._free.reverse()

    def _load_part(self, data: bytes, first: int) -> None:
        for slot in range(1, len(data) // _SLOT_BYTES):
            at = slot * _SLOT_BYTES
            body = data[at + 4 : at + 4 + _BODY.size]
            kind, length, queue_id, reserved, floor, topic = _BODY.unpack(body)
            if kind != _QUEUE or _CRC.unpack_from(data, at)[0] != crc32(body):
                self._free.append(first + slot)
                continue
            row = self._table.setdefault((topic[:length].decode("ascii", "replace"), queue_id), _Row())
            row.slots.append(first + slot)
            if (reserved, floor) > (row.reserved, row.floor):
                row.last = row.granted = first + slot
            row.reserved, row.floor = max(row.reserved, reserved), max(row.floor, floor)

    def queues(self) -> list[tuple[str, int]]:
        """Return the queues that have a reservation or a floor."""
        return list(self._table)

    def next_at_start(self, topic: str, queue_id: int, found: int, *, lost: bool) -> int:
        """Return the queue offset to go on with: ``found`` is the end of its entries, ``lost`` whether a tail may be gone."""
        row = self._table.get((topic, queue_id), _NOTHING)
        return max(found, row.floor, row.reserved if lost else 0)

    def raise_floors(self) -> None:
        """After a loss: make each reservation the floor of its queue, durably."""
        for key, row in self._table.items():
            if row.reserved > row.floor:
                row.floor = row.reserved
                self._write_row(key, row)
        self.secure()

    def secure(self) -> None:
        """Bring what the table says to the device, whoever wrote it.

        After an unclean stop its pages may be marked as clean although they never got there, so they are written again.
        """
        for key, row in self._table.items():
            if row.last:
                self._write(row.last, _packed(_QUEUE, key[0].encode(), key[1], row.reserved, row.floor))
        self.sync()
        for row in self._table.values():
            row.granted = row.last

    def adopt(self, queue: ConsumeQueue) -> None:
        """Let a queue use what is reserved for it already."""
        queue.reserved = reserved = self._table.get((queue.topic, queue.queue_id), _NOTHING).reserved
        queue.reserve_step = STEP_MIN
        queue.low_water = max(0, reserved - STEP_MIN // 2)

    def more(self, queue: ConsumeQueue, needed: int) -> None:
        """A queue passed its low water and will give out offsets below ``needed``: ask for more in the background, and at once,
        waiting for the device, when they are not reserved.

        Raises StoreNotWritable: nothing more is reserved.
        """
        if needed <= queue.reserved:
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

        def done(result: Exception | None, now: int) -> None:
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

    @staticmethod
    def granted(extension: Extension) -> None:
        """The reservation is durable: let the queue use it."""
        queue, row, reserved = extension
        if reserved >= row.reserved:  # else a larger one was granted, or is being written, in the meantime
            row.granted = row.last
        queue.reserved = max(queue.reserved, reserved)
        queue.low_water = queue.reserved - (queue.reserved - queue.next_offset) // 2

    def forget(self, topic: str) -> None:
        """Drop the reservations of a topic that was deleted."""
        for key in [key for key in self._table if key[0] == topic]:
            for slot in self._table.pop(key).slots:
                self._write(slot, bytes(_SLOT_BYTES))
                self._free.append(slot)

    def sync(self) -> None:
        """Wait until what was written, by this process or one before, is on the device. May be called from another thread, and from
        two at once: each waits until all is there that was written before its call.
        """
        parts, fresh = list(self._parts), False
        for part in parts:
            written = part.written
            if part.synced < written:
                part.file.sync()
                part.synced = max(part.synced, written)
            fresh |= part.fresh
        if fresh:
            self._disk.sync_directory(_DIRECTORY)
            for part in parts:
                part.fresh = False

    def close(self) -> None:
        """Let go of the files."""
        for part in self._parts:
            part.file.close()

    def _write_row(self, key: tuple[str, int], row: _Row) -> None:
        """Write a row into the slot that does not hold what was granted."""
        if all(slot == row.granted for slot in row.slots):
            if not self._free:
                self._grow()
            row.slots.append(self._free.pop())
        row.last = next(slot for slot in row.slots if slot != row.granted)
        self._write(row.last, _packed(_QUEUE, key[0].encode(), key[1], row.reserved, row.floor))

    def _write(self, slot: int, data: bytes) -> None:
        part = next(part for part in reversed(self._parts) if part.first <= slot)
        part.file.write((slot - part.first) * _SLOT_BYTES, data)
        part.written += 1

    def _grow(self) -> None:
        """Add a file, so that there are twice as many slots. Raises OSError when the disk is full."""
        slots = max(_SLOTS_FIRST, self._slots)
        number = self._parts[-1].number + 1 if self._parts else 0
        file = self._disk.create(_path(number), slots * _SLOT_BYTES)
        file.write(0, _packed(_HEADER))
        self._parts.append(_Part(number, self._slots, file))
        self._free = [*range(self._slots + slots - 1, self._slots, -1), *self._free]
        self._slots += slots
