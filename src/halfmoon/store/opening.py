"""`Opening`: from a directory in any state to a store that can take messages. Runs once, waits for the disk, leaves no work.

Recovery finds out what is there; here it becomes *durable* before anything is built on it. After an unclean stop nobody knows which
pages the device has: a process may have died because a sync failed, and the kernel counts those pages as clean ever after. So
everything behind the checkpoint is written again in place, which is bounded by what was recovered, and then synced like any other
write: at once in sync flush, after a loss, and where recovery wrote entries again that the checkpoint calls durable; otherwise with
the next sync. If the checkpoint is another broker's, that can be whole files: those are compared with the device, not written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from halfmoon.effects import Work
from halfmoon.hot import ENTRY_BYTES
from halfmoon.instant import Instant
from halfmoon.ports import Disk
from halfmoon.store.checkpoint import Checkpoint, CheckpointFile, LastRun, read_last_run
from halfmoon.store.flush import Flush
from halfmoon.store.journal import Journal
from halfmoon.store.keyindex.indexing import Indexing
from halfmoon.store.layout import COMMIT_LOG
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.files import load_log
from halfmoon.store.log.quarantine import Quarantine
from halfmoon.store.log.recovery import Recovery, RecoveryResult
from halfmoon.store.queues.consume_queue import NO_WINDOW, ConsumeQueue
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues, Rebuild, born_at, clear, drop_deleted, find_queues, missing, warn_of_lost_start
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.records import TagCode
from halfmoon.store.settings import StoreSettings


class Opened(NamedTuple):
    """Result of an opening. ``changed`` are the queues that wait for the next sync of queues."""

    recovered: RecoveryResult
    checkpoint: Checkpoint
    changed: list[ConsumeQueue]


class Opening:
    """The parts of a store, which it fills and brings into agreement."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, log: CommitLog, queues: Queues, reservations: Reservations, flush: Flush,
        checkpoint_file: CheckpointFile, indexing: Indexing, inventory: Inventory, journal: Journal, *, is_slave: bool,
    ) -> None:  # fmt: skip
        self._disk, self._settings, self._log, self._queues, self._journal = disk, settings, log, queues, journal
        self._reservations, self._flush, self._checkpoint_file, self._indexing = reservations, flush, checkpoint_file, indexing
        self._inventory, self._is_slave = inventory, is_slave

    def run(self, tag_code: TagCode, now: Instant) -> Opened:
        """Recover the directory. Raises StoreError for files that do not fit, OSError when the disk fails."""
        log, inventory = self._log, self._inventory
        last_run, quarantine = read_last_run(self._disk, self._checkpoint_file), Quarantine(self._disk)
        self._journal.begin(again=not last_run.clean)
        sizes = (self._settings.commit_log_file_bytes, self._settings.queue_file_bytes, self._indexing.index.file_bytes)
        _, queues_noted, index_noted = inventory.knows(*sizes)
        cut_short = load_log(
            self._disk, log.segments, quarantine,
            written_offset=last_run.written_offset, lost_from=last_run.lost_from,
            noted_bytes=None if inventory.sizes is None else inventory.sizes.born,
        )  # fmt: skip
        rebuild = self._load_queues(last_run, sizes, noted=queues_noted)
        if last_run.lost:
            self._reservations.raise_all_floors()
        log.last_store_ms = last_run.checkpoint.log_ms
        recovered = Recovery(
            log, self._queues, last_run, quarantine, self._reservations, cut_short=cut_short, rebuild=rebuild,
            deleted=inventory.deleted, new_queue=self._new_queue, tag_code=tag_code, is_slave=self._is_slave,
        ).run()  # fmt: skip
        self._indexing.recover(self._disk, last_run, inventory, noted=index_noted)
        self._set_durable(last_run, recovered)
        changed = [queue for queue in self._queues.values() if queue.changed]
        rebuilt = bool(rebuild.rows) or rebuild.everything
        durable_offset = self._flush.durable_offset
        must_sync = (
            recovered.lost or recovered.rolled or rebuilt
            or recovered.start < durable_offset  # entries that the checkpoint calls durable were written again
            or (self._settings.sync_flush and durable_offset < log.end)
        )  # fmt: skip
        if must_sync:
            self._sync(changed, now)
            changed = []
        self._take_stock(rebuilt=rebuilt, made=log.first if must_sync else max(0, log.end - 1))
        if must_sync:
            inventory.note_durable([(queue, queue.written) for queue in self._queues.values()], log.end)
            inventory.sync()  # otherwise the next sync of queues does it, before the checkpoint speaks of them
        for queue in self._queues.values():
            queue.window = None
        return Opened(recovered, last_run.checkpoint, changed)

    def _load_queues(self, last_run: LastRun, sizes: tuple[int, int, int], *, noted: bool) -> Rebuild:
        """Find the queues on the disk; return those that must be rebuilt, of which nothing is left then."""
        disk, inventory = self._disk, self._inventory
        on_disk = find_queues(disk, self._settings.queue_file_bytes, noted=noted)
        for queue in on_disk.queues.values():
            queue.window = NO_WINDOW  # of many queues a few entries are looked at: that wants no mapping of each
        drop_deleted(disk, on_disk, inventory)
        rebuild = missing(on_disk, inventory, self._log, lost_from=last_run.lost_from)
        warn_of_lost_start(inventory, self._log)
        inventory.note_sizes(*sizes, self._log.first)
        if rebuild.rows or rebuild.everything:
            clear(disk, on_disk, inventory, rebuild)
        self._queues.update(on_disk.queues)
        return rebuild

    def _set_durable(self, last_run: LastRun, recovered: RecoveryResult) -> None:
        """Tell the flush what is on the device already; everything behind it is written again, or marked for the next sync."""
        log, flush, checkpoint = self._log, self._flush, last_run.checkpoint
        flush.durable_ms, flush.queues_ms = checkpoint.log_ms, checkpoint.queue_ms
        if recovered.clean and not recovered.rolled and recovered.records == 0:
            flush.durable_offset = flush.queues_offset = log.end
            return
        durable = last_run.durable_offset if last_run.ours else 0  # a copy may begin behind what its checkpoint says
        flush.durable_offset = flush.queues_offset = min(max(durable, log.first), log.end)
        self._distrust(recovered, from_offset=flush.durable_offset if last_run.ours else recovered.start, ours=last_run.ours)

    def _take_stock(self, *, rebuilt: bool, made: int) -> None:
        """Bring the inventory into agreement with what is there now.

        ``made`` is noted of files that are new: unlike those that are made for what comes, they hold records below the log's end.
        So they must be there once the checkpoint has reached that end, and at once where they are on the device already.
        """
        inventory, log = self._inventory, self._log
        inventory.cut_deleted(log.end)
        for key, queue in self._queues.items():
            row = inventory.queues.get(key)
            if row is None:
                queue.born = queue.born or born_at(queue)
                continue
            queue.born, queue.noted = row.born, (row.first, row.last)
            lowest = born_at(queue) if queue.segments.last is not None and queue.written > queue.first else log.end
            if lowest < row.born:  # a loss took records and left the row, and the queue was made again before it
                queue.born = row.born = lowest
                queue.noted = None
        inventory.drop([key for key in inventory.queues if key not in self._queues])
        if rebuilt:
            inventory.end_rebuild(self._queues.values(), made)
        else:
            inventory.note(self._queues.values(), made)
        inventory.note_index(self._indexing.index.names())
        inventory.note_log_first(log.first)

    def _new_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self._disk, topic, queue_id, self._settings.queue_file_bytes)
        self._queues[topic, queue_id] = queue
        return queue

    def _distrust(self, recovered: RecoveryResult, *, from_offset: int, ours: bool) -> None:
        """Count what lies behind the durable offset as unsynced, and after an unclean stop write again what was recovered.

        What another broker left is large and mostly durable, and is waited for: what the device has of it is only read.
        """
        log, durable = self._log, self._flush.durable_offset
        log.segments.mark_dirty(durable)
        if not recovered.clean:
            log.segments.write_again(from_offset, log.end, only_missing=not ours)
        for queue in self._queues.values():
            segments = queue.segments
            if segments.last is None:
                continue  # it was rebuilt and the log has nothing of it: `written` is where its offsets go on
            if queue.written > queue.first and queue.entry(queue.written - 1)[0] >= durable:
                segments.mark_dirty(queue.end_below(durable) * ENTRY_BYTES)
                if not recovered.clean:
                    start = queue.end_below(from_offset) * ENTRY_BYTES
                    segments.write_again(start, queue.written * ENTRY_BYTES, only_missing=not ours)
                queue.changed = True
            elif recovered.lost:
                # What was cut may come back, even when this is the second start since the loss and finds it cut already.
                segments.mark_dirty(queue.written * ENTRY_BYTES)
                queue.changed = True

    def _sync(self, changed: list[ConsumeQueue], now: Instant) -> None:
        """Wait until everything is on the device."""
        log, flush = self._log, self._flush
        while (log_work := flush.sync_log(_ignore, inline=True)) is not None:
            carry_out(log_work, now)
        for queue in changed:
            queue.changed = False
        queues_work = flush.sync_queues(changed, log.end, log.last_store_ms, self._checkpoint_file, _ignore)
        if queues_work is not None:
            carry_out(queues_work, now)
        if flush.error is not None:
            for queue in changed:  # zeros that did not get there are found as zeros by the next start, and not written then
                queue.segments.write_again(queue.written * ENTRY_BYTES, queue.segments.cleared_to)
            raise flush.error
        self._disk.sync_directory(COMMIT_LOG)


def carry_out(work: Work[Any], now: Instant) -> None:
    """Run a piece of work here and now."""
    result: Any = None
    try:
        result = work.run()
    except OSError as exc:
        result = exc
    work.done(result, now)


def _ignore(now: Instant) -> None:
    """For syncs that nobody waits for."""
