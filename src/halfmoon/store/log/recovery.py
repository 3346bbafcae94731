"""`Recovery`: from files in any state to a log with an end and queues that agree with it. Runs once, when a store is opened.

The checkpoint says up to where log and queues are whole; from there on each record is checked and entered into its queue again.
Nothing behind the end may ever come back:

* If the machine did not restart (same boot id) and zeros follow the end, the page cache kept everything: the log goes on in place.
* Otherwise the rest of the file is closed with a blank tail, durably, and the log continues in a new file. Stale bytes cannot line
  up behind the blank, however often the machine stops in between and in whatever order pages reach the device.

Follows CommitLog.recoverNormally / recoverAbnormally (RocketMQ 4.9.8) where the checkpoint is another broker's.
Differs: starts at the checkpoint's offset where it is ours; continues behind damaged records; never reuses a queue offset, not
even that of a record that is damaged or gone: `halfmoon.store.queues.reservations` and the queues' entries tell them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from halfmoon.errors import CorruptRecord, UsageError
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE, MAGIC, RECORD_BYTES_MIN
from halfmoon.store.checkpoint import LastRun
from halfmoon.store.layout import PREPARED
from halfmoon.store.log.commit_log import NOTHING_THERE, CommitLog, DamagedRange
from halfmoon.store.log.quarantine import Quarantine
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Key, Row
from halfmoon.store.queues.missing import Queues, Rebuild
from halfmoon.store.queues.reservations import STEP_MAX, Reservations
from halfmoon.store.records import RecordFacts, TagCode, check_at

log_lines = logging.getLogger("halfmoon.store")

NewQueue = Callable[[str, int], ConsumeQueue]
_ENTRIES_AT_ONCE = 1024
_GAP_MAX = 2 * STEP_MAX
"""Offsets that a record may be ahead of its queue: what a reservation can leave out, besides the records in damaged bytes. A larger
gap means a damaged number."""
_WARNINGS_MAX = 50
"""Damaged ranges that a start logs one by one; the rest is only counted."""
_OFFSET_MAX = 1 << 55


@dataclass
class RecoveryResult:
    """Result of recovery."""

    clean: bool
    lost: bool
    """As in `LastRun`."""
    start: int = 0
    """Where the scan began."""
    end: int = 0
    found_end: int = 0
    """Behind the last record; ``end`` is behind it when the rest of its file was left blank."""
    records: int = 0
    damaged: list[DamagedRange] = field(default_factory=list)
    """Ranges of the log that hold no record, or one that its queue cannot have. What lies behind them was found."""
    rolled: bool = False


class Recovery:
    """One recovery.

    ``cut_short``: the offset of a log file that was cut short, so that all of it is checked again; None: there is none.
    ``rebuild``: queues that get all their entries from the log.
    ``deleted``: what lies before the birth of these rows belongs to deleted topics.
    ``new_queue`` creates and enters a queue for (topic, queue_id).
    ``is_slave``: the log ends before the first damage, in its place: its master sends the rest again.
    """

    def __init__(
        self, log: CommitLog, queues: Queues, last_run: LastRun, quarantine: Quarantine, reservations: Reservations, *,
        cut_short: int | None, rebuild: Rebuild, deleted: Mapping[str, Row], new_queue: NewQueue, tag_code: TagCode,
        is_slave: bool,
    ) -> None:  # fmt: skip
        self._log, self._queues, self._last_run, self._quarantine = log, queues, last_run, quarantine
        self._reservations, self._cut_short, self._rebuild, self._deleted = reservations, cut_short, rebuild, deleted
        self._new_queue, self._tag_code, self._is_slave = new_queue, tag_code, is_slave
        self._result = RecoveryResult(last_run.clean, last_run.lost)
        self._ends: dict[Key, int] = {key: max(row.end, row.durable) for key, row in rebuild.rows.items()}
        """Behind the last entry that each queue once had, as far as is known."""
        self._unwritten: dict[Key, tuple[int, bytearray]] = {}
        """Entries that are not written yet: the queue offset of the first, and their bytes."""
        self._skipped = 0
        """How many records may have been in the damaged ranges."""

    def run(self) -> RecoveryResult:
        """Find the end of the log, add what the queues lack, and cut what they have too much.

        Damage is logged; what is cut is kept in quarantine. Raises OSError when the disk fails.
        """
        result, last_run = self._result, self._last_run
        result.start = _scan_start(self._log, self._last_run)
        if self._cut_short is not None and self._cut_short < result.start:
            result.start = self._cut_short
        else:
            self._cut_short = None
        kept = self._cut_queues()
        result.end = self._enter_records()
        if result.end < last_run.written_offset and not self._is_slave:
            result.damaged.append(DamagedRange(result.end, last_run.written_offset - result.end, NOTHING_THERE))
            result.end = last_run.written_offset
        result.found_end = result.end
        if self._may_lack_messages(kept):
            # The last messages of a rebuilt queue may be the damaged or missing ones: it continues behind its reservation.
            rebuilt = self._reservations.queues() if self._rebuild.everything else self._rebuild.rows
            self._go_on_behind_reservations(rebuilt)
        if not (last_run.clean or last_run.lost):
            self._go_on_behind_lost_entries()
        self._settle_end()
        self._report()
        self._continue_queues()
        return result

    def _go_on_behind_reservations(self, keys: Iterable[Key]) -> None:
        self._reservations.raise_floors({key: self._reservations.reserved(*key) for key in keys})

    def _cut_queues(self) -> dict[Key, int]:
        """Cut from each queue the entries that are not to be trusted; return the end of those that are kept."""
        last_run = self._last_run
        if self._cut_short is not None or not (last_run.lost or (last_run.clean and last_run.ours)):
            for key, queue in self._queues.items():
                self._ends[key] = queue.end_below(self._log.segments.end)
        kept = {key: _trusted_end(queue, self._log, self._result.start) for key, queue in self._queues.items()}
        # Durably, and before the entries that tell it are cut: no offset is given out again, whatever became of the records.
        self._reservations.raise_floors({key: end for key, end in self._ends.items() if end > kept.get(key, 0)})
        for key, queue in self._queues.items():
            queue.cut(kept[key], thorough=last_run.lost or not last_run.ours)
        return kept

    def _may_lack_messages(self, kept: Mapping[Key, int]) -> bool:
        """Whether messages that were stored once may be damaged or gone."""
        if self._cut_short is not None or self._result.damaged or not self._last_run.ours:
            return True
        shorter = any(end > self._queues[key].written for key, end in self._ends.items() if key in kept)
        return shorter or self._something_behind()

    def _go_on_behind_lost_entries(self) -> None:
        """After a kill, let no offset be given out again of a message whose entry waited in memory and whose record is hit."""
        result, last_run, reservations = self._result, self._last_run, self._reservations
        if last_run.noted_end is None:
            if not last_run.ours or self._cut_short is not None or result.damaged or self._something_behind():
                self._go_on_behind_reservations(reservations.queues())
            return
        hit = sum(size for start, size, _ in result.damaged if start + size > last_run.entered_offset)
        hit += max(0, last_run.noted_end - result.end)  # behind the note is a write cut short: nothing of it was answered
        if hit:
            count = hit // RECORD_BYTES_MIN + 1
            ends = {key: queue.written for key, queue in self._queues.items()}
            ends = {key: max(ends.get(key, 0), reservations.floor(*key)) + count for key in reservations.queues()}
            reservations.raise_floors({key: min(end, reservations.reserved(*key)) for key, end in ends.items()})

    # ------------------------------------------------------------ records

    def _enter_records(self) -> int:
        """Check every record from the start on and enter it into its queue; return the end of the last.

        Records before the start are read for queues that are rebuilt only.
        """
        result, end = self._result, self._result.start
        for position, record in self._records():
            if isinstance(record, DamagedRange):
                if self._is_slave:
                    break
                result.damaged.append(record)
                end = max(end, position + record.size_bytes)
                self._skipped += record.size_bytes // RECORD_BYTES_MIN
                continue
            if position >= result.start:
                end = position + record.size_bytes
                result.records += 1
                self._log.last_store_ms = record.store_ms
            if self._wants_entry(position, record) and (queue := self._queue_of(position, record)) is not None:
                self._enter(queue, position, record)
        for key in list(self._unwritten):
            self._write_entries(key)
        return end

    def _records(self) -> Iterator[tuple[int, RecordFacts | DamagedRange]]:
        """Walk the log from where it is needed."""
        start, last_run = self._result.start, self._last_run
        if self._rebuild.rows or self._rebuild.everything:
            yield from self._log.scan(self._log.first, start, known_to=start)
        # A loss may have left anything behind the durable offset, such as pages of it: nothing is looked for behind damage there.
        # Everything else was written, so damage costs only what it hit. Another broker's durable offset is unknown.
        known_to = last_run.durable_offset if last_run.ours and last_run.lost else sys.maxsize
        rising = last_run.lost and not last_run.ours
        yield from self._log.scan(start, doubtful=not last_run.clean, known_to=known_to, rising=rising)

    def _wants_entry(self, position: int, record: RecordFacts) -> bool:
        if record.sys_flag & PREPARED:  # the bit that PREPARED and ROLLBACK share: neither is in a queue
            return False
        if position < self._result.start and not self._rebuild.wants((record.topic, record.queue_id), position):
            return False
        row = self._deleted.get(record.topic)
        return row is None or position >= row.born

    def _queue_of(self, position: int, record: RecordFacts) -> ConsumeQueue | None:
        """Return the queue of a record, created if necessary; None: its topic cannot be a directory, so only the log has it."""
        key = (record.topic, record.queue_id)
        queue = self._queues.get(key)
        if queue is None:
            try:
                queue = self._new_queue(*key)
            except UsageError:
                return None
            row = self._rebuild.rows.get(key)
            queue.born = position if row is None else max(0, row.born)
        return queue

    def _enter(self, queue: ConsumeQueue, position: int, record: RecordFacts) -> None:
        """Add the entry of a record, unless the queue has it."""
        key, queue_offset = (record.topic, record.queue_id), record.queue_offset
        entry = ENTRY.pack(position, record.size_bytes, self._tag_code(record.topic, record.properties, record.store_ms))
        if key in self._unwritten:
            first, entries = self._unwritten[key]
            if queue_offset == first + len(entries) // ENTRY_BYTES and len(entries) < _ENTRIES_AT_ONCE * ENTRY_BYTES:
                entries += entry
                return
            self._write_entries(key)
        has_files = queue.segments.last is not None
        if queue_offset < queue.written and has_files:
            if queue_offset < queue.first or queue.entry(queue_offset)[0] == position:
                return
            queue.cut(queue_offset, thorough=False)  # the queue was deleted in between and started again: the later one counts
            has_files = queue.segments.last is not None
        if queue_offset > (queue.written + _GAP_MAX + self._skipped if has_files else _OFFSET_MAX):
            reason = f"queue offset {queue_offset} where queue {record.queue_id} of {record.topic} ends at {queue.written}"
            self._result.damaged.append(DamagedRange(position, record.size_bytes, reason))
            return
        self._unwritten[key] = (queue_offset, bytearray(entry))

    def _write_entries(self, key: Key) -> None:
        first, entries = self._unwritten.pop(key)
        queue = self._queues[key]
        queue.publish(first, bytes(entries), self._log.file_bytes)
        queue.write_out()

    # ------------------------------------------------------------ end

    def _something_behind(self) -> bool:
        """Whether bytes other than zeros stand behind the end."""
        segments, end = self._log.segments, self._result.end
        return segments.last is not None and (segments.last > end or not segments.is_clear(end, 64 * 1024))

    def _settle_end(self) -> None:
        """Make sure that nothing behind the end can be read as a record later."""
        segments, result, end = self._log.segments, self._result, self._result.end
        if segments.last is not None and end < segments.end:
            reason = f"the log ends at {end}"
            for base in range(segments.last, max(end, segments.first - 1), -segments.file_bytes):
                # A file that was made ahead, and never written, is nothing to keep.
                keep = segments.data_end(base) > 0
                segments.remove_after(base - 1, remove=(lambda path: self._quarantine.file(path, reason)) if keep else None)
            # A clean stop of ours synced the log, and nothing was appended since: nothing stale stands behind the end.
            stopped_cleanly = result.clean and self._last_run.ours and result.records == 0
            if self._is_slave and not stopped_cleanly:
                segments.clear_from(end, thorough=True)
            elif not stopped_cleanly and (result.lost or self._something_behind()):
                self._quarantine.rest(segments, end, reason)
                if end == segments.base(end):
                    segments.remove_after(end - 1)
                    segments.extend(end)
                result.rolled = True
        self._log.set_end(end)
        if result.rolled:
            self._log.roll()
            result.end = self._log.end

    def _report(self) -> None:
        """Log the damaged ranges with files, bytes and offsets."""
        segments, damaged = self._log.segments, self._result.damaged
        for physical_offset, size_bytes, reason in damaged[:_WARNINGS_MAX]:
            base = segments.base(physical_offset)
            log_lines.warning(
                "%s, bytes %d to %d (physical offset %d) hold no message; recovery continues behind them: %s",
                segments.path(base), physical_offset - base, physical_offset - base + size_bytes, physical_offset, reason,
            )  # fmt: skip
        if damaged:
            total = sum(size_bytes for _, size_bytes, _ in damaged)
            log_lines.warning(
                "the log is damaged in %d places, %d bytes, from offset %d on", len(damaged), total, self._result.start
            )

    def _continue_queues(self) -> None:
        """Let every queue continue behind all offsets that it ever gave out."""
        for key in self._reservations.queues():
            if self._reservations.floor(*key) and key not in self._queues:
                self._new_queue(*key)  # all of its messages are gone
        for key, queue in self._queues.items():
            queue.next_offset = max(queue.written, self._reservations.floor(*key))
            if self._ends.get(key, 0) > queue.written:
                log_lines.warning(
                    "%s: the records of offsets %d to %d are damaged or gone; the queue continues at %d",
                    queue.segments.directory, queue.written, self._ends[key], queue.next_offset,
                )  # fmt: skip
            if queue.segments.last is None:
                # Without entries it is empty at its next offset, and not at 0.
                queue.cut(queue.next_offset, thorough=False)
            queue.correct_min(self._log.first)


def _scan_start(log: CommitLog, last_run: LastRun) -> int:
    """Return the offset of a record (or of the end) from which on everything is checked."""
    segments = log.segments
    if segments.last is None:
        segments.first = last_run.durable_offset
        return segments.first
    if last_run.ours and log.first <= last_run.entered_offset <= segments.end:
        return last_run.entered_offset
    if last_run.clean:
        # The last three files, as recoverNormally does.
        return max(segments.first, segments.last - 2 * log.file_bytes)
    for base in range(segments.last, segments.first - 1, -log.file_bytes):
        if int.from_bytes(segments.view(base, 8)[4:8], "big", signed=True) == MAGIC:
            record = log.facts_at(base)
            if record is not None and record.store_ms <= last_run.checkpoint.usable_ms:
                return base
    return segments.first


def _trusted_end(queue: ConsumeQueue, log: CommitLog, start: int) -> int:
    """Return the end of a queue's entries that point below ``start``; the last of them must point at a record of the queue."""
    end = queue.end_below(start)
    if end <= queue.first or _points_at_its_record(queue, log, end - 1):
        return end
    # Halving went astray, so walk: entries are good as long as they point at rising offsets below the start.
    at, position, end = queue.first, -1, queue.first
    while at * ENTRY_BYTES < queue.segments.end:
        physical_offset, size, _ = queue.entry(at)
        at += 1
        if size == FILLER_SIZE:
            continue
        if size <= 0 or not 0 <= physical_offset < start or physical_offset < position:
            break
        position, end = physical_offset, at
    while end > queue.first and (queue.entry(end - 1)[1] == FILLER_SIZE or not _points_at_its_record(queue, log, end - 1)):
        end -= 1
    return end


def _points_at_its_record(queue: ConsumeQueue, log: CommitLog, queue_offset: int) -> bool:
    physical_offset, size, _ = queue.entry(queue_offset)
    if physical_offset < log.first:
        return True  # its record was deleted
    base = log.segments.base(physical_offset)
    if log.segments.last is None or base > log.segments.last:
        return False
    try:
        record = check_at(log.segments.view(base, log.file_bytes), physical_offset - base, physical_offset)
    except CorruptRecord:
        return size > 0  # damaged in the middle of what is trusted: only that record is lost
    return isinstance(record, RecordFacts) and (record.topic, record.queue_id, record.queue_offset, record.size_bytes) == (
        queue.topic, queue.queue_id, queue_offset, size,
    )  # fmt: skip
