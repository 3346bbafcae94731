"""`Copying`: appends the bytes of a master's log to the store of a slave, at the same places, and enters their records into queues.

Bytes come cut anywhere. A record is written once it is there to its last byte and checks out, so the log never ends within one, and
a slave that stops goes on at the end of a record. Gives out no offsets. Queues are created at once.
Follows DefaultHAClient and ReputMessageService (RocketMQ 4.9.8).
Differs: the original writes every byte as it comes, and enters a record when it is complete.
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.errors import CorruptRecord, StoreError, StoreNotWritable, UsageError
from halfmoon.hot import ENTRY, ENTRY_BYTES, RECORD_BYTES_MIN
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.health import Health
from halfmoon.store.keyindex.indexing import Indexing
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC, PREPARED
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.creation import QueueCreation
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.visible_offsets import VisibleOffsets
from halfmoon.store.records import RecordFacts, TagCode, check_at


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
        self._rest = bytearray()
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
        log.segments.first = offset
        log.set_end(offset)
        self._visible.end = offset

    def again(self) -> None:
        """Drop what is not complete: another connection sends it again, from the end of the log on."""
        self._rest.clear()
        self._blank_left = 0

    def take(self, data: bytes | memoryview) -> int:
        """Append the next bytes of the master's log; return how many records became complete.

        Raises:
            CorruptRecord: the next bytes are no record; what lies before them is appended.
            StoreNotWritable: the disk is full: call `again`, and go on at the end of the log; or it failed, for good.
        """
        if (failure := self._health.failure) is not None:
            raise StoreNotWritable(failure)
        skipped = min(self._blank_left, len(data))
        self._blank_left -= skipped
        self._rest += data[skipped:]
        count = 0
        while True:
            run = self._complete(memoryview(bytes(self._rest)))
            if run.records:
                self._append(bytes(self._rest[: run.size_bytes]), run.records)
                count += len(run.records)
            del self._rest[: run.size_bytes]
            if run.damage is not None:
                raise run.damage
            if not run.blank_bytes:
                return count
            self._close_file(run.blank_bytes)

    def _complete(self, view: memoryview) -> _Run:
        """Return the records at the begin of some bytes, up to the first that is not complete, a blank tail, or damage."""
        log, at, records = self._log, 0, list[tuple[int, RecordFacts]]()
        file_left = self._file_left()
        while len(view) - at >= BLANK_BYTES:
            place = log.end + at
            size, magic = BLANK.unpack_from(view, at)
            if magic == BLANK_MAGIC:
                damage = None if size == file_left - at else CorruptRecord(place, f"a blank tail of {size} bytes is too short")
                return _Run(at, records, 0 if damage else size, damage)
            if not RECORD_BYTES_MIN <= size <= min(self._record_bytes_max, file_left - at - BLANK_BYTES):
                return _Run(at, records, 0, CorruptRecord(place, f"a record cannot have {size} bytes there"))
            if len(view) - at < size:
                break
            try:
                found = check_at(view[: at + size], at, place)
            except CorruptRecord as exc:
                return _Run(at, records, 0, exc)
            assert isinstance(found, RecordFacts)
            records.append((place, found))
            at += size
        return _Run(at, records)

    def _file_left(self) -> int:
        """Return how many bytes the file of the log's end has from there on."""
        log = self._log
        return log.segments.base(log.end) + log.file_bytes - log.end

    def _close_file(self, blank_bytes: int) -> None:
        """Close the current file with its blank tail, whose zeros may still be on their way."""
        try:
            self._log.roll()
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("the log", exc)) from exc
        self._note_end(self._log.end)
        self._blank_left = max(0, blank_bytes - len(self._rest))
        del self._rest[:blank_bytes]

    # ------------------------------------------------------------ append

    def _append(self, data: bytes, records: list[tuple[int, RecordFacts]]) -> None:
        log, start = self._log, self._log.end
        blocks = self._blocks(records)
        try:
            for queue, first, entries in blocks:
                self._visible.make_room(queue, first, len(entries) // ENTRY_BYTES)
                self._inventory.note([queue], start)
            if log.segments.last is None or start >= log.segments.end:
                log.segments.extend(start)
            log.segments.write(start, data)
            log.set_end(start + len(data))
            self._note_end(log.end)
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("the log", exc)) from exc
        place, last = records[-1]
        log.last_store_ms = last.store_ms
        if log.end >= self._indexing.next_mark:
            self._indexing.mark(place)
        for queue, first, entries in blocks:
            self._visible.publish(queue, first, bytes(entries))
            queue.next_offset = queue.written
        self._visible.end, self._visible.end_ms = log.end, last.store_ms

    def _blocks(self, records: list[tuple[int, RecordFacts]]) -> list[_Block]:
        """Return the entries of records, those of one queue that follow each other together.

        A record whose offset its queue has given out before belongs to a topic that was deleted and made again: it alone counts.
        """
        blocks: list[_Block] = []
        last: dict[ConsumeQueue, _Block] = {}
        for place, record in records:
            if record.sys_flag & PREPARED or (queue := self._queue_of(record)) is None:
                continue
            entry = ENTRY.pack(place, record.size_bytes, self._tag_code(record.topic, record.properties, record.store_ms))
            block, offset = last.get(queue), record.queue_offset
            end = queue.written if block is None else block.first + len(block.entries) // ENTRY_BYTES
            if block is not None and offset == end:
                block.entries.extend(entry)
                continue
            if offset < end:
                blocks = [each for each in blocks if each.queue is not queue]
                if queue.segments.last is not None and offset < queue.written:
                    queue.cut(offset, thorough=False)
            blocks.append(_Block(queue, record.queue_offset, bytearray(entry)))
            last[queue] = blocks[-1]
        return blocks

    def _queue_of(self, record: RecordFacts) -> ConsumeQueue | None:
        """Return the queue of a record, created if necessary; None: its topic cannot be a directory, so only the log has it."""
        try:
            return self._queues.get((record.topic, record.queue_id)) or self._creation.create(record.topic, record.queue_id)
        except UsageError:
            return None


class _Block(NamedTuple):
    """Entries of one queue, from queue offset ``first`` on."""

    queue: ConsumeQueue
    first: int
    entries: bytearray


class _Run(NamedTuple):
    """Whole records that lie one behind the other, and what follows: a blank tail, damage, or nothing complete."""

    size_bytes: int
    records: list[tuple[int, RecordFacts]]
    blank_bytes: int = 0
    damage: CorruptRecord | None = None
