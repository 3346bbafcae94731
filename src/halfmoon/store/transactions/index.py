"""`TransactionIndex`: which half messages are pending, who sent them and when, what became of the others, who was asked.

Half records, op records and visible records in the log are the truth. This index over them is derived: a state table, a redo log,
slots for checks, and a watermark that says how far they were brought. It follows the log a turn at a time, is believed up to the
watermark at a start, and is brought up to the log from there; what cannot be believed is rebuilt. Reads no body, sends nothing.

Follows TransactionStateService (RocketMQ 3.1.4) in what the files hold.
Differs: an index is the half queue offset and never changes, also when the table is rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.hot import prepared_rows
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.ports import Disk
from halfmoon.store.health import untried
from halfmoon.store.layout import HALF_TOPIC, UNIT_BYTES
from halfmoon.store.settings import StoreSettings
from halfmoon.store.store import Store
from halfmoon.store.transactions.check_slots import SENT_MAX, Check, CheckTable
from halfmoon.store.transactions.files import TransactionFiles
from halfmoon.store.transactions.recovery import recover_index
from halfmoon.store.transactions.state_table import BLOCK, Half, State
from halfmoon.store.transactions.watermark import Watermark

__all__ = ["SENT_MAX", "Check", "CheckTable", "Half", "State", "TransactionIndex"]

log = logging.getLogger("halfmoon.store.transactions")


class TransactionIndex:
    """The index of one store. Make one with `TransactionIndex.open`; everything else is called from the store's thread.

    ``unfinished`` are, after `open`, the half messages that a visible record committed and that have no op record, each with the
    offset of that record: a process was stopped in between. Whoever writes those op records calls ``hold(None)`` then; until then
    each start finds them again.
    ``failure`` says why the index stopped for good, None: it did not; it takes nothing then, and a start makes it whole.
    """

    def __init__(self, disk: Disk, store: Store, settings: StoreSettings) -> None:
        self._store = store
        self.files = files = TransactionFiles(disk, settings, store.journal)
        self._table, self._redo, self._slots = files.table, files.redo, files.slots
        self._interval_ms = settings.flush_transactions_interval_ms
        self._held: int | None = None
        self._reached: tuple[Watermark, int] | None = None
        """A watermark whose files are synced, and the end of the log that must be durable before it counts."""
        self._work: list[Work[Any]] = []
        self._syncing = self._closed = False
        self._frozen: str | None = None
        """Why the watermark stays where it is, and the next start reads the log from there; None: it does not."""
        self.consequence = "half messages and decisions are refused until the broker restarts"
        """Consequence of a failure, for the log."""
        self._due, self._tried_position = LONG_AGO, 0
        self.pin = store.maintenance.pin("transactions", self._undecided_from)
        self.room = 0
        """Half messages and decisions that can be entered before `make_room` must be asked for more."""
        self.failure: str | None = None
        self.unfinished: dict[int, int] = {}
        self.ignored = 0
        """Decisions found by the start whose half messages are not there, or were decided otherwise before."""
        self.rebuilt: str | None = None
        """Why the start rebuilt everything from the log; None: it did not."""
        self.checks_lost = 0
        """Checks that could not be written down."""

    @classmethod
    def open(cls, disk: Disk, store: Store, settings: StoreSettings, *, settled_below: int, now: Steady) -> TransactionIndex:
        """Read the files, or rebuild them from the log, and bring them up to its end. Waits for the disk.

        ``settled_below``: in a directory that never had this index, or whose log grew after the index was closed cleanly, another
        broker settled the half messages with lower half queue offsets (its progress on the half queue). They get no state unless a
        record of the log decides them.

        Raises OSError when the disk fails.
        """
        index = cls(disk, store, settings)
        try:
            recovered = recover_index(index.files, store, settled_below)
        except OSError:
            store.maintenance.unpin(index.pin)
            raise
        index.unfinished, index.ignored, index.rebuilt = recovered.unfinished, recovered.ignored, recovered.rebuilt
        index._held = min(recovered.unfinished.values(), default=None)
        index._tried_position = index.files.watermark.last.position
        index._due = now + index._interval_ms
        return index

    # ------------------------------------------------------------ facts

    @property
    def fault(self) -> str | None:
        """Why the files do not follow the log, so that only a start makes them whole; None: they do."""
        return self.failure or self._frozen

    @property
    def first(self) -> int:
        """Index of the first record; ``end`` when there is none."""
        return self._table.first

    @property
    def end(self) -> int:
        """Index behind the last record; the next half message has this one or, after a loss, a higher one."""
        return self._table.end

    @property
    def pending_count(self) -> int:
        """How many half messages are pending."""
        return self._table.pending_count

    @property
    def pending_by_group(self) -> Mapping[int, int]:
        """How many half messages are pending, by hash of the producer group."""
        return self._table.by_group

    def half(self, index: int) -> Half | None:
        """Return the record of a half message; None outside of [first, end). In a hole everything is 0."""
        return self._table.half(index)

    def pending(self, start: int, count_max: int, records_max: int = 4096, group_hash: int | None = None) -> tuple[list[Half], int]:
        """Return pending half messages from an index on, in order, and the index to go on at: ``end`` when there are no more.

        Looks at ``records_max`` records and returns ``count_max`` messages at most, of a group hash if one is given; blocks without
        pending ones cost nothing.
        """
        return self._table.pending(start, count_max, records_max, group_hash)

    def lowest_pending(self) -> int:
        """Return the lowest pending index; ``end`` when there is none."""
        return self._table.lowest_pending()

    def _undecided_from(self) -> int:
        """Physical offset of the oldest pending half message; the end of the log when there is none."""
        lowest = self._table.half(self._table.lowest_pending())
        return self._store.end_offset if lowest is None else lowest.physical_offset

    # ------------------------------------------------------------ what happens

    def make_room(self, halves: int, decisions: int, index: int | None = None) -> None:
        """Take the disk's space for so many half messages and decisions, so that entering them cannot lack it.

        To be called before their records are appended, where they are more than there is ``room`` for. ``index`` is that of the
        first half message; None: the next that the half queue gives out. Raises StoreNotWritable when the disk is full: nothing is
        different then.
        """
        self._check_writable()
        if index is None:
            index = self._next_index() if halves else 0
        try:
            states = self._table.make_room(halves, index)
            self.room = min(states, self._redo.make_room(halves + decisions))
        except OSError as exc:
            raise StoreNotWritable(f"the transaction index cannot be written: {exc}") from exc

    def _next_index(self) -> int:
        """Return the queue offset that the next half message gets; after a loss it is beyond the end of the table."""
        queue = self._store.queues.get((HALF_TOPIC, 0))
        return 0 if queue is None else queue.next_offset

    def prepared(self, index: int, entries: bytes, store_s: int, group_hash: int) -> None:
        """Enter half messages of one producer group, stored at ``store_s`` seconds, by their queue entries.

        Their indexes are ``index`` and the next ones.

        Raises:
            ValueError: an index below the end, or numbers that do not fit; nothing was entered.
            StoreNotWritable: the disk is full, or ``failure``; the index takes nothing more.
        """
        if self.failure is not None or self._closed:
            self._check_writable()
        if index - self.files.marks[-1][0] >= BLOCK:
            self.files.mark(index)
        states, units = prepared_rows(entries, store_s, group_hash)
        count = len(units) // UNIT_BYTES
        try:
            self._table.enter(index, states, ((group_hash, count),))
            self._redo.take(units)
        except OSError as exc:
            self._fail(exc)
        self.room -= count

    def decided(self, indexes: Sequence[int], entries: bytes, committed: int) -> int:
        """Enter stored decisions, and return when that of the lowest index was stored, in seconds.

        First ``committed`` commits, then rollbacks. ``entries`` are the queue entries of the visible records, and of the op records
        of rollbacks.

        Raises:
            ValueError: one is not pending, or decided twice here; nothing was entered.
            StoreNotWritable: as `prepared`.
        """
        if self.failure is not None or self._closed:
            self._check_writable()
        try:
            units, first_s = self._table.settle_pending(indexes, entries, committed)
            self._redo.take(units)
        except OSError as exc:
            self._fail(exc)
        self.room -= len(indexes)
        return first_s

    def hold(self, physical_offset: int | None) -> None:
        """Keep the watermark at or before a record of the log, so that the next start reads it again; None: let it go.

        For a visible record whose op record could not be written yet.
        """
        self._held = physical_offset

    def settle_below(self, index: int) -> None:
        """Take the state of pending half messages below an index away: another broker settled them, or the log let them go.

        Also of those that are entered later. `tick` does so once the watermark says it: a start must not miss their state.
        """
        self.files.none_below = max(self.files.none_below, index)

    def _check_writable(self) -> None:
        if self.failure is not None or self._closed:
            raise StoreNotWritable(self.failure or "the transaction index is closed")

    def _fail(self, exc: OSError) -> NoReturn:
        """Stop, because records of the log did not get into the files: only a start makes them whole."""
        raise StoreNotWritable(self.stop_for(exc)) from exc

    def discard(self, reason: str) -> None:
        """Take nothing more, because the index is wrong: the next start rebuilds it from the log."""
        self._stop(f"the transaction index contradicts the log: {reason}")
        try:
            self.files.watermark.write(Watermark(none_below=self.files.none_below, boot=self.files.boot))
        except OSError as exc:
            self._freeze(exc)

    def stop_for(self, exc: OSError) -> str:
        """Take nothing more, because the disk fails, and say so; return the reason."""
        return self._stop(f"the transaction index cannot be written: {exc}")

    def _stop(self, failure: str) -> str:
        self.failure, self.room = failure, 0
        log.warning("%s: %s", self.consequence, failure)
        return failure

    # ------------------------------------------------------------ checks

    def checks(self, index: int) -> CheckTable:
        """Return how many checks of a half message were sent and how many count, and the last 15 of them, oldest first."""
        half = self._table.half(index)
        return CheckTable(0, 0, []) if half is None else self._slots.checks(index, half.physical_offset)

    def checked(self, index: int, now_s: int, producer_hash: int) -> None:
        """Enter a check that was sent now to a producer. Raises ValueError when there is no such half message.

        A full disk is no error: the message is asked about more often then.
        """
        half = self._known(index)
        try:
            self._slots.checked(index, half.physical_offset, now_s, producer_hash)
        except OSError:
            self.checks_lost += 1

    def answered(self, index: int, answer: int, *, back: int = 0, pardons: int = 0) -> None:
        """Enter what came of the check that was sent ``back`` checks before the last, 1 to 255.

        ``pardons``: so many checks do not count any more. Raises ValueError for another number or an unknown half message.
        """
        half = self._known(index)
        try:
            self._slots.answered(index, half.physical_offset, answer, back=back, pardons=pardons)
        except OSError:
            self.checks_lost += 1

    def _known(self, index: int) -> Half:
        half = self._table.half(index)
        if half is None:
            raise ValueError(f"there is no half message {index}")
        return half

    # ------------------------------------------------------------ upkeep

    def due(self) -> Steady | None:
        """When `tick` wants to be called, ms since the epoch; None: nothing is to be done."""
        if self._closed or self._frozen or self.failure is not None:
            return None
        files = self.files
        wanted = files.dirty or self._reached is not None or self._position > self._tried_position
        return self._due if wanted or files.watermark.durable.none_below < files.none_below else None

    def tick(self, now: Steady) -> None:
        """Do what time asks for: a sync, a watermark, files that go."""
        if self._closed or self._frozen or self.failure is not None:
            return
        self._write_reached_watermark()
        if now >= self._due:
            self._due = now + self._interval_ms
            if self._table.lowest_pending() < (below := self.files.watermark.durable.none_below):
                self._table.settle_below(below)
            removal = self.files.drop_before(self._store.min_offset)
            if removal is not None:
                self._work.append(removal)
            self._start_sync()

    def work(self) -> list[Work[Any]]:
        """Take out what is to be run where waiting is allowed."""
        taken, self._work = self._work, []
        return taken

    def stop(self, now: Instant) -> None:
        """Begin to stop: the last sync comes out of `work`."""
        if self._closed or self._frozen or self.failure is not None:
            return
        self._write_reached_watermark()
        self._start_sync()

    def close(self, now: Instant) -> None:
        """Write the last watermark, when the log is durable. Waits for the disk.

        To be called once the works of `Store.stop` are done.
        """
        if self._closed:
            return
        self._closed, self.room = True, 0
        try:
            if not self._syncing and not self._frozen and self.failure is None:
                self._finish()
        except OSError as exc:
            self._freeze(exc)

    def _finish(self) -> None:
        watermark, durable_from = self._snapshot()
        self.files.sync()
        if self._store.failure is None and self._store.durable_offset >= durable_from:
            self.files.watermark.write(watermark._replace(clean=True))
        self.files.watermark.sync()

    @property
    def _position(self) -> int:
        """Physical offset below which everything was entered."""
        end = self._store.end_offset
        return end if self._held is None else max(self._tried_position, min(end, self._held))

    def _snapshot(self) -> tuple[Watermark, int]:
        """Return the watermark that counts once what is written now is synced, and the log is durable up to the offset with it."""
        self._tried_position = self._position
        end = self._store.end_offset
        return self.files.snapshot(self._tried_position, end), end

    def _start_sync(self) -> None:
        """Leave the sync of what is written as work; the watermark follows it."""
        if self._syncing or self._reached is not None:
            return
        files, watermark = self.files, self.files.watermark
        dirty, snapshot = files.dirty, self._snapshot()
        if not dirty and watermark.durable == watermark.last:
            self._reached = snapshot
            self._write_reached_watermark()
            return
        try:
            sync = files.take_sync()
        except OSError as exc:
            self.stop_for(exc)
            return
        self._syncing = True

        def run() -> None:
            sync()
            watermark.sync()

        def done(result: Exception | None, now: Instant) -> None:
            self._syncing = False
            if untried(result):
                files.put_back()
            elif isinstance(result, Exception):
                self._freeze(result)
            else:
                self._reached = snapshot
                self._write_reached_watermark()

        self._work.append(Work(run, done, False, "sync transactions"))

    def _write_reached_watermark(self) -> None:
        """Write the watermark whose files are synced, once the log is.

        None once the store failed: the log may have records that were refused, which only a start enters.
        """
        if self.failure is not None or self._store.failure is not None:
            return
        if self._reached is not None and self._store.durable_offset >= self._reached[1]:
            watermark, self._reached = self._reached[0], None
            if watermark != self.files.watermark.last and not self._closed:
                try:
                    self.files.watermark.write(watermark)
                except OSError as exc:
                    self._freeze(exc)

    def _freeze(self, exc: Exception) -> None:
        """Leave the watermark where it is after a failed sync, for the device may lack anything written since."""
        self._frozen = f"the transaction index cannot be saved: {exc}"
        log.warning("%s; the next start reads the log from the last watermark", self._frozen)
