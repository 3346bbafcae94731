"""Finds the queues that are missing or damaged, so that recovery rebuilds them from the log. Removes what is left of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from halfmoon.errors import StoreError
from halfmoon.hot import ENTRY, ENTRY_BYTES, FILLER_SIZE
from halfmoon.ports import Disk
from halfmoon.store.layout import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    file_name,
    file_offset,
    is_queue_directory,
    is_topic_directory,
    queue_directory,
)
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import DISTRUSTED, EVERYTHING, Inventory, Key, Row

log = logging.getLogger("halfmoon.store")

Queues = dict[Key, ConsumeQueue]


class Rebuild(NamedTuple):
    """Queues that are rebuilt from the first record of the log on, with what is known of each."""

    rows: dict[Key, Row]
    everything: bool = False

    def wants(self, key: Key, physical_offset: int) -> bool:
        """Whether a record belongs into a queue that is rebuilt: it lies behind the birth of the queue."""
        row = self.rows.get(key)
        return self.everything if row is None else physical_offset >= row.born


class QueuesOnDisk(NamedTuple):
    """Queues with all their files in a row, and those whose files cannot be used, with the reason."""

    queues: Queues
    broken: dict[Key, str]


def find_queues(disk: Disk, file_bytes: int, *, noted: bool) -> QueuesOnDisk:
    """Return every queue that has a directory, its files found but not read. Names that cannot be queues are passed over.

    ``noted``: files of this size were made here before, so that another size is damage. Raises StoreError when it may be another
    setting: no file of any queue has the right size.
    """
    queues: Queues = {}
    broken: dict[Key, str] = {}
    for topic in disk.list(CONSUME_QUEUE):
        if not is_topic_directory(topic):
            continue
        for name in disk.list(f"{CONSUME_QUEUE}/{topic}"):
            if is_queue_directory(name):
                key, queue = (topic, int(name)), ConsumeQueue(disk, topic, int(name), file_bytes)
                try:
                    queue.segments.load()
                    if queue.segments.last is not None:
                        queues[key] = queue
                except StoreError as error:
                    broken[key] = str(error)
    if broken and not queues and not noted and file_bytes not in _sizes_of(disk, broken):
        sizes = _sizes_of(disk, broken)
        raise StoreError(f"{next(iter(broken.values()))}. Set mappedFileSizeConsumeQueue={max(sizes)}")
    return QueuesOnDisk(queues, broken)


def _sizes_of(disk: Disk, keys: Iterable[Key]) -> set[int]:
    """Return the sizes of the files of queues that have files."""
    directories = [queue_directory(*key) for key in keys]
    return {
        disk.file_size(f"{directory}/{name}")
        for directory in directories
        for name in disk.list(directory)
        if file_offset(name) is not None
    }


def drop_deleted(disk: Disk, on_disk: QueuesOnDisk, inventory: Inventory) -> None:
    """Remove queues of deleted topics whose files a loss has brought back: their removal was not on the device. Raises OSError."""
    for key, queue in list(on_disk.queues.items()):
        row = inventory.deleted.get(key[0])
        entry = None if row is None else queue.real_entry(queue.first, queue.first + queue.per_file)
        if row is not None and entry is not None and entry[1][0] < row.born:
            del on_disk.queues[key]
            for path in queue.segments.remove_all():
                disk.remove(path)
            disk.sync_directory(queue.segments.directory)


def missing(on_disk: QueuesOnDisk, inventory: Inventory, commit_log: CommitLog, *, lost_from: int | None) -> Rebuild:
    """Return what is to be rebuilt, with a warning for each queue.

    ``lost_from``: a loss may have taken names of files that were created when the log was at least so long.
    """
    reasons = dict(on_disk.broken)
    for key, begun in inventory.rebuilt.items():
        why = "an entry was wrong" if begun.durable == DISTRUSTED else "the process was stopped while it was being rebuilt"
        reasons.setdefault(key, why)
    for key, row in inventory.queues.items():
        if key not in reasons and row.last >= 0:
            reason = _lacks(on_disk.queues.get(key), row, commit_log.segments.end, lost_from=lost_from)
            if reason is not None:
                reasons[key] = reason
    has_records = commit_log.segments.last is not None and commit_log.facts_at(commit_log.first) is not None
    if EVERYTHING in reasons or (not inventory.there and not on_disk.queues and has_records):
        log.warning("%s is missing and rebuilt from the log, queues of deleted topics that it still has included", CONSUME_QUEUE)
        return Rebuild({**dict.fromkeys(on_disk.broken, Row()), **inventory.queues}, everything=True)
    for key, reason in reasons.items():
        log.warning("%s is rebuilt from the log: %s", queue_directory(*key), reason)
    return Rebuild({key: inventory.queues.get(key) or Row() for key in reasons})


def _lacks(queue: ConsumeQueue | None, row: Row, log_end: int, *, lost_from: int | None) -> str | None:
    """Return what a queue lacks of what the inventory knows, None: nothing that can be seen."""
    # The name of a file created since `lost_from` may be lost, but not the name of one whose entries are on the device.
    last, is_last_sure = row.last, lost_from is None or row.made < lost_from
    if not is_last_sure:
        last = (row.durable - 1) * ENTRY_BYTES
        if last < row.first:
            return None
    if queue is None:
        return "all of its files are missing"
    queue.near = max(0, row.durable)
    if queue.segments.first > row.first:
        return f"{file_name(row.first)}, its first file, is missing"
    if queue.segments.end <= last:
        return f"{file_name(queue.segments.base(last))}, its last file, is missing"
    return _wrong_end(queue, row, log_end, nothing_lost=lost_from is None) if is_last_sure else None


def _wrong_end(queue: ConsumeQueue, row: Row, log_end: int, *, nothing_lost: bool) -> str | None:
    """Return what is wrong at the end of a queue that has all its files, None: nothing.

    The end is found by halving, which takes a hole of zeros for it; new entries would then take the offsets behind the hole.
    ``nothing_lost``: no entry can stand behind the end.
    """
    queue.look_at_end()
    end = queue.end_below(log_end)
    if end < row.durable:
        return f"its entries end at {end}, and went to {row.durable} once"
    if nothing_lost and end * ENTRY_BYTES < queue.segments.end and (behind := queue.behind(end)):
        behind = behind[: len(behind) // ENTRY_BYTES * ENTRY_BYTES]
        if any(0 < size != FILLER_SIZE for _, size, _ in ENTRY.iter_unpack(behind)):
            return f"its entries end at {end}, and more stand behind them"
    return None


def warn_of_lost_start(inventory: Inventory, commit_log: CommitLog) -> None:
    """Warn that the oldest files of the log are gone, and no store deleted them. To be called before that is noted."""
    sizes = inventory.sizes
    if sizes is not None and commit_log.segments.last is not None and commit_log.first > sizes.made:
        log.warning(
            "%s begins at %s, and once began at %s: somebody removed files, and %d bytes of messages with them",
            COMMIT_LOG, file_name(commit_log.first), file_name(sizes.made), commit_log.first - sizes.made,
        )  # fmt: skip


def clear(disk: Disk, on_disk: QueuesOnDisk, inventory: Inventory, rebuild: Rebuild) -> None:
    """Note durably what is rebuilt, then remove what is left of it. Raises OSError."""
    # First: a start that is stopped in between must not take what is left for all there was.
    inventory.begin_rebuild([EVERYTHING] if rebuild.everything else rebuild.rows)
    for key in [*on_disk.queues] if rebuild.everything else rebuild.rows:
        on_disk.queues.pop(key, None)
    keys = {*rebuild.rows, *on_disk.broken}
    directories = [queue_directory(*key) for key in keys]
    if rebuild.everything:
        topics = filter(is_topic_directory, disk.list(CONSUME_QUEUE))
        directories = [f"{CONSUME_QUEUE}/{topic}/{name}" for topic in topics for name in disk.list(f"{CONSUME_QUEUE}/{topic}")]
    for directory in directories:
        for name in disk.list(directory):
            if file_offset(name) is not None:
                disk.remove(f"{directory}/{name}")
        disk.sync_directory(directory)


def born_at(queue: ConsumeQueue) -> int:
    """Return the physical offset of a queue's first record that is known; what lies before is of an older topic of its name."""
    if queue.segments.last is None:
        return 0
    first = queue.real_entry(queue.first, min(queue.written, queue.first + queue.per_file))
    return 0 if first is None else max(0, first[1][0])
