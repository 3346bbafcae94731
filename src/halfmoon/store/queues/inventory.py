"""`Inventory`: which files of queues and of the key index must exist, so that a start notices what somebody removed.

All of them are derived from the log and rebuilt from it when they are missing; without a list nobody would know that they are. A
row is written after files were created, before the checkpoint covers what is in them, and before files are removed. So it may lag
behind but never be ahead: the end of the log tells the rest.

Value of a row of the journal (big endian): ``born i64 | first i64 | last i64 | made i64 | end i64 | durable i64``.

``born`` is the physical offset below which the log has nothing of the queue (of an older topic of its name, perhaps), ``first`` and
``last`` where its first and last file begin, ``made`` the end of the log when the last was made (less, where a start made it),
``end`` an offset that its next message has or exceeds, ``durable`` how far its entries went that are on the device. A second row of
kind REBUILT stands while the queue is being rebuilt, or is to be at the next start, and one of kind DELETED for a topic until the
checkpoint is behind its deletion: what the log has of it below ``born`` is not made visible again. Decides nothing about records.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct

from halfmoon.hot import ENTRY_BYTES
from halfmoon.store.journal import Journal, Kind, queue_key, queue_of
from halfmoon.store.journal import Row as JournalRow
from halfmoon.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger("halfmoon.store")

_VALUE = Struct(">qqqqqq")
EVERYTHING = ("", 0)
"""Stands for all queues, among those that are being rebuilt."""

DISTRUSTED = 1
"""``durable`` of a row of kind REBUILT: an entry was found to be wrong, and nothing was begun yet."""

Key = tuple[str, int]


@dataclass(slots=True)
class Row:
    """Files of one queue, or (``first`` alone) of a key index file: the physical offset of its first entry's record."""

    born: int = 0
    first: int = -1
    last: int = -1
    made: int = 0
    end: int = 0
    durable: int = -1
    """The queue had entries up to here, and they were on the device; -1: nothing is known."""


_KINDS = (Kind.QUEUE, Kind.INDEX, Kind.REBUILT, Kind.SIZES, Kind.DELETED)


def _row(kind: Kind, key: bytes, row: Row | None) -> JournalRow:
    """Return the row of the journal; None: that there is none any more."""
    value = None if row is None else _VALUE.pack(row.born, row.first, row.last, row.made, row.end, row.durable)
    return JournalRow(kind, key, value)


