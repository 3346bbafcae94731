"""Recovery: from files in any state to a log with an end and queues that agree with it. Runs once, when a store is opened.

The checkpoint says up to where log and queues are whole; from there each record is checked and put into its queue anew. What
lies behind the end must never come back:

* The machine did not restart (same boot id) and zeros follow the end: the page cache kept everything, the log goes on in place.
* Else the rest of the file is closed with a blank tail, durably, and the log goes on in a new file. Stale bytes cannot line up
  behind the blank, however often the machine stops in between and in whatever order pages reached the device.

Follows CommitLog.recoverNormally / recoverAbnormally (RocketMQ 4.9.8) where the checkpoint is another broker's.
Differs: starts at the checkpoint's offset where it is ours; goes on behind one damaged record; never reuses queue offsets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from halfmoon.errors import CorruptRecord, UsageError
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint
from halfmoon.store.commitlog import CommitLog
from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.layout import ABORT, CONSUME_QUEUE, ENTRY_BYTES, FILLER_SIZE, MAGIC, is_queue_directory, is_topic_directory
from halfmoon.store.records import RecordFacts, TagCode, check_at
from halfmoon.store.reserve import STEP_MAX, Reserve

Queues = dict[tuple[str, int], ConsumeQueue]
NewQueue = Callable[[str, int], ConsumeQueue]
_ENTRIES_AT_ONCE = 3 * 1024
_GAP_MAX = 2 * STEP_MAX
"""Offsets that a record may be ahead of its queue: what a reservation can leave out. More is a damaged number."""
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
    damaged: list[CorruptRecord] = field(default_factory=list)
    rolled: bool = False


def load_queues(disk: Disk, file_bytes: int, *, repair: bool) -> Queues:
    """Return every queue that has a directory, with its files found but not read. Names that cannot be queues are passed over."""
    queues: Queues = {}
    for topic in disk.list(CONSUME_QUEUE):
        if not is_topic_directory(topic):
            continue
        for name in disk.list(f"{CONSUME_QUEUE}/{topic}"):
            if is_queue_directory(name):
                queue = ConsumeQueue(disk, topic, int(name), file_bytes)
                queue.segments.load(repair=repair)
                if queue.segments.last is not None:
                    queues[topic, int(name)] = queue
                elif repair:
                    disk.sync_directory(queue.segments.directory)  # its files were removed, perhaps not durably
    return queues


def stop_kind(disk: Disk) -> tuple[bool, bool]:
    """Return (clean, lost): whether the last run ended cleanly, and whether its unsynced writes may be gone."""
    mark = disk.read(ABORT)
    if mark is None:
        return True, False
    boot_id = disk.boot_id()
    return False, boot_id is None or mark != boot_id.encode()


def recover(
    log: CommitLog, queues: Queues, checkpoint: Checkpoint, *, ours: bool, clean: bool, lost: bool, reserve: Reserve,
    new_queue: NewQueue, tag_code: TagCode,
) -> Recovered:  # fmt: skip
    """Find the log's end, put what the queues lack into them, and cut what they have too much.

    ``new_queue`` makes and enters a queue for (topic, queue_id). Raises OSError when the disk fails.
    """
    facts = Recovered(clean, lost)
    facts.start = _start(log, checkpoint, ours=ours, clean=clean, lost=lost)
    trusted = ours
    for queue in queues.values():
        end = _queue_end(queue, log, facts.start)
        queue.cut(end, thorough=lost or not trusted)
    facts.end = facts.found_end = _scan(log, queues, facts, new_queue, tag_code)
    _settle_end(log, facts, trusted=trusted)
    for queue in queues.values():
        queue.next_offset = reserve.next_at_start(queue.topic, queue.queue_id, queue.written, lost=lost)
        queue.correct_min(log.first)
    return facts


def _start(log: CommitLog, checkpoint: Checkpoint, *, ours: bool, clean: bool, lost: bool) -> int:
    """Return the offset of a record (or of the end) from which on everything is checked."""
    segments = log.segments
    if ours and not clean and segments.first > checkpoint.durable_offset:
        segments.remove_after(-1)  # the names of the first files after that point did not reach the device: all behind it is lost
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
            try:
                found = check_at(segments.view(base, log.file_bytes), 0, base)
            except CorruptRecord:
                continue
            if isinstance(found, RecordFacts) and found.store_ms <= checkpoint.usable_ms:
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


def _scan(log: CommitLog, queues: Queues, facts: Recovered, new_queue: NewQueue, tag_code: TagCode) -> int:
    """Check every record from the start on and give it its entry; return the end of the last."""
    waiting: dict[tuple[str, int], tuple[int, list[int]]] = {}

    def publish(key: tuple[str, int]) -> None:
        first, entries = waiting.pop(key)
        queues[key].publish(first, entries, log.file_bytes)

    end = facts.start
    for position, found in log.scan(facts.start, doubtful=not facts.clean):
        if isinstance(found, CorruptRecord):
            facts.damaged.append(found)
            end = position + int.from_bytes(log.segments.view(position, 4), "big")
            continue
        end = position + found.size_bytes
        facts.records += 1
        log.last_store_ms = found.store_ms
        if found.sys_flag & 0x4:
            continue
        key = (found.topic, found.queue_id)
        queue = queues.get(key)
        if queue is None:
            try:
                queue = new_queue(*key)
            except UsageError:
                continue  # a topic that cannot be a directory: the record stays in the log and nowhere else
        if key in waiting:
            first, entries = waiting[key]
            if found.queue_offset == first + len(entries) // 3 and len(entries) < _ENTRIES_AT_ONCE:
                entries += (position, found.size_bytes, tag_code(found.topic, found.properties, found.store_ms))
                continue
            publish(key)
        if found.queue_offset < queue.written and queue.segments.last is not None:
            if found.queue_offset < queue.first or queue.entry(found.queue_offset)[0] == position:
                continue  # has its entry already
            queue.cut(found.queue_offset, thorough=False)  # the queue was deleted in between and began anew: the later one counts
        if found.queue_offset > (_OFFSET_MAX if queue.segments.last is None else queue.written + _GAP_MAX):
            facts.damaged.append(
                CorruptRecord(position, f"queue offset {found.queue_offset} where the queue ends at {queue.written}")
            )
            continue
        waiting[key] = (found.queue_offset, [position, found.size_bytes, tag_code(found.topic, found.properties, found.store_ms)])
    for key in list(waiting):
        publish(key)
    return end


def _settle_end(log: CommitLog, facts: Recovered, *, trusted: bool) -> None:
    """Make sure that nothing behind the end can be read as a record later."""
    segments, end = log.segments, facts.end
    if segments.last is not None and end < segments.end:
        segments.remove_after(end)
        stopped_cleanly = facts.clean and trusted and facts.records == 0
        cleared = not facts.lost and segments.is_clear(end, 64 * 1024)
        if not stopped_cleanly and not cleared:
            if end == segments.base(end):
                segments.remove_after(end - 1)
                segments.extend(end)
            facts.rolled = True
    log.set_end(end)
    if facts.rolled:
        log.roll()
        facts.end = log.end
