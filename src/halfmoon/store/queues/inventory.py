"""`Inventory`: which files of queues and of the key index must exist, so that a start notices what somebody removed.

All of them are derived from the log and rebuilt from it when they are missing; without a list nobody would know that they are. A
row is written after files were created, before the checkpoint covers what is in them, and before files are removed. So it may lag
behind but never be ahead: the end of the log tells the rest.

Layout of a slot (`Slots`, big endian)::

    crc u32 | kind u16 | length of the name u16 | queueId i32 | born i64 | first i64 | last i64 | made i64 | end i64 | durable i64
    | name 128

``born`` is the physical offset below which the log has nothing of the queue (of an older topic of its name, perhaps), ``first`` and
``last`` where its first and last file begin, ``made`` the end of the log when the last was made (less, where a start made it),
``end`` an offset that its next message has or exceeds, ``durable`` how far its entries went that are on the device. A second row of
kind REBUILT stands while the queue is being rebuilt, or is to be at the next start, and one of kind DELETED for a topic until the
checkpoint is behind its deletion: what the log has of it below ``born`` is not made visible again. Decides nothing about records.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from halfmoon.ports import Disk
from halfmoon.store.layout import INVENTORY
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.slots import Slots

log = logging.getLogger("halfmoon.store")

_BODY = Struct(">HHiqqqqqq128s")
_CRC = Struct(">I")
_HEADER, _QUEUE, _INDEX, _REBUILT, _SIZES, _DELETED = 0x484E, 1, 2, 3, 4, 5
EVERYTHING = ("", 0)
"""Stands for all queues, among those that are being rebuilt."""

DISTRUSTED = 1
"""``durable`` of a row of kind REBUILT: an entry was found to be wrong, and nothing was begun yet."""

Key = tuple[str, int]


@dataclass(slots=True)
class Row:
    """What is known of one queue, or (``first`` alone) of a key index file: the physical offset of its first entry's record."""

    slot: int
    born: int = 0
    first: int = -1
    last: int = -1
    made: int = 0
    end: int = 0
    durable: int = -1
    """The queue had entries up to here, and they were on the device; -1: nothing is known."""


def _born(row: Row) -> int:
    return row.born


def _packed(kind: int, name: str, queue_id: int, row: Row) -> bytes:
    text = name.encode()
    body = _BODY.pack(kind, len(text), queue_id, row.born, row.first, row.last, row.made, row.end, row.durable, text)
    return _CRC.pack(crc32(body)) + body