class Inventory:
    """The list of one store. ``there`` says whether the directory has one; one of another broker has none."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        of_kind = {kind: {key: Row(*_VALUE.unpack(value)) for key, value in journal.rows(kind)} for kind in _KINDS}
        self.there = any(of_kind.values())
        self.queues: dict[Key, Row] = {queue_of(key): row for key, row in of_kind[Kind.QUEUE].items()}
        self.index: dict[str, Row] = {key.decode(): row for key, row in of_kind[Kind.INDEX].items()}
        self.rebuilt: dict[Key, Row] = {queue_of(key): row for key, row in of_kind[Kind.REBUILT].items()}
        """Queues whose rebuilding was begun and not ended."""
        self.deleted: dict[str, Row] = {key.decode(): row for key, row in of_kind[Kind.DELETED].items()}
        """Topics that were deleted (``born``: where the log ended then), as long as a start may come upon what was theirs."""
        self._going: Counter[str] = Counter()
        self.sizes = of_kind[Kind.SIZES].get(b"")
        """Sizes of the files of the log (``born``), of queues (``first``) and of the key index (``last``) that were made here, and
        where the log began (``made``).
        """
        self._failed = False

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
        row = Row(log_bytes, queue_bytes, index_bytes, log_first)
        if row != self.sizes:
            self._journal.write(_row(Kind.SIZES, b"", row))
            self.sizes = row

    def note_log_first(self, log_first: int) -> None:
        """Note that the files of the log below an offset are about to go."""
        if self.sizes is not None:
            try:
                self.note_sizes(self.sizes.born, self.sizes.first, self.sizes.last, log_first)
            except OSError as exc:
                self._warn_once(exc)

    # ------------------------------------------------------------ queues

    def note(self, queues: Iterable[ConsumeQueue], log_end: int) -> None:
        """Write rows for queues whose files are others than were noted last."""
        self._note({queue: None for queue in queues if queue.noted != _files_of(queue)}, log_end)

    def note_end(self, queue: ConsumeQueue, log_end: int) -> None:
        """Write the row of a queue, the offset that its next message has included: records of it are about to go."""
        self._note({queue: None}, log_end)

    def note_durable(self, ends: Iterable[tuple[ConsumeQueue, int]], log_end: int) -> None:
        """Write how far the entries of queues go that are on the device."""
        rows = self.queues
        changed = {
            queue: end for queue, end in ends if (row := rows.get((queue.topic, queue.queue_id))) is not None and row.durable != end
        }
        self._note(changed, log_end)

    def _note(self, ends: Mapping[ConsumeQueue, int | None], log_end: int) -> None:
        """Write rows of queues, and how far they are on the device where that is known."""
        rows = {}
        for queue, durable in ends.items():
            (first, last), key = _files_of(queue), (queue.topic, queue.queue_id)
            row = self.queues.get(key) or Row(queue.born)
            made = row.made if row.last == last else log_end
            rows[key] = Row(row.born, first, last, made, max(row.end, queue.written), row.durable if durable is None else durable)
        try:
            self._journal.write(*(_row(Kind.QUEUE, queue_key(*key), row) for key, row in rows.items()))
        except OSError as exc:
            self._warn_once(exc)
            return
        self.queues.update(rows)
        for queue in ends:
            queue.noted = _files_of(queue)

    def forget(self, topic: str, log_end: int) -> None:
        """Forget a deleted topic: its queues are not missed, and its records entered into no queue. Raises OSError.

        Waits for the device, for a row that came back would rebuild it.
        """
        self._going[topic] += 1
        row = Row(log_end)
        gone = [
            (kind, rows, key)
            for kind, rows in ((Kind.QUEUE, self.queues), (Kind.REBUILT, self.rebuilt))
            for key in rows
            if key[0] == topic
        ]
        ended = (_row(kind, queue_key(*key), None) for kind, _, key in gone)
        self._journal.write(_row(Kind.DELETED, topic.encode(), row), *ended)
        self.deleted[topic] = row
        for _, rows, key in gone:
            del rows[key]
        self.sync()

    def removed(self, topic: str) -> None:
        """Note that the removal of a deleted topic's files is on the device."""
        self._going[topic] -= 1

    def settle_deleted(self, durable_offset: int) -> None:
        """Drop rows of topics that were deleted before an offset behind which any start begins."""
        for topic in [topic for topic, row in self.deleted.items() if row.born <= durable_offset and not self._going[topic]]:
            self._journal.write(_row(Kind.DELETED, topic.encode(), None))
            del self.deleted[topic]

    def cut_deleted(self, log_end: int) -> None:
        """Note that records were lost, and that others will come in their place, which are no deleted topic's.

        Waits for the device; raises OSError.
        """
        late = {topic: Row(log_end) for topic, row in self.deleted.items() if row.born > log_end}
        if late:
            self._journal.write(*(_row(Kind.DELETED, topic.encode(), row) for topic, row in late.items()))
            self.deleted.update(late)
            self.sync()

    def cut(self, ends: Mapping[ConsumeQueue, int], log_end: int) -> None:
        """Let the rows of queues count nothing behind the end of a log that is about to be cut. Raises OSError.

        ``ends`` says where each queue that is on the disk ends then. The others are rebuilt, and go on behind what the log has.
        """
        on_disk = {(queue.topic, queue.queue_id): queue for queue in ends}
        rows: list[JournalRow] = []
        for key, row in self.queues.items():
            queue = on_disk.get(key)
            end = 0 if queue is None else ends[queue]
            if queue is not None and end <= queue.first:
                rows.append(_row(Kind.QUEUE, queue_key(*key), None))
                continue
            last = row.last if queue is None else min(row.last, queue.segments.base(end * ENTRY_BYTES))
            born, made = min(row.born, log_end), min(row.made, log_end)
            cut = Row(born, row.first, last, made, min(row.end, end), -1 if queue is None else min(row.durable, end))
            rows.append(_row(Kind.QUEUE, queue_key(*key), cut))
        self._journal.write(*rows)

    def begin_rebuild(self, keys: Iterable[Key]) -> None:
        """Queues are going to be rebuilt: until `end_rebuild` each start does so. Waits for the device; raises OSError."""
        rows = {key: Row() for key in keys if key not in self.rebuilt}
        self._journal.write(*(_row(Kind.REBUILT, queue_key(*key), row) for key, row in rows.items()))
        self.rebuilt.update(rows)
        self.sync()

    def distrust(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Report a queue with an entry that points at no record, once, and have the next start rebuild it."""
        key = (queue.topic, queue.queue_id)
        if key in self.rebuilt:
            return
        log.error(
            "%s is damaged: its entry %d points at no record, and readers skip it. Its message may be in the log: the next start"
            " rebuilds the queue from there; fsck lists what is wrong",
            queue.segments.directory, queue_offset,
        )  # fmt: skip
        row = self.rebuilt[key] = Row(durable=DISTRUSTED)
        try:
            self._journal.write(_row(Kind.REBUILT, queue_key(*key), row))
        except OSError as exc:
            self._warn_once(exc)

    def end_rebuild(self, queues: Iterable[ConsumeQueue], log_end: int) -> None:
        """Note that queues are rebuilt, and on the device."""
        queues = list(queues)
        self.note(queues, log_end)
        rows = self.queues
        # Where the log has no more of a queue: nothing is missed again.
        self.note_durable(
            [(queue, min(rows[key].durable, queue.written)) for queue in queues if (key := (queue.topic, queue.queue_id)) in rows],
            log_end,
        )
        self.sync()
        self._journal.write(*(_row(Kind.REBUILT, queue_key(*key), None) for key in self.rebuilt))
        self.rebuilt.clear()

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget rows of queues that are not there and that nobody misses."""
        self._journal.write(*(_row(Kind.QUEUE, queue_key(*key), None) for key in keys))
        for key in keys:
            del self.queues[key]

    # ------------------------------------------------------------ key index

    def note_index(self, files: Sequence[tuple[str, int]]) -> None:
        """Make the rows of the key index those of its files: names, and the physical offsets of their first entries' records."""
        names = {name: Row(first=first) for name, first in files}
        new = {name: row for name, row in names.items() if name not in self.index}
        gone = [name for name in self.index if name not in names]
        try:
            self._journal.write(
                *(_row(Kind.INDEX, name.encode(), None) for name in gone),
                *(_row(Kind.INDEX, name.encode(), row) for name, row in new.items()),
            )
        except OSError as exc:
            self._warn_once(exc)
            return
        self.index = {name: self.index.get(name) or row for name, row in names.items()}

    def sync(self) -> None:
        """Wait until what was written is on the device. May be called from another thread. Raises OSError."""
        self._journal.sync()

    def _warn_once(self, exc: OSError) -> None:
        if not self._failed:
            self._failed = True
            log.warning("rows of the journal cannot be written; files removed from now on may go unnoticed: %s", exc)


def _files_of(queue: ConsumeQueue) -> tuple[int, int]:
    """Return where the first and last file of a queue begin; -1: there is no last."""
    segments = queue.segments
    return segments.first, -1 if segments.last is None else segments.last
