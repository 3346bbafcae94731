"""`Store`: the log with its queues and indexes. Append, read, query; called from one thread, waits only where it says so.

What must wait is left as `Work`. In async flush an appended message is visible at once, in sync flush once it is durable.
A failed sync stops the store for good: ``refusal`` says why, and nothing that was not durable becomes visible any more. Errors that
pass (`halfmoon.store.health`) refuse the operation, and it can be retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.hot import Draft, Group, Messages
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.ports import DirectoryLock, Disk, DiskUsage
from halfmoon.store.checkpoint import Checkpoint, CheckpointFile
from halfmoon.store.flush import Flush
from halfmoon.store.health import Health
from halfmoon.store.keyindex.indexing import Indexing, KeyQueryResult
from halfmoon.store.keyindex.key_index import KeyIndex
from halfmoon.store.layout import ABORT, INDEX, LOCK
from halfmoon.store.legacy import read_journal
from halfmoon.store.log.appending import Appended, Appending
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.copying import Copying
from halfmoon.store.log.files import check_directories
from halfmoon.store.log.kept import Kept
from halfmoon.store.log.recovery import RecoveryResult
from halfmoon.store.maintenance import Maintenance
from halfmoon.store.opening import Opening, carry_out
from halfmoon.store.queues.creation import OnCreated, QueueCreation
from halfmoon.store.queues.damaged import DamagedRecords
from halfmoon.store.queues.deletion import TopicDeletion
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.ranges import RangeReader
from halfmoon.store.queues.reading import NO_QUEUE, Reader, ReadResult, ReadStatus, Wanted, bound_at, offset_at
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.queues.visible_offsets import Arrival, VisibleOffsets
from halfmoon.store.queues.write_out import WriteOut
from halfmoon.store.records import RecordFacts, TagCode, tag_code_of
from halfmoon.store.settings import StoreSettings
from halfmoon.store.spare_space import SpareSpace

__all__ = ["Appended", "Arrival", "Draft", "ReadResult", "ReadStatus", "Store"]


_INDEXED_MS = 250
"""Between two checkpoints that say how far the keys are indexed, while there are more: each is a row of the journal."""


class Store:
    """One store directory, open. Make one with `Store.open`."""

    copies_refusal: str | None = None
    """Reason why nothing is stored while copies are missing; None: it is."""
    _copying: Copying | None = None

    def __init__(
        self, disk: Disk, settings: StoreSettings, host: bytes, lock: DirectoryLock, tag_code: TagCode, copied_offset: int | None
    ) -> None:  # fmt: skip
        self.settings, self.recovered = settings, RecoveryResult(True, False)
        self._disk, self._lock, self._tag_code, self.sync_flush = disk, lock, tag_code, settings.sync_flush
        self.log = CommitLog(disk, settings.commit_log_file_bytes, host, settings.message_bytes_max)
        self.queues: Queues = {}
        """All queues. Like ``log`` and ``maintenance`` for services that build on the store; only the store changes them."""
        self.health = Health(self._failed_for_good)
        self.journal = read_journal(disk)
        """The broker's own state. Also for services that keep theirs in it, which close before the store does."""
        self._reservations = Reservations(self.journal, self.health)
        self._inventory = Inventory(self.journal)
        self._damaged = DamagedRecords(self.log.segments).report
        self._reader = Reader(self.log, settings, self._inventory.distrust, self._damaged)
        self.ranges = RangeReader(self.log, self.queues, self._damaged, self._reservations.floor)
        self._flush = Flush(disk, self.log, self.health)
        self._checkpoint_file, self._checkpoint = CheckpointFile(disk, self.journal), Checkpoint()
        self._visible = VisibleOffsets(self.log, self.health)
        self.kept = Kept(self.log, self._flush, self._visible, self.health, self._leave, settings.sync_flush, copied_offset)
        self.flush, self.sync_now = self.kept.turn, self.kept.sync_now
        self._write_out = WriteOut(
            self.log, self.queues, self._visible, self._flush, self._inventory, self._checkpoint_file, self.health,
        )  # fmt: skip
        self.reported_max = self._write_out.reported_max
        self.arrivals = self._visible.take_arrivals
        """Takes out what became visible since the last call."""
        self.drop_arrivals = self._visible.drop_arrivals
        self._work: list[Work[Any]] = []
        self._stopping, self._closed, self._date, self._reads = False, False, 0, 0
        self._indexing = Indexing(
            self.log, KeyIndex(disk, settings.hash_slots, settings.index_entries_max), enabled=settings.message_index_enable
        )
        self.maintenance = Maintenance(
            disk, self.log, self.queues, self._flush, self._indexing, self._inventory, settings, self._leave, self.health,
        )  # fmt: skip
        self._creation = QueueCreation(
            disk, self.log, self.queues, self._reservations, self._inventory, settings.queue_file_bytes,
            health=self.health, remove=self.maintenance.remove_queues,
        )  # fmt: skip
        self._appending = Appending(
            self.log, self.queues, self._creation, self._reservations, self._visible, self._inventory, self._indexing,
            self._checkpoint_file, self.health, holds_back=self.holds_back,
        )  # fmt: skip
        self._log_due = self.queues_due = self._indexed_due = LONG_AGO

    # ------------------------------------------------------------ open

    @classmethod
    def open(
        cls, disk: Disk, settings: StoreSettings, host: bytes, now: Instant, *, tag_code: TagCode = tag_code_of,
        is_slave: bool = False, copied_offset: int | None = None,
    ) -> Store:  # fmt: skip
        """Open the directory, recover it and make it ready for appends. Waits for the disk.

        ``host`` is what records name as their store host: 4 or 16 bytes of address and 4 of port. ``tag_code`` gives the number
        in a rebuilt queue entry's tag field from (topic, properties, store ms). ``is_slave``: see `Recovery`. ``copied_offset``: up
        to where the other member of a pair has the log (`copied_to`); None: there is none.

        Raises:
            StoreLocked: another process has it.
            StoreError: files do not fit the settings or each other.
            OSError: the disk fails.
        """
        lock = disk.lock(LOCK)
        try:
            check_directories(disk)
            store = cls(disk, settings, host, lock, tag_code, copied_offset)
            try:
                store._open(now, is_slave=is_slave)
            except OSError as exc:
                if not SpareSpace(disk).give_up(exc):
                    raise
                store = cls(disk, settings, host, lock, tag_code, copied_offset)
                store._open(now, is_slave=is_slave, refusal=f"the disk was full at the start: {exc}")
        except BaseException:
            lock.release()
            raise
        return store

    def _open(self, now: Instant, *, is_slave: bool, refusal: str | None = None) -> None:
        disk, log = self._disk, self.log
        opening = Opening(
            disk, self.settings, log, self.queues, self._reservations, self._flush, self._checkpoint_file, self._indexing,
            self._inventory, self.journal, is_slave=is_slave,
        )  # fmt: skip
        self.recovered, checkpoint, self._visible.changed = opening.run(self._tag_code, now)
        for queue in self.queues.values():
            self._creation.adopt(queue)
        self._visible.end, self._visible.end_ms = self._write_out.end, self._write_out.end_ms = log.end, log.last_store_ms
        self._checkpoint = checkpoint._replace(clean=False)
        # The checkpoint first: until the mark names this boot, nothing in it is believed that a loss may have taken.
        self._write_checkpoint()
        for _ in range(2):  # a larger end that was noted before a loss must not count again
            self._checkpoint_file.note_end(log.end)
        self._checkpoint_file.sync(file=True)
        boot_id = disk.boot_id()
        disk.save(ABORT, boot_id.encode() if boot_id else b"", keep_previous=False)
        disk.sync_directory("")
        self._date = now.date
        self.maintenance.start(now.steady, refusal)
        self._log_due = now.steady + self.settings.flush_log_interval_ms
        self.queues_due = now.steady + self.settings.flush_queue_interval_ms

    def copying(self) -> Copying:
        """Return what appends the bytes of a master's log. From then on the store takes no messages of its own."""
        self._copying = self._copying or Copying(
            self.log, self.queues, self._creation, self._visible, self._inventory, self._indexing, self._checkpoint_file,
            self.health, self._tag_code, self.settings.message_bytes_max + 64 * 1024,
        )  # fmt: skip
        return self._copying

    # ------------------------------------------------------------ facts

    @property
    def durable_offset(self) -> int:
        """Physical offset up to which the log is on the device."""
        return self._flush.durable_offset

    @property
    def holds_back(self) -> bool:
        """Whether a send is answered, and its message visible, only once it is kept."""
        return self.kept.holds_back

    @property
    def kept_offset(self) -> int:
        """Physical offset up to which the log is kept as is promised."""
        return self.kept.offset

    @property
    def min_offset(self) -> int:
        """Lowest physical offset that is still there."""
        return self.log.first

    @property
    def end_offset(self) -> int:
        """Physical offset of the next record."""
        return self.log.end

    @property
    def refusal(self) -> str | None:
        """Why the store takes no writes now; None: it does."""
        maintenance = self.maintenance
        return (
            self.health.failure
            or ("the store is closed" if self._stopping else maintenance.disk_full or maintenance.index_fault)
            or ("this broker is a slave" if self._copying is not None else self.copies_refusal)
        )

    @property
    def failure(self) -> str | None:
        """Why the store stopped for good (a failed sync or write); None: it did not."""
        return self.health.failure

    def earliest_ms(self) -> int:
        """When the oldest record of the log that is whole was stored; -1: there is none."""
        end = self._visible.end
        scanned = self.log.scan(self.log.first, end, known_to=end)
        return next((facts.store_ms for _, facts in scanned if isinstance(facts, RecordFacts)), -1)

    def in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether a message is near enough to the end of the log to be taken as still in memory; True when there is none."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return True
        return self._reader.in_memory(queue.entry(queue_offset)[0])

    @property
    def unindexed_bytes(self) -> int:
        """Bytes of the log that the key index does not cover yet. Queues cover all of it, always."""
        return max(0, self.end_offset - self._indexing.position) if self._indexing.enabled else 0

    def disk_usage(self) -> DiskUsage:
        """Return the space of the file system that holds the store."""
        return self._disk.usage()

    # ------------------------------------------------------------ append

    def append(self, topic: str, queue_id: int, messages: Messages | Iterable[Draft], now: int) -> Appended:
        """Store messages of one queue; each gets the next queue offset (PREPARED and ROLLBACK records get 0 and no entry).

        Those of one request go into one log file. Waits for the device only when the queue is not `ready` or outran its
        reservation of offsets.

        Raises:
            StoreNotWritable: see ``refusal``, or the disk is full; nothing was stored.
            MessageIllegal: a message is too large; nothing was stored.
            UsageError: the topic cannot be a topic.
        """
        messages = messages if isinstance(messages, Messages) else Messages(messages)
        [appended] = self.append_all([(topic, queue_id, "", messages)], now)
        if isinstance(appended, Exception):
            raise appended
        return appended

    def append_all(self, groups: Sequence[Group], now: int, *, in_order: bool = False) -> list[Appended | Exception]:
        """Store messages of several queues, each group as `append` does, but with one write to the log for all.

        Returns for each group where it lies, or what `append` would raise: the others do not feel that. ``in_order``: none is
        stored behind one that is not, and the result ends with that one.
        """
        self._date = now
        if (refusal := self.refusal) is not None:
            return [StoreNotWritable(refusal)] * len(groups)
        return self._appending.all(groups, now, in_order=in_order)

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether an append to the queue waits for nothing; else `make_ready` has it made in the background."""
        return self._creation.ready(topic, queue_id)

    def make_ready(self, topic: str, queue_id: int, made: OnCreated) -> None:
        """Create a queue as `Work`. ``made(None or why not, now)`` must look again: the topic may be gone. See `QueueCreation`."""
        self._creation.request(topic, queue_id, made)

    def hold(self, topic: str, queue_id: int, from_offset: int | None = None) -> None:
        """Let nobody see what comes to a queue until `release`; with ``from_offset``, nor what is there from an offset on.

        Raises StoreNotWritable when the queue is not there and cannot be made.
        """
        try:
            queue = self.queues.get((topic, queue_id)) or self._creation.create(topic, queue_id)
        except OSError as exc:
            raise StoreNotWritable(self.health.write_failed("a queue", exc)) from exc
        queue.held = True
        if from_offset is not None:
            queue.max_offset = min(queue.max_offset, from_offset)

    def release(self, topic: str, queue_id: int) -> None:
        """Show, in one step, what came to a queue while it was held."""
        queue = self.queues.get((topic, queue_id))
        if queue is not None and queue.held:
            self._visible.release(queue)

    # ------------------------------------------------------------ read

    def read(
        self, topic: str, queue_id: int, offset: int, max_count: int, wanted: Wanted = None, max_bytes: int = 1 << 30
    ) -> ReadResult:
        """Return records of a queue from an offset on, with status and next offset. See `halfmoon.store.queues.reading`."""
        self._reads += 1
        queue = self.queues.get((topic, queue_id))
        return NO_QUEUE if queue is None else self._reader.read(queue, offset, max_count, wanted, max_bytes)

    def queue_min(self, topic: str, queue_id: int) -> int:
        """Lowest queue offset that is still there; 0 for an empty or unknown queue."""
        queue = self.queues.get((topic, queue_id))
        return 0 if queue is None else queue.min_offset

    def queue_max(self, topic: str, queue_id: int) -> int:
        """Queue offset behind the last visible message; 0 for an unknown queue."""
        queue = self.queues.get((topic, queue_id))
        return 0 if queue is None else queue.max_offset

    def queue_ids(self, topic: str) -> list[int]:
        """Numbers of the topic's queues that ever had a message, sorted."""
        return sorted(queue_id for name, queue_id in self.queues if name == topic)

    def topics(self) -> list[str]:
        """Topics that ever had a message, sorted."""
        return sorted({name for name, _ in self.queues})

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the message stored nearest to a time; 0 for an empty or unknown queue. See `reading.offset_at`."""
        queue = self.queues.get((topic, queue_id))
        return 0 if queue is None else offset_at(self.log, queue, timestamp_ms, self._damaged)

    def bound_at(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
        """Queue offset of the first message stored at a time or later, or of the last at it or earlier. See `reading.bound_at`."""
        queue = self.queues.get((topic, queue_id))
        return 0 if queue is None else bound_at(self.log, queue, timestamp_ms, self._damaged, upper=upper)

    def store_ms(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When the message at a queue offset was stored; -1 when there is none."""
        queue = self.queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
            return -1
        physical_offset, size, _ = queue.entry(queue_offset)
        return -1 if self.log.record(physical_offset, size) is None else self.log.store_ms(physical_offset)

    def record(self, physical_offset: int, size: int | None = None) -> memoryview | None:
        """Return the whole record at a physical offset, or None when none begins there or it is not visible yet."""
        if self.holds_back and physical_offset >= self._visible.end:
            return None
        return self.log.record(physical_offset, size)

    def is_message_of(self, topic: str, queue_id: int, physical_offset: int) -> bool:
        """Whether a record of a queue is a message of the topic that there is, not of a deleted one of its name."""
        queue = self.queues.get((topic, queue_id))
        return queue is not None and physical_offset >= queue.born

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int, *, deleted: bool = False) -> KeyQueryResult:
        """Return the newest records of a topic with a key (UNIQ_KEY or one of KEYS), stored in a span of time.

        ``deleted``: also those of deleted topics of this name, for who asks what happened, not what is there.
        """
        count, wanted = min(max_count, self.settings.query_count_max), None if deleted else self.is_message_of
        return self._indexing.query(topic, key, count, begin_ms, end_ms, self._visible.end, self._date, wanted)

    # ------------------------------------------------------------ sync

    def _failed_for_good(self, failure: str) -> None:
        self._visible.drop_pending()
        self._creation.refuse_all(StoreNotWritable(failure))

    def _write_checkpoint(self, *, clean: bool = False) -> None:
        if self.log.end and self.log.segments.last is None:  # a copy that has nothing yet: the next start may begin it elsewhere
            return
        flush = self._flush
        self._indexing.settle(flush.durable_offset)
        if len(self._indexing.index.files) != len(self._inventory.index):
            self._inventory.note_index(self._indexing.index.names())
        self._checkpoint = self._checkpoint._replace(
            log_ms=flush.durable_ms, queue_ms=flush.queues_ms, durable_offset=min(flush.durable_offset, flush.queues_offset),
            published_offset=self._write_out.end, clean=clean, indexed_offset=self._indexing.position,
            index_entries=self._indexing.index.count, index_safe_offset=self._indexing.safe_offset, index_ms=self._indexing.safe_ms,
        )  # fmt: skip
        self._checkpoint_file.write(self._checkpoint)
        if self._inventory.deleted:
            self._inventory.settle_deleted(self._checkpoint_file.durable_offset)

    def _move_checkpoint(self) -> None:
        """Write a checkpoint, where the disk lets us: behind an older one a start reads more, and everything else goes on."""
        try:
            self._write_checkpoint()
        except OSError as exc:
            self.health.write_failed("the checkpoint", exc)

    # ------------------------------------------------------------ time

    def due(self) -> Steady | None:
        """When `tick` wants to be called."""
        if self._closed:
            return None
        times = [self.maintenance.due(self._visible.end)]
        if self.failure:
            return None
        if self._checkpoint_behind:
            times.append(self.queues_due)
        if self._write_out.due is not None:
            times.append(self._write_out.due)
        if self.kept.linger_due is not None:
            times.append(self.kept.linger_due)
        if self._flush.durable_offset < self.log.end:
            times.append(self._log_due)
        return min(times)

    @property
    def _checkpoint_behind(self) -> bool:
        """Whether a sync of queues would move the checkpoint on, or bring the last one to the device."""
        if self._visible.changed or self._write_out.to_sync or self._flush.queues_offset < self._visible.end:
            return True
        return self._checkpoint_file.durable_offset < self._checkpoint.durable_offset

    def settings_changed(self, now: Steady) -> None:
        """Intervals of syncs may be shorter: none that is planned waits longer than they say."""
        self._log_due = min(self._log_due, now + self.settings.flush_log_interval_ms)
        self.queues_due = min(self.queues_due, now + self.settings.flush_queue_interval_ms)

    def tick(self, now: Instant) -> None:
        """Do what time asks for: syncs of async flush, checkpoints. Each call costs under about 2 ms."""
        if self._closed:
            return
        self._date, at = now.date, now.steady
        self.health.tick(at)
        self.kept.tick(at)
        if at >= self._log_due:
            self._log_due = at + self.settings.flush_log_interval_ms
            self.kept.start(inline=False)
        if at >= self.queues_due:
            self.queues_due = at + self.settings.flush_queue_interval_ms
            self._reader.look_again()
            self._write_out.begin(at)
        if self._write_out.due is not None and at >= self._write_out.due and not self.failure:
            self._write_queues(at)
        indexed = not self.failure and self.maintenance.tick(now, self._visible.end, self._reads)
        if indexed and (at >= self._indexed_due or not self.unindexed_bytes):
            self._indexed_due = at + _INDEXED_MS
            self._move_checkpoint()

    def _write_queues(self, now: Steady) -> None:
        """Write out some queues; after the last of a round move the checkpoint, and leave the sync of what was written."""
        if self._write_out.step(now):
            self._move_checkpoint()
            if self._checkpoint_behind and (work := self._write_out.sync_work(self._move_checkpoint)):
                self._work.append(work)

    def raise_floors(self, ends: Mapping[tuple[str, int], int]) -> None:
        """Let queues go on at these offsets or behind them, whatever the log has of them, durably. Raises OSError."""
        self._reservations.raise_floors(ends)

    def delete_topic(self, topic: str, now: Steady) -> None:
        """Remove the queues of a topic; its records stay in the log until their file goes. Unknown topics are no error."""
        deletion = TopicDeletion(
            self.log, self.queues, self._visible, self._write_out, self._creation, self._reservations, self._inventory,
            self.maintenance, self.health,
        )  # fmt: skip
        if deletion.delete(topic):
            self.queues_due = now

    # ------------------------------------------------------------ work

    def _leave(self, work: Work[Any]) -> None:
        self._work.append(work)

    def work(self) -> list[Work[Any]]:
        """Take out what is to be run where waiting is allowed."""
        if self._reservations.wanted and not self.failure:
            self._reservations.start(self._work.append)
        if self._creation.has_requests:
            self._creation.start(self._work.append)
        taken, self._work = self._work, []
        return taken

    # ------------------------------------------------------------ stop

    def stop(self, now: Instant) -> None:
        """Take no more appends; the last syncs come out of `work`."""
        self._stopping = self.kept.stopping = True
        self._creation.refuse_all(StoreNotWritable(str(self.refusal)))
        if self.failure:
            return
        self.kept.start(inline=False)
        if work := self._write_out.sync_work(self._move_checkpoint, everything=True):
            self._work.append(work)

    def close(self, now: Instant) -> None:
        """Give the directory back. Waits for what `stop` left; a store that failed stays marked as unclean."""
        if self._closed:
            return
        self._stopping = self.kept.stopping = self._closed = True
        try:
            if not self.failure:
                self._finish(now)
        finally:
            self._checkpoint_file.close()
            self.journal.close()
            for segments in (self.log.segments, *(queue.segments for queue in self.queues.values())):
                segments.close()
            for file in self._indexing.index.files:
                file.file.close()
            self._lock.release()

    def _finish(self, now: Instant) -> None:
        flush = self._flush
        for _ in range(3):  # what is left, then what publishing it wrote
            if (log_work := flush.sync_log(self.kept.synced, inline=True)) is not None:
                carry_out(log_work, now)
            if queue_work := self._write_out.sync_work(self._move_checkpoint, everything=True):
                carry_out(queue_work, now)
        durable = min(flush.durable_offset, flush.queues_offset)
        if self.failure or flush.log_syncing or flush.queues_syncing or durable < self.log.end:
            return
        self._inventory.note_durable([(queue, queue.written) for queue in self.queues.values()], self.log.end)
        for file in (*self._indexing.take_sealed(), *self._indexing.index.files[-1:]):
            file.sync()
        self._disk.sync_directory(INDEX)
        self._write_checkpoint(clean=True)
        self._checkpoint_file.sync(file=True)
        self._disk.remove(ABORT)
        self._disk.sync_directory("")
