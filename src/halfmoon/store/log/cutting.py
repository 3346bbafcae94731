"""Cuts the end off the log of a directory that nobody has open, for a master that comes back with records that no other has.

What a start believes is taken back first: from then on a start enters the log again from the cut on, whatever became of it. Then
the queues are cut, and the log last. A process that is stopped anywhere leaves a directory that opens, with a log that ends at the
cut or behind it, and the next call makes the same cut.

Queue offsets behind the cut are given out again: the new master has given them to other messages. Recovery does the rest, as after
a kill: key index and inventory. The transaction index is made again from the log where transactions are cut.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.hot import property_of
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint, CheckpointFile
from halfmoon.store.journal import Kind, Row
from halfmoon.store.keyindex.key_index import KeyIndex
from halfmoon.store.layout import ABORT, COMMIT_LOG, HALF_TOPIC, LOCK
from halfmoon.store.legacy import read_journal
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.files import check_directories
from halfmoon.store.log.quarantine import Quarantine
from halfmoon.store.log.rollback import roll_back_tables
from halfmoon.store.log.segments import Segments
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory, Key
from halfmoon.store.queues.missing import find_queues
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.records import RecordFacts
from halfmoon.store.settings import StoreSettings
from halfmoon.store.transactions.walk import transaction_record
from halfmoon.store.transactions.watermark import Watermark, WatermarkRow, read_watermark

log_lines = logging.getLogger("halfmoon.store")

KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of cut records that are kept in ``quarantine``. Of more, the newest records are lost."""
_CHUNK_BYTES = 64 * 1024


class Cut(NamedTuple):
    """Result of a cut."""

    offset: int
    records: int
    """Records that were cut."""
    size_bytes: int
    kept: str | None
    """The file in ``quarantine`` that has them; None: nothing was cut."""


def cut_log(disk: Disk, settings: StoreSettings, offset: int) -> Cut:
    """Let the log end at a physical offset, where a record begins or the log ends, and everything that is derived from it agree.

    The directory must have been opened before, as a broker or a slave; what it has at the offset must be whole. Waits for the
    device; reads the queues' ends and the log from the begin of its file on.

    Raises:
        StoreLocked: another process has the directory.
        StoreError: no record begins or ends at the offset, or another broker has run on the directory; nothing is changed.
        OSError: the disk fails, or is full; the next call goes on.
    """
    lock = disk.lock(LOCK)
    try:
        check_directories(disk)
        cutting = _Cutting(disk, settings, offset)
        try:
            return cutting.run()
        finally:
            cutting.close()
    finally:
        lock.release()


class _Tail(NamedTuple):
    """Records behind the cut."""

    records: int
    end: int
    """Behind the last of them; bytes behind it belong to none."""
    kept_end: int
    """Behind the last of them that is kept."""
    delayed: int
    """How many of them may be deliveries of delayed messages."""
    transactions: int
    """How many of them are about transactions."""


