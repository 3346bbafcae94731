"""`Copying`: appends the bytes of a master's log to the store of a slave, at the same places, and enters their records into queues.

Bytes come cut anywhere. A record is written once it is there to its last byte and checks out, so the log never ends within one, and
a slave that stops goes on at the end of a record. Gives out no offsets. Queues are created at once.
Follows DefaultHAClient and ReputMessageService (RocketMQ 4.9.8).
Differs: the original writes every byte as it comes, and enters a record when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from halfmoon.errors import CorruptRecord, StoreError, StoreNotWritable, UsageError
from halfmoon.hot import (
    ENTRY,
    ENTRY_BYTES,
    RECORD_BYTES_MIN,
    QueueEntries,
    TransactionRun,
    copied_records,
)
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.health import Health
from halfmoon.store.keyindex.indexing import Indexing
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, HALF_TOPIC, OP_TOPIC, PREPARED
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.creation import QueueCreation
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.visible_offsets import VisibleOffsets
from halfmoon.store.records import RecordFacts, TagCode, check_at
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC

_APART = (SCHEDULE_TOPIC.encode(), TIMER_TOPIC.encode())
"""Topics whose entries have another number than the hash of a tag."""
_TRANSACTIONS = (HALF_TOPIC.encode(), OP_TOPIC.encode())


class Transactions(Protocol):
    """Keeper of the index of the transactions in the log."""

    def make_room(self, runs: Sequence[TransactionRun]) -> None:
        """Take the disk's space for what is to be entered. Raises StoreNotWritable when there is none."""

    def enter(self, runs: Sequence[TransactionRun]) -> None:
        """Enter what was appended to the log. Raises nothing: the log is more than its index."""