class Inventory:
    """The list of one store. ``there`` says whether the directory has one; one of another broker has none."""

    def __init__(self, disk: Disk) -> None:
        self._slots = Slots(disk, INVENTORY, _packed(_HEADER, "", 0, Row(0)))
        self.queues: dict[Key, Row] = {}
        self.index: dict[str, Row] = {}
        self.rebuilt: dict[Key, Row] = {}
        """Queues whose rebuilding was begun and not ended."""
        self.deleted: dict[str, Row] = {}
        """Topics that were deleted (``born``: where the log ended then), as long as a start may come upon what was theirs."""
        self._going: Counter[str] = Counter()
        self.sizes: Row | None = None
        """Sizes of the files of the log (``born``), of queues (``first``) and of the key index (``last``) that were made here, and
        where the log began (``made``).
        """
        self.there = False
        self._failed = False

    def load(self) -> None:
        """Read the rows; what does not check out counts as free."""
        for slot, data in self._slots.load():
            body = data[4 : 4 + _BODY.size]
            kind, length, queue_id, born, first, last, made, end, durable, name = _BODY.unpack(body)
            if kind not in (_QUEUE, _INDEX, _REBUILT, _SIZES, _DELETED) or _CRC.unpack_from(data)[0] != crc32(body):
                self._slots.free.append(slot)
                continue
            row, text = Row(slot, born, first, last, made, end, durable), name[:length].decode("ascii", "replace")
            if kind == _INDEX:
                self.index[text] = row
            elif kind == _SIZES:
                self.sizes = row
            elif kind == _DELETED:
                known = self.deleted.get(text)  # a row that was let go comes back with a loss, beside one of a later deletion
                if known is not None:
                    self._slots.free.append(min(known, row, key=_born).slot)
                self.deleted[text] = row if known is None else max(known, row, key=_born)
            else:
                (self.queues if kind == _QUEUE else self.rebuilt)[text, queue_id] = row
        self.there = bool(self._slots.files)

    def knows(self, log_bytes: int, queue_bytes: int, index_bytes: int) -> tuple[bool, bool, bool]:
        """Whether files of the log, of queues and of the key index were made here with these sizes: another size is damage then."""
        sizes = self.sizes
        return (
            (False, False, False)
            if sizes is None
            else (sizes.born == log_bytes, sizes.first == queue_bytes, sizes.last == index_bytes)
        )

    def note_sizes(self, log_bytes: int, queue_bytes: int, index_bytes: int, log_first: int) -> None:
        """Note the sizes of the files created from now on, and where the log begins. Raises OSError."""
        slot = self._slots.take() if self.sizes is None else self.sizes.slot
        row = Row(slot, log_bytes, queue_bytes, index_bytes, log_first)
        if row != self.sizes:
            self.sizes = row
            self._slots.write(slot, _packed(_SIZES, "", 0, row))

    def note_log_first(self, log_first: int) -> None:
        """The files of the log below an offset are about to go."""
        if self.sizes is not None:
            try:
                self.note_sizes(self.sizes.born, self.sizes.first, self.sizes.last, log_first)
            except OSError as exc:
                self._warn_once(exc)

    # ------------------------------------------------------------ queues

    def note(self, queues: Iterable[ConsumeQueue], log_end: int) -> None:
        """Write rows for queues whose files are others than were noted last."""
        for queue in queues:
            segments = queue.segments
            last = -1 if segments.last is None else segments.last
            if queue.noted != (segments.first, last):
                self.note_end(queue, log_end)

    def note_end(self, queue: ConsumeQueue, log_end: int, *, durable: int | None = None) -> None:
        """Write the row of a queue, the offset that its next message has included: records of it are about to go, or entries up to
        ``durable`` are on the device.
        """
        segments, key = queue.segments, (queue.topic, queue.queue_id)
        last = -1 if segments.last is None else segments.last
        try:
            row = self.queues.get(key) or Row(self._slots.take(), queue.born)
            made = row.made if row.last == last else log_end
            row.first, row.last, row.made, row.end = segments.first, last, made, max(row.end, queue.written)
            row.durable = row.durable if durable is None else durable
            self._slots.write(row.slot, _packed(_QUEUE, *key, row))
        except OSError as exc:
            self._warn_once(exc)
            return
        self.queues[key] = row
        queue.noted = (segments.first, last)

    def forget(self, topic: str, log_end: int) -> None:
        """A topic was deleted: its queues are not missed, and its records no more entered into any. Waits for the device, as a row
        that comes back would rebuild it.

        Raises OSError.
        """
        self._going[topic] += 1
        self._note_deleted(topic, log_end)
        rows = [rows.pop(key) for rows in (self.queues, self.rebuilt) for key in list(rows) if key[0] == topic]
        for row in rows:
            self._free(row)
        self.sync()

    def _note_deleted(self, topic: str, log_end: int) -> None:
        row = self.deleted.get(topic) or Row(self._slots.take())
        row.born = log_end
        self._slots.write(row.slot, _packed(_DELETED, topic, 0, row))
        self.deleted[topic] = row

    def removed(self, topic: str) -> None:
        """The removal of a deleted topic's files is on the device."""
        self._going[topic] -= 1

    def settle_deleted(self, durable_offset: int) -> None:
        """A start after any stop begins behind this offset: topics that were deleted before need no row."""
        for topic in [topic for topic, row in self.deleted.items() if row.born <= durable_offset and not self._going[topic]]:
            self._free(self.deleted.pop(topic))

    def cut_deleted(self, log_end: int) -> None:
        """A loss took records, and others will come in their place: they are no deleted topic's.

        Waits for the device; raises OSError.
        """
        late = [topic for topic, row in self.deleted.items() if row.born > log_end]
        for topic in late:
            self._note_deleted(topic, log_end)
        if late:
            self.sync()

    def begin_rebuild(self, keys: Iterable[Key]) -> None:
        """Queues are going to be rebuilt: until `end_rebuild` each start does so. Waits for the device; raises OSError."""
        for key in keys:
            if key not in self.rebuilt:
                row = self.rebuilt[key] = Row(self._slots.take())
                self._slots.write(row.slot, _packed(_REBUILT, *key, row))
        self.sync()

    def note_durable(self, queue: ConsumeQueue, end: int, log_end: int) -> None:
        """Write how far the entries of a queue go that are on the device."""
        row = self.queues.get((queue.topic, queue.queue_id))
        if row is not None and row.durable != end:
            self.note_end(queue, log_end, durable=end)

    def distrust(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """An entry of a queue points at no record: say so, once of each queue, and have the next start rebuild it."""
        key = (queue.topic, queue.queue_id)
        if key in self.rebuilt:
            return
        log.error(
            "%s is damaged: its entry %d points at no record, and readers skip it. Its message may be in the log: the next start"
            " rebuilds the queue from there; fsck lists what is wrong",
            queue.segments.directory, queue_offset,
        )  # fmt: skip
        row = self.rebuilt[key] = Row(-1, durable=DISTRUSTED)
        try:
            row.slot = self._slots.take()
            self._slots.write(row.slot, _packed(_REBUILT, *key, row))
        except OSError as exc:
            self._warn_once(exc)

    def end_rebuild(self, queues: Iterable[ConsumeQueue], log_end: int) -> None:
        """The queues are rebuilt, and on the device."""
        queues = list(queues)
        self.note(queues, log_end)
        for queue in queues:
            if (row := self.queues.get((queue.topic, queue.queue_id))) is not None and row.durable > queue.written:
                self.note_end(queue, log_end, durable=queue.written)  # the log has no more of it: nothing is missed again
        self.sync()
        for row in self.rebuilt.values():
            self._free(row)
        self.rebuilt.clear()

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget rows of queues that are not there and that nobody misses."""
        for key in keys:
            self._free(self.queues.pop(key))

    # ------------------------------------------------------------ key index

    def note_index(self, files: Sequence[tuple[str, int]]) -> None:
        """Make the rows of the key index those of its files: names, and the physical offsets of their first entries' records."""
        names = dict(files)
        for name in [name for name in self.index if name not in names]:
            self._free(self.index.pop(name))
        for name, first in files:
            if name not in self.index:
                try:
                    row = Row(self._slots.take(), first=first)
                    self._slots.write(row.slot, _packed(_INDEX, name, 0, row))
                except OSError as exc:
                    self._warn_once(exc)
                    return
                self.index[name] = row

    # ------------------------------------------------------------ files

    def sync(self) -> None:
        """Wait until what was written is on the device. May be called from another thread. Raises OSError."""
        self._slots.sync()

    def close(self) -> None:
        """Let go of the files."""
        self._slots.close()

    def _free(self, row: Row) -> None:
        if row.slot < 0:
            return  # it could not be written
        self._slots.write(row.slot, b"")
        self._slots.free.append(row.slot)

    def _warn_once(self, exc: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("%s cannot be written; files removed from now on may go unnoticed: %s", INVENTORY, exc)
