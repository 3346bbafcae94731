"""Recovery: from files in any state to a log with an end and queues that agree with it. Runs once, when a store is opened.

The checkpoint says up to where log and queues are whole; from there each record is checked and put into its queue anew. What
lies behind the end must never come back:

* The machine did not restart (same boot id) and zeros follow the end: the page cache kept everything, the log goes on in place.
* Else the rest of the file is closed with a blank tail, durably, and the log goes on in a new file. Stale bytes cannot line up
  behind the blank, however often the machine stops in between and in whatever order pages reached the device.

Follows CommitLog.recoverNormally / recoverAbnormally (RocketMQ 4.9.8) where the checkpoint is another broker's.
Differs: starts at the checkpoint's offset where it is ours; goes on behind one damaged record; never reuses queue
offsets, nor those of records that are damaged or gone, as `halfmoon.store.queues.reservations` and the queues' entries tell them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from halfmoon.errors import CorruptRecord, UsageError
from halfmoon.hot import ENTRY, ENTRY_BYTES, MAGIC, RECORD_BYTES_MIN
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint
from halfmoon.store.layout import ABORT, FILLER_SIZE
from halfmoon.store.log.commit_log import CommitLog, Damaged
from halfmoon.store.log.set_aside import Aside
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Key, Row
from halfmoon.store.queues.missing import Queues, Rebuild
from halfmoon.store.queues.reservations import STEP_MAX, Reserve
from halfmoon.store.records import RecordFacts, TagCode, check_at

log_lines = logging.getLogger("halfmoon.store")

NewQueue = Callable[[str, int], ConsumeQueue]
_ENTRIES_AT_ONCE = 1024
_GAP_MAX = 2 * STEP_MAX
"""Offsets that a record may be ahead of its queue: what a reservation can leave out, beside what lay in damaged bytes. More is a
damaged number."""
_LINES_MAX = 50
"""Damaged places that a start writes into the log, one a line; of more only the sum is said."""
_OFFSET_MAX = 1 << 55


@dataclass
class Recovered:
    """What recovery found."""

    clean: bool
    lost: bool
    """Writes may have been lost: the machine restarted, or nobody knows."""
    start: int = 0
    """Where the scan began."""
    end: int = 0
    found_end: int = 0
    """Behind the last record that was found; ``end`` lies behind it when the rest of its file was left blank."""
    records: int = 0
    damaged: list[Damaged] = field(default_factory=list)
    """Places of the log that are no record, or one that its queue cannot have; what lies behind them was found."""
    rolled: bool = False


def stop_kind(disk: Disk) -> tuple[bool, bool]:
    """Return (clean, lost): whether the last run ended cleanly, and whether its unsynced writes may be gone."""
    mark = disk.read(ABORT)
    if mark is None:
        return True, False
    boot_id = disk.boot_id()
    return False, boot_id is None or mark != boot_id.encode()


def recover(
    log: CommitLog, queues: Queues, checkpoint: Checkpoint, aside: Aside, *, ours: bool, clean: bool, lost: bool,
    known_to: int, doubtful_from: int | None, rebuild: Rebuild, deleted: Mapping[str, Row], reserve: Reserve, new_queue: NewQueue,
    tag_code: TagCode,
) -> Recovered:  # fmt: skip
    """Find the log's end, put what the queues lack into them, and cut what they have too much.

    ``known_to``: there were records up to this offset. ``doubtful_from``: the file that begins here was cut short, and is checked
    again. ``rebuild``: these queues have no files, and get their entries from the whole log. ``deleted``: what lies before the
    birth of these rows is of topics that were deleted. ``new_queue`` makes and enters a queue for (topic, queue_id). What is
    damaged is logged, what is cut is kept as well. Raises OSError when the disk fails.
    """
    facts = Recovered(clean, lost)
    facts.start = _start(log, checkpoint, ours=ours, clean=clean, lost=lost)
    cut_short = doubtful_from is not None and doubtful_from < facts.start
    if doubtful_from is not None and cut_short:
        facts.start = doubtful_from
    ends: dict[Key, int] = {key: max(row.end, row.durable) for key, row in rebuild.rows.items()}
    if cut_short or not (lost or (clean and ours)):
        ends |= {key: queue.end_below(log.segments.end) for key, queue in queues.items()}
    whole = {key: _queue_end(queue, log, facts.start) for key, queue in queues.items()}
    # Durably, before anything is cut that tells it: no offset is given out again, whatever became of the records.
    reserve.raise_floors({key: end for key, end in ends.items() if end > whole.get(key, 0)})
    for key, queue in queues.items():
        queue.cut(whole[key], thorough=lost or not ours)
    facts.end = _scan(log, queues, facts, checkpoint, rebuild, deleted, new_queue, tag_code, ours=ours)
    if facts.end < known_to:
        facts.damaged.append(Damaged(facts.end, known_to - facts.end, "the records that were here are gone"))
        facts.end = known_to
    facts.found_end = facts.end
    shorter = any(end > queues[key].written for key, end in ends.items() if key in whole)
    if shorter or cut_short or facts.damaged or not ours or _something_behind(log, facts):
        # The last messages of a queue that was made anew may be what is damaged, or gone.
        rebuilt = reserve.queues() if rebuild.everything else rebuild.rows
        reserve.raise_floors({key: reserve.reserved(*key) for key in rebuilt})
    _settle_end(log, facts, aside, ours=ours)
    _report(log, facts)
    for key in reserve.queues():
        if reserve.floor(*key) and key not in queues:
            new_queue(*key)  # all of its messages are gone: it goes on where it was
    for key, queue in queues.items():
        queue.next_offset = max(queue.written, reserve.floor(*key))
        if ends.get(key, 0) > queue.written:
            log_lines.warning(
                "%s: the records of its offsets %d to %d are damaged or gone, it goes on at %d",
                queue.segments.directory, queue.written, ends[key], queue.next_offset,
            )  # fmt: skip
        if queue.segments.last is None:
            queue.cut(queue.next_offset, thorough=False)
        queue.correct_min(log.first)
    return facts


def _start(log: CommitLog, checkpoint: Checkpoint, *, ours: bool, clean: bool, lost: bool) -> int:
    """Return the offset of a record (or of the end) from which on everything is checked."""
    segments = log.segments
    if segments.last is None:
        segments.first = checkpoint.durable_offset if ours else 0
        return segments.first
    if ours:
        start = checkpoint.durable_offset if lost else max(checkpoint.durable_offset, checkpoint.published_offset)
        if log.first <= start <= segments.end:
            return start
    if clean:
        return max(segments.first, segments.last - 2 * log.file_bytes)
    for base in range(segments.last, segments.first - 1, -log.file_bytes):
        head = segments.view(base, 88)
        if int.from_bytes(head[4:8], "big", signed=True) == MAGIC:
            found = log.facts_at(base)
            if found is not None and found.store_ms <= checkpoint.usable_ms:
                return base
    return segments.first


def _queue_end(queue: ConsumeQueue, log: CommitLog, start: int) -> int:
    """Return the end of a queue's entries that point below ``start``; the last of them must point at a record of the queue."""
    end = queue.end_below(start)
    if end <= queue.first or _points_right(queue, log, end - 1):
        return end
    # Fall back to walking: entries are good while they point at rising offsets below the start.
    at, position, end = queue.first, -1, queue.first
    while at * ENTRY_BYTES < queue.segments.end:
        physical_offset, size, _ = queue.entry(at)
        at += 1
        if size == FILLER_SIZE:
            continue
        if size <= 0 or not 0 <= physical_offset < start or physical_offset < position:
            break
        position, end = physical_offset, at
    while end > queue.first and (queue.entry(end - 1)[1] == FILLER_SIZE or not _points_right(queue, log, end - 1)):
        end -= 1
    return end


