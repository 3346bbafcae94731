"""`QueueEnds`: how far each queue has given out offsets, a number a queue, written each turn into a file that survives the process.

Queue entries wait in memory before they are written (`ConsumeQueue.write_out`). After a kill the log tells them again, but a record
of it may be damaged, and then nothing else says which offsets were given out. After a loss reservations say it, so this file is
never synced. Decides nothing.

Layout: two i32 (big endian) at 8 times the queue's slot of the inventory: the offset behind its last entry, modulo 2^31, and the
same with each of its 31 bits turned over, which tells damage. The reservation, which is less than 2^31 above the offset, tells the
rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from halfmoon.ports import Disk, File
from halfmoon.store.health import Health
from halfmoon.store.layout import QUEUE_ENDS
from halfmoon.store.queues.consume_queue import ConsumeQueue

_NUMBERS = Struct(">ii")
_SLOTS_MIN = 1024
_MODULUS = 1 << 31
_MASK = _MODULUS - 1


class QueueEnds:
    """The file of one store. Queues have their place in it from `adopt` on."""

    def __init__(self, disk: Disk, health: Health) -> None:
        self._disk, self._health = disk, health
        self._file: File | None = None
        self._slots = 0

    def load(self, slots: int) -> list[int | None]:
        """Open the file with room for so many slots, and return the number in each; None: there is none, or it is damaged."""
        data = self._disk.read(QUEUE_ENDS) or b""
        data = data[: len(data) // _NUMBERS.size * _NUMBERS.size]
        numbers = [number if number ^ turned == _MASK else None for number, turned in _NUMBERS.iter_unpack(data)]
        self._resize(max(slots, len(numbers)))
        return numbers + [None] * (slots - len(numbers))

    def adopt(self, queue: ConsumeQueue, slot: int) -> None:
        """Give a queue its place. Without one, where the disk has no room, its entries do not wait."""
        queue.slot = -1
        try:
            if slot >= self._slots:
                self._resize(2 * slot)
            assert self._file is not None
            number = queue.next_offset & _MASK
            self._file.write(slot * _NUMBERS.size, _NUMBERS.pack(number, number ^ _MASK))
        except OSError as exc:
            self._health.write_failed("the ends of queues", exc)
            return
        queue.slot = slot

    def note(self, queues: Sequence[ConsumeQueue]) -> None:
        """Write how far queues go now; those that cannot be noted write their entries out. Raises OSError when that fails."""
        placed = [queue for queue in queues if queue.slot >= 0]
        try:
            if placed and self._file is not None:
                places = [queue.slot * _NUMBERS.size for queue in placed]
                numbers = [queue.written & _MASK for queue in placed]
                self._file.write_numbers(places + [place + 4 for place in places], numbers + [number ^ _MASK for number in numbers])
        except OSError as exc:
            self._health.write_failed("the ends of queues", exc)
            placed = []
        if len(placed) < len(queues):
            known = set(placed)
            for queue in queues:
                if queue not in known:
                    queue.write_out()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _resize(self, slots: int) -> None:
        slots = max(slots, _SLOTS_MIN)
        if self._disk.exists(QUEUE_ENDS) and self._disk.file_size(QUEUE_ENDS) > 0:
            if self._disk.file_size(QUEUE_ENDS) < slots * _NUMBERS.size:
                self._disk.resize(QUEUE_ENDS, slots * _NUMBERS.size)
            file = self._disk.open(QUEUE_ENDS)
        else:
            file = self._disk.create(QUEUE_ENDS, slots * _NUMBERS.size)
        self.close()  # only now: where there can be no larger one, queues keep their places in this one
        self._file, self._slots = file, file.size // _NUMBERS.size


def end_of(number: int, reserved: int) -> int:
    """Return the offset that a number of the file stands for, at most ``reserved``; 0: it stands for none."""
    return max(0, reserved - (reserved - number) % _MODULUS)