class _Cutting:
    def __init__(self, disk: Disk, settings: StoreSettings, offset: int) -> None:
        self._disk, self._settings, self._offset = disk, settings, offset
        self._log = CommitLog(disk, settings.commit_log_file_bytes, bytes(8), settings.message_bytes_max)
        self._journal = read_journal(disk)
        self._checkpoint_file = CheckpointFile(disk, self._journal)
        self._queues: dict[Key, ConsumeQueue] = {}

    def close(self) -> None:
        self._checkpoint_file.close()
        self._journal.close()
        for segments in (self._log.segments, *(queue.segments for queue in self._queues.values())):
            segments.close()

    def run(self) -> Cut:
        segments, offset = self._log.segments, self._offset
        segments.load()
        checkpoint = self._checkpoint_file.read()
        if not self._checkpoint_file.ours:
            raise StoreError("the log cannot be cut: Halfmoon has not run on the directory, or another broker has since")
        if segments.last is None:
            segments.first = checkpoint.durable_offset
        self._check_offset()
        tail = self._tail()
        kept = self._keep(tail)
        self._queues = find_queues(self._disk, self._settings.queue_file_bytes, noted=True).queues
        ends = {key: queue.end_below(offset) for key, queue in self._queues.items()}
        roll_back_tables(self._disk, self._queues, ends, offset, tail.delayed)
        self._take_back(checkpoint, tail, ends)
        self._cut_queues(ends)
        self._cut_log()
        return Cut(offset, tail.records, tail.end - offset, kept)

    # ------------------------------------------------------------ the log

    def _check_offset(self) -> None:
        """Raise StoreError unless a record begins or ends at the offset: in its file, or right before it."""
        log, offset = self._log, self._offset
        segments = log.segments
        if not segments.first <= offset <= segments.end:
            raise StoreError(f"the log cannot be cut at {offset}: its files go from {segments.first} to {segments.end}")
        end = segments.first if offset == segments.first else segments.base(offset - 1)
        for position, found in log.scan(max(end, segments.first)):
            if position >= offset:
                break
            end = position + found.size_bytes
        if offset not in (end, log.behind_blank(end)):
            raise StoreError(f"the log cannot be cut at {offset}: no record begins or ends there")

    def _tail(self) -> _Tail:
        offset, records, delayed, transactions = self._offset, 0, 0, 0
        end = kept_end = offset
        for position, record in self._log.scan(offset, known_to=self._log.segments.end):
            end = position + record.size_bytes
            if end - offset <= KEPT_BYTES_MAX:
                kept_end = end
            records += 1
            if isinstance(record, RecordFacts):
                delayed += property_of(record.properties, b"REAL_TOPIC") is not None
                view = self._log.segments.view(position, record.size_bytes)
                transactions += transaction_record(position, record, view) is not None
        return _Tail(records, end, kept_end, delayed, transactions)

    def _keep(self, tail: _Tail) -> str | None:
        if tail.end == self._offset:
            return None
        reason = f"{tail.records} records are cut: the log ends at {self._offset} from now on"
        kept = None
        if tail.kept_end > self._offset:
            kept = Quarantine(self._disk).span(self._log.segments, self._offset, tail.kept_end, reason)
        if tail.kept_end < tail.end:
            log_lines.warning(
                "the last %d bytes of the log that are cut are not kept, for they are more than %d",
                tail.end - tail.kept_end, KEPT_BYTES_MAX,
            )  # fmt: skip
        return kept

    def _cut_log(self) -> None:
        """Remove and clear from the end on, so that what is left of the log at any moment is its begin."""
        segments, offset = self._log.segments, self._offset
        is_whole_file = offset == segments.base(offset) and offset > segments.first
        while segments.last is not None and segments.last > (offset - 1 if is_whole_file else offset):
            segments.remove_after(segments.last - 1)
            self._disk.sync_directory(COMMIT_LOG)
        if segments.last is not None and offset < segments.end:
            end = segments.last + segments.data_end(segments.last)
            for start in range(end - (end - offset) % _CHUNK_BYTES, offset - 1, -_CHUNK_BYTES):
                _clear(segments, start, min(_CHUNK_BYTES, end - start))
            segments.sync_now()

    # ------------------------------------------------------------ what a start believes

    def _take_back(self, checkpoint: Checkpoint, tail: _Tail, ends: Mapping[Key, int]) -> None:
        """Let a start believe nothing of what lies behind the cut. Waits for the device."""
        offset, disk, journal = self._offset, self._disk, self._journal
        if not disk.exists(ABORT):
            boot_id = disk.boot_id()
            disk.save(ABORT, boot_id.encode() if boot_id else b"", keep_previous=False)
            disk.sync_directory("")
        journal.begin(again=True)
        self._checkpoint_file.write(self._earlier(checkpoint))
        for _ in range(2):
            self._checkpoint_file.note_end(offset)
        Inventory(journal).cut({queue: ends[key] for key, queue in self._queues.items()}, offset)
        Reservations(journal).cut(ends, [key for key, queue in self._queues.items() if ends[key] <= queue.first])
        was = read_watermark(journal)
        if was is not None and not was.foreign:
            WatermarkRow(journal).write(self._earlier_watermark(was, tail, ends))
        journal.write(Row(Kind.DELAYS, b"", None))
        self._checkpoint_file.sync(file=True)

    def _earlier(self, was: Checkpoint) -> Checkpoint:
        """Return a checkpoint that speaks of nothing behind the cut."""
        offset = self._offset
        now = was._replace(
            durable_offset=min(was.durable_offset, offset), published_offset=min(was.published_offset, offset), clean=False
        )
        if was.indexed_offset <= offset:
            return now
        index = KeyIndex(self._disk, self._settings.hash_slots, self._settings.index_entries_max)
        index.load()
        files = [file for file in index.files if file.header.begin_offset < offset]
        count = files[-1].header.count if files else 0
        while count > 1 and files[-1].entry(count - 1)[1] >= offset:
            count -= 1
        safe = [file.header for file in files if file.header.end_offset < min(offset, was.index_safe_offset + 1)]
        for file in index.files:
            file.file.close()
        return now._replace(
            indexed_offset=offset, index_entries=count,
            index_safe_offset=safe[-1].end_offset if safe else 0, index_ms=safe[-1].end_ms if safe else 0,
        )  # fmt: skip

    def _earlier_watermark(self, was: Watermark, tail: _Tail, ends: Mapping[Key, int]) -> Watermark:
        """Return a watermark from which a start makes the transaction index agree with the log."""
        if tail.transactions:
            return Watermark(none_below=min(was.none_below, ends.get((HALF_TOPIC, 0), 0)), end=self._offset)
        return was._replace(position=min(was.position, self._offset), end=min(was.end, self._offset), clean=False)

    def _cut_queues(self, ends: Mapping[Key, int]) -> None:
        for key, queue in self._queues.items():
            queue.cut(ends[key], thorough=True)
            queue.segments.sync_now()


def _clear(segments: Segments, start: int, size: int) -> None:
    """Make bytes zero; what is zero already is only read."""
    if size > 0 and any(segments.peek(start, size)):
        segments.write(start, bytes(size))