def _points_right(queue: ConsumeQueue, log: CommitLog, queue_offset: int) -> bool:
    physical_offset, size, _ = queue.entry(queue_offset)
    if physical_offset < log.first:
        return True  # its record was deleted
    base = log.segments.base(physical_offset)
    if log.segments.last is None or base > log.segments.last:
        return False
    try:
        found = check_at(log.segments.view(base, log.file_bytes), physical_offset - base, physical_offset)
    except CorruptRecord:
        return size > 0  # damaged in the middle of what is trusted: that record's loss only
    return isinstance(found, RecordFacts) and (found.topic, found.queue_id, found.queue_offset, found.size_bytes) == (
        queue.topic, queue.queue_id, queue_offset, size,
    )  # fmt: skip


def _scan(
    log: CommitLog, queues: Queues, facts: Recovered, checkpoint: Checkpoint, rebuild: Rebuild, deleted: Mapping[str, Row],
    new_queue: NewQueue, tag_code: TagCode, *, ours: bool,
) -> int:  # fmt: skip
    """Check every record from the start on and give it its entry; return the end of the last. What is before the start is only for
    queues that are made anew.
    """
    waiting: dict[tuple[str, int], tuple[int, bytearray]] = {}

    def publish(key: tuple[str, int]) -> None:
        first, entries = waiting.pop(key)
        queues[key].publish(first, bytes(entries), log.file_bytes)

    end, skipped = facts.start, 0
    for position, found in _records(log, facts, checkpoint, rebuild, ours=ours):
        is_old = position < facts.start
        if isinstance(found, Damaged):
            facts.damaged.append(found)
            end = max(end, position + found.size_bytes)
            skipped += found.size_bytes // RECORD_BYTES_MIN
            continue
        if not is_old:
            end = position + found.size_bytes
            facts.records += 1
            log.last_store_ms = found.store_ms
        key = (found.topic, found.queue_id)
        if found.sys_flag & 0x4 or (is_old and not rebuild.wants(key, position)):
            continue
        if (gone := deleted.get(found.topic)) is not None and position < gone.born:
            continue
        queue = queues.get(key)
        if queue is None:
            try:
                queue = new_queue(*key)
            except UsageError:
                continue  # a topic that cannot be a directory: the record stays in the log and nowhere else
            queue.born = position if key not in rebuild.rows else max(0, rebuild.rows[key].born)
        entry = ENTRY.pack(position, found.size_bytes, tag_code(found.topic, found.properties, found.store_ms))
        if key in waiting:
            first, entries = waiting[key]
            if found.queue_offset == first + len(entries) // ENTRY_BYTES and len(entries) < _ENTRIES_AT_ONCE * ENTRY_BYTES:
                entries += entry
                continue
            publish(key)
        if found.queue_offset < queue.written and queue.segments.last is not None:
            if found.queue_offset < queue.first or queue.entry(found.queue_offset)[0] == position:
                continue  # has its entry already
            queue.cut(found.queue_offset, thorough=False)  # the queue was deleted in between and began anew: the later one counts
        if found.queue_offset > (_OFFSET_MAX if queue.segments.last is None else queue.written + _GAP_MAX + skipped):
            reason = f"queue offset {found.queue_offset} where queue {found.queue_id} of {found.topic} ends at {queue.written}"
            facts.damaged.append(Damaged(position, found.size_bytes, reason))
            continue
        waiting[key] = (found.queue_offset, bytearray(entry))
    for key in list(waiting):
        publish(key)
    return end