class Copying:
    """The end of a slave's log. ``received`` is the offset of the next byte that it wants.

    Bytes of a record that is not complete are kept in memory: no more than the largest record.
    """

    def __init__(
        self, log: CommitLog, queues: Queues, creation: QueueCreation, visible: VisibleOffsets, inventory: Inventory,
        indexing: Indexing, checkpoint: CheckpointFile, health: Health, tag_code: TagCode, record_bytes_max: int,
    ) -> None:  # fmt: skip
        self._log, self._queues, self._creation, self._visible = log, queues, creation, visible
        self._inventory, self._indexing, self._note_end, self._health = inventory, indexing, checkpoint.note_end, health
        self._tag_code, self._record_bytes_max = tag_code, record_bytes_max
        self.transactions: Transactions | None = None
        """Index that each record goes into that changes the state of a transaction; None: nobody keeps one."""
        self._rest = bytearray()
        self._wanted_bytes = BLANK_BYTES
        """Bytes that have to be there before the first record of the rest can be complete, or its size is known."""
        self._blank_left = 0
        """Bytes of a blank tail that are still to come; the log has ended its file already."""

    @property
    def received(self) -> int:
        """Offset of the next byte that is wanted."""
        return self._log.end - self._blank_left + len(self._rest)

    def begin(self, offset: int) -> None:
        """Let an empty log begin at an offset, at which a file of the master's begins. Raises StoreError for another."""
        log = self._log
        if log.segments.last is not None or offset < 0 or offset % log.file_bytes:
            raise StoreError(f"the log ends at {log.end}: it cannot begin at {offset}")
        self._inventory.note_log_first(offset)
        log.segments.first = offset
        log.set_end(offset)
        self._visible.end = self._indexing.position = offset

    def again(self) -> None:
        """Drop what is not complete: another connection sends it again, from the end of the log on."""
        self._keep(b"")
        self._blank_left = 0

    def take(self, data: bytes) -> None:
        """Append the next bytes of the master's log.

        Raises:
            CorruptRecord: the next bytes are no record; what lies before them is appended.
            StoreNotWritable: the disk is full: call `again`, and go on at the end of the log; or it failed, for good.
        """
        if (failure := self._health.failure) is not None:
            raise StoreNotWritable(failure)
        at = min(self._blank_left, len(data))
        self._blank_left -= at
        if len(self._rest) + len(data) - at < self._wanted_bytes:
            self._rest += data[at:]
            return
        if self._rest:
            data, at = bytes(self._rest) + data[at:], 0
        self._keep(b"")
        while True:
            run = self._complete(data, at)
            if run.end > at:
                self._append(memoryview(data)[at : run.end], run)
            at = run.end
            if run.damage is not None:
                raise run.damage
            if not run.blank_bytes:
                break
            self._close_file()
            self._blank_left = max(0, run.blank_bytes - len(data) + at)
            at += run.blank_bytes
        self._keep(data[at:])

    def _keep(self, rest: bytes) -> None:
        """Keep what is not complete."""
        self._rest[:] = rest
        self._wanted_bytes = BLANK.unpack_from(rest)[0] if len(rest) >= BLANK_BYTES else BLANK_BYTES

    def _complete(self, data: bytes, begin: int) -> _Run:
        """Return the records from a place of the data on, up to the first that is not complete, a blank tail, or damage."""
        start, file_left, size_max, run = self._log.end - begin, self._file_left(), self._record_bytes_max, _Run(begin)
        stop = min(len(data), begin + file_left - BLANK_BYTES)
        while True:
            at, last, queues, transactions = copied_records(data, (run.end, stop), start + run.end, _APART, _TRANSACTIONS, size_max)
            if at > run.end:
                run.end, (run.last, run.last_ms) = at, last
                run.queues += queues
                run.transactions += transactions
            if len(data) - at < BLANK_BYTES:
                return run
            place, left = start + at, begin + file_left - at
            size, magic = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                if size == left:
                    run.blank_bytes = size
                else:
                    run.damage = CorruptRecord(place, f"a blank tail of {size} bytes is too short")
                return run
            if not RECORD_BYTES_MIN <= size <= min(size_max, left - BLANK_BYTES):
                run.damage = CorruptRecord(place, f"a record cannot have {size} bytes there")
                return run
            if len(data) - at < size:
                return run
            try:
                self._add(run, memoryview(data)[: at + size], place)
            except CorruptRecord as exc:
                run.damage = exc
                return run

    def _add(self, run: _Run, data: memoryview, place: int) -> None:
        """Add the next record, the last of the data, by itself. Raises CorruptRecord."""
        record = check_at(data, run.end, place)
        assert isinstance(record, RecordFacts)
        if not record.sys_flag & PREPARED:
            entry = ENTRY.pack(place, record.size_bytes, self._tag_code(record.topic, record.properties, record.store_ms))
            run.queues.append((record.topic, record.queue_id, record.queue_offset, entry))
        alone = bytes(data[run.end :])  # by itself nothing is unusual about it
        run.transactions += copied_records(alone, (0, len(alone)), place, (), _TRANSACTIONS, len(alone))[3]
        run.end += record.size_bytes
        run.last, run.last_ms = place, record.store_ms

    def _file_left(self) -> int:
        """Return how many bytes the file of the log's end has from there on."""
        log = self._log
        return log.segments.base(log.end) + log.file_bytes - log.end

    def _close_file(self) -> None:
        """Close the current file with its blank tail, whose zeros may still be on their way."""
        try:
            self._log.roll()
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("the log", exc)) from exc
        self._note_end(self._log.end)

    # ------------------------------------------------------------ append

    def _append(self, data: memoryview, run: _Run) -> None:
        log, start = self._log, self._log.end
        blocks = self._blocks(run.queues)
        if run.transactions and self.transactions is not None:
            self.transactions.make_room(run.transactions)
        try:
            for queue, first, entries in blocks:
                if first + (count := len(entries) // ENTRY_BYTES) > queue.room:
                    self._visible.make_room(queue, first, count)
                    self._inventory.note([queue], start)
            if log.segments.last is None or start >= log.segments.end:
                log.segments.extend(start)
            log.segments.write(start, data)
            log.set_end(start + len(data))
            self._note_end(log.end)
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("the log", exc)) from exc
        log.last_store_ms = run.last_ms
        if log.end >= self._indexing.next_mark:
            self._indexing.mark(run.last)
        for queue, first, entries in blocks:
            self._visible.publish(queue, first, bytes(entries))
            queue.next_offset = queue.written
        self._visible.end, self._visible.end_ms = log.end, run.last_ms
        if run.transactions and self.transactions is not None:
            self.transactions.enter(run.transactions)

    def _blocks(self, queues: Iterable[QueueEntries]) -> list[_Block]:
        """Return the entries of queues, those of one queue that follow each other together.

        A record whose offset its queue has given out before belongs to a topic that was deleted and made again: it alone counts.
        """
        blocks: list[_Block] = []
        last: dict[ConsumeQueue, _Block] = {}
        for topic, queue_id, first, entries in queues:
            if (queue := self._queue_of(topic, queue_id)) is None:
                continue
            block = last.get(queue)
            end = queue.written if block is None else block.first + len(block.entries) // ENTRY_BYTES
            if block is not None and first == end:
                block.entries.extend(entries)
                continue
            if first < end:
                blocks = [each for each in blocks if each.queue is not queue]
                if queue.segments.last is not None and first < queue.written:
                    queue.cut(first, thorough=False)
            blocks.append(_Block(queue, first, bytearray(entries)))
            last[queue] = blocks[-1]
        return blocks

    def _queue_of(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, created if necessary; None: its topic cannot be a directory, so only the log has it."""
        try:
            return self._queues.get((topic, queue_id)) or self._creation.create(topic, queue_id)
        except UsageError:
            return None


class _Block(NamedTuple):
    """Entries of one queue, from queue offset ``first`` on."""

    queue: ConsumeQueue
    first: int
    entries: bytearray


@dataclass(slots=True)
class _Run:
    """Whole records that lie one behind the other up to ``end``, and what follows: a blank tail, damage, or nothing complete."""

    end: int
    last: int = 0
    """Offset of the last record, which was stored at ``last_ms``."""
    last_ms: int = 0
    queues: list[QueueEntries] = field(default_factory=list)
    transactions: list[TransactionRun] = field(default_factory=list)
    blank_bytes: int = 0
    damage: CorruptRecord | None = None
