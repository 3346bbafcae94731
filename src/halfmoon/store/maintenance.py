"""`Maintenance`: what a store does in the background, a slice at a time: key indexing, retention, lowest offsets, file removal.

The store tells it the time; it leaves syncs and removals as `Work`. Touches no message.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from halfmoon.effects import Work
from halfmoon.hot import ENTRY_BYTES
from halfmoon.instant import LONG_AGO, Instant, Steady
from halfmoon.ports import Disk
from halfmoon.store.flush import Flush
from halfmoon.store.health import Health
from halfmoon.store.keyindex.indexing import Indexing
from halfmoon.store.keyindex.key_index import IndexFile
from halfmoon.store.layout import COMMIT_LOG, CONSUME_QUEUE, INDEX
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.retention import Pin, disk_space, expired_before
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.settings import StoreSettings
from halfmoon.store.spare_space import SpareSpace

log = logging.getLogger("halfmoon.store")

_LAG_BYTES = 128 * 1024**2
_FULL_BYTES = 256 * 1024
"""While others append or read, a slice waits until there is so much to index: it costs 200 us however small it is, and whoever
sends one at a time meets each of them."""
_QUEUES_A_TICK = 50
_INDEXED_AT_ONCE = 65_536

MANUAL_ROUNDS = 20
"""Rounds of cleaning for which a command to delete expired files holds. Follows MAX_MANUAL_DELETE_FILE_TIMES."""


class Maintenance:
    """The slices, and when the next is due. ``disk_full`` says why nothing may be written, None: it may.

    ``pins`` keep log files, see `halfmoon.store.log.retention.Pin`: those that are not firm first.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, queues: Queues, flush: Flush, indexing: Indexing, inventory: Inventory,
        settings: StoreSettings, leave: Callable[[Work[Any]], None], health: Health,
    ) -> None:  # fmt: skip
        self._disk, self._log, self._queues, self._flush, self._indexing = disk, log, queues, flush, indexing
        self._inventory = inventory
        self._settings, self._leave, self._health = settings, leave, health
        self._spare_space = SpareSpace(disk)
        self.disk_full: str | None = None
        self.index_fault: str | None = None
        """Why the key index does not follow the log, which takes nothing meanwhile: what looks for repeats would walk it all."""
        self.pins: list[Pin] = []
        self._index_due = self._clean_due = LONG_AGO
        self._manual_rounds = 0
        """Rounds of cleaning in which expired files go at any hour."""
        self._activity = (0, 0)
        self._index_syncing = False
        self._to_correct: deque[ConsumeQueue] = deque()
        """Queues whose lowest offset must be found again because log files were removed."""

    def start(self, now: Steady, refusal: str | None = None) -> None:
        """Begin: indexing at once, cleaning a minute later. ``refusal`` says why nothing may be written until then."""
        self.disk_full = refusal or disk_space(self._disk.usage(), self._settings).refusal or self._spare_space.take()
        if self.disk_full is not None:
            log.error("the store is open for reading only: %s", self.disk_full)
        self._index_due = now
        self._clean_due = now + min(60_000, self._settings.clean_interval_ms)

    def due(self, published: int) -> Steady:
        """When `tick` is wanted next."""
        if self._to_correct or self._indexing.position < published or (self._indexing.sealed and not self._index_syncing):
            return min(self._index_due, self._clean_due)
        return self._clean_due

    def settings_changed(self, now: Steady) -> None:
        """Take over an interval of cleaning that may be shorter."""
        self._clean_due = min(self._clean_due, now + self._settings.clean_interval_ms)

    def tick(self, now: Instant, published: int, reads: int) -> bool:
        """Do what is due; return whether the key index went on. It gives way while ``reads``, a count, grows."""
        moved = False
        if now.steady >= self._index_due:
            moved = self._index(now, published, reads)
        if now.steady >= self._clean_due:
            self._clean_due = now.steady + self._settings.clean_interval_ms
            self._clean(now.date, published)
        if self._to_correct:
            self._correct_queues()
        return moved

    def _index(self, now: Instant, published: int, reads: int) -> bool:
        """One slice of indexing. While others append or read it gets at most a sixteenth of the time, a quarter when far behind."""
        lag = published - self._indexing.position
        idle = self._activity == (self._log.end, reads)
        self._activity = (self._log.end, reads)
        self._index_due = now.steady + (1 if idle else 16 if lag < _LAG_BYTES else 4)
        if not self._index_syncing and (sealed := self._indexing.take_sealed()):
            self._index_syncing = True
            self._sync_index(sealed)
        if lag <= 0 or (lag < _FULL_BYTES and not idle and self.index_fault is None):
            return False
        try:
            self._indexing.slice(published, now.date)
        except OSError as exc:
            self._index_due = now.steady + 1000  # no room for an index file: messages matter more, try again
            self.index_fault = self._health.write_failed("a key index file", exc)
            return False
        self.index_fault = None
        return True

    def index_more(self, now: int, published: int) -> bool:
        """Enter the keys of the next 64 Ki records below ``published`` and sync full files; return whether more are left.

        For who has nothing else to do: it waits, and is 100 ms or more of work. Raises OSError when the disk is full.
        """
        self._indexing.slice(published, now, _INDEXED_AT_ONCE)
        for file in self._indexing.take_sealed():
            file.sync()
        return self._indexing.position < published

    def _sync_index(self, sealed: list[IndexFile]) -> None:
        """Make index files that became full durable; a restart of the machine keeps those."""
        disk, indexing = self._disk, self._indexing

        def run() -> None:
            for file in sealed:
                file.sync()
            disk.sync_directory(INDEX)

        def done(result: Exception | None, now: Instant) -> None:
            self._index_syncing = False
            if isinstance(result, Exception):
                self._health.sync_failed(result)
                indexing.sealed = sealed + indexing.sealed
            else:
                indexing.settle(self._flush.durable_offset, sealed)

        self._leave(Work(run, done, False, "sync key index"))

    def _clean(self, now: int, published: int) -> None:
        """Look at the disk's space, and let files go that may."""
        wanted = disk_space(self._disk.usage(), self._settings)
        self.disk_full = wanted.refusal or self._spare_space.take()
        if self._manual_rounds:
            self._manual_rounds -= 1
            wanted = wanted._replace(clean=True)
        needed = min(self._flush.durable_offset, self._flush.queues_offset, published)
        first = expired = expired_before(self._disk, self._log, self._settings, now, wanted, keep_from=needed)
        for pin in self.pins:
            if pin.firm:
                pin.wanted_below = expired if wanted.clean or wanted.forcibly else 0
            elif wanted.forcibly:
                if pin.needed_from() < expired:
                    log.error("the disk is nearly full: %s are lost with the log below %d", pin.what, expired)
                continue
            first = min(first, pin.allows(expired, self._log, self._flush.durable_offset))
            if not pin.firm:
                expired = first
        paths = self._log.segments.drop_before(first)
        if paths:
            if wanted.forcibly:
                log.warning("the disk is nearly full: the log below %d is deleted, whatever its age", first)
            paths += self._indexing.index.drop_before(self._log.first)
            self._inventory.note_index(self._indexing.index.names())
            self._inventory.note_log_first(self._log.first)
            self._to_correct.extend(self._queues.values())
            self.remove_later(paths, [COMMIT_LOG, INDEX])

    @contextmanager
    def making_room(self, pin: Pin) -> Iterator[None]:
        """While it is entered, a disk too full for others takes what lets a pin go; unless the pin is not in the way."""
        kept = self.disk_full, self.index_fault
        if pin.in_the_way_below:
            self.disk_full = self.index_fault = None
        try:
            yield
        finally:
            self.disk_full, self.index_fault = kept

    def _correct_queues(self) -> None:
        """Remove files of some queues that point only below the log, and find the lowest offsets again."""
        for _ in range(min(_QUEUES_A_TICK, len(self._to_correct))):
            queue = self._to_correct.popleft()
            segments, first = queue.segments, queue.first
            if segments.last is None:
                continue
            while first + queue.per_file <= queue.written and queue.entry(first + queue.per_file - 1)[0] < self._log.first:
                first += queue.per_file
            paths = segments.drop_before(first * ENTRY_BYTES)
            queue.correct_min(self._log.first)
            self._inventory.note_end(queue, self._log.end)
            if paths:
                self.remove_later(paths, [segments.directory])

    def clean_now(self, now: Steady) -> None:
        """Delete expired log files at any hour: in the next tick, and what is left in the rounds after it."""
        self._manual_rounds, self._clean_due = MANUAL_ROUNDS, now

    def correct_queues(self) -> None:
        """Remove files of queues that point only below the log, some queues at each tick."""
        self._to_correct = deque(self._queues.values())

    def pin(self, what: str, needed_from: Callable[[], int], *, firm: bool = True) -> Pin:
        """Keep log files as `Pin` says, besides those that are kept already."""
        pin = Pin(what, needed_from, firm=firm)
        self.pins = sorted([*self.pins, pin], key=lambda pin: pin.firm)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Keep no log files for a pin any more."""
        self.pins = [each for each in self.pins if each is not pin]

    def remove_now(self, paths: list[str]) -> None:
        """Remove files and directories whose names the next append may use again."""
        for path in paths:
            try:
                self._disk.remove(path)
            except OSError:
                pass  # something else lies in the directory; the queue's files are gone or found again at the next start

    def remove_queues(self, queues: list[ConsumeQueue]) -> None:
        """Remove queues that are in no table any more, at once: the next append may make files of the same names."""
        directories: list[str] = []
        for queue in queues:
            self.remove_now([*queue.segments.remove_all(), queue.segments.directory])
            directories.append(queue.segments.directory)
        topics = {queue.topic for queue in queues}
        self.remove_now([f"{CONSUME_QUEUE}/{topic}" for topic in sorted(topics)])
        self.remove_later([], [*directories, CONSUME_QUEUE], topics)

    def remove_later(self, paths: list[str], directories: list[str], topics: Collection[str] = ()) -> None:
        """Leave the removal of files, whose names nobody rebuilds, as work. ``topics`` are those that go with it."""
        disk, inventory = self._disk, self._inventory

        def done(result: Exception | None, now: Instant) -> None:
            if not isinstance(result, Exception):  # else a file is found again at the next start
                for topic in topics:
                    inventory.removed(topic)

        def run() -> None:
            inventory.sync()
            for path in paths:
                disk.remove(path)
            for directory in directories:
                disk.sync_directory(directory)

        self._leave(Work(run, done, False, "remove files"))