def _records(
    log: CommitLog, facts: Recovered, checkpoint: Checkpoint, rebuild: Rebuild, *, ours: bool
) -> Iterator[tuple[int, RecordFacts | Damaged]]:
    """Walk the log from where it is needed.

    A loss may have left anything behind what was durable, pages of it included, so nothing there is looked for behind damage; all
    else was written, and damage costs what it hit. Of another broker nobody knows what was durable.
    """
    if rebuild.rows or rebuild.everything:
        yield from log.scan(log.first, facts.start, known_to=facts.start)
    known_to = checkpoint.durable_offset if ours and facts.lost else sys.maxsize
    yield from log.scan(facts.start, doubtful=not facts.clean, known_to=known_to, rising=facts.lost and not ours)


def _something_behind(log: CommitLog, facts: Recovered) -> bool:
    """Whether bytes that are not 0 stand behind the end."""
    segments, end = log.segments, facts.end
    return segments.last is not None and (segments.last > end or not segments.is_clear(end, 64 * 1024))


def _settle_end(log: CommitLog, facts: Recovered, aside: Aside, *, ours: bool) -> None:
    """Make sure that nothing behind the end can be read as a record later."""
    segments, end = log.segments, facts.end
    if segments.last is not None and end < segments.end:
        for base in range(segments.last, max(end, segments.first - 1), -segments.file_bytes):
            if segments.data_end(base):
                segments.remove_after(base - 1, remove=lambda path: aside.file(path, f"the log ends at {end}"))
            else:
                segments.remove_after(base - 1)
        stopped_cleanly = facts.clean and ours and facts.records == 0
        cleared = not (facts.lost or _something_behind(log, facts))
        if not stopped_cleanly and not cleared:
            aside.rest(segments, end, f"the log ends at {end}")
            if end == segments.base(end):
                segments.remove_after(end - 1)
                segments.extend(end)
            facts.rolled = True
    log.set_end(end)
    if facts.rolled:
        log.roll()
        facts.end = log.end


def _report(log: CommitLog, facts: Recovered) -> None:
    """Say what is damaged, with names of files, bytes and offsets."""
    segments = log.segments
    for damaged in facts.damaged[:_LINES_MAX]:
        at = damaged.physical_offset - segments.base(damaged.physical_offset)
        log_lines.warning(
            "%s, bytes %d to %d (physical offset %d): no message is here, the start goes on behind: %s",
            segments.path(segments.base(damaged.physical_offset)), at, at + damaged.size_bytes, damaged.physical_offset,
            damaged.reason,
        )  # fmt: skip
    if facts.damaged:
        size = sum(damaged.size_bytes for damaged in facts.damaged)
        log_lines.warning("the log is damaged in %d places, %d bytes, found from %d on", len(facts.damaged), size, facts.start)
