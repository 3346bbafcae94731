"""`TransactionFiles`: the files of the transaction index together: which are to be synced, which may go, how far they are.

State table, redo log, check slots and watermark. Decides nothing about transactions and never asks the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from halfmoon.effects import Work
from halfmoon.instant import Instant
from halfmoon.ports import Disk, File
from halfmoon.store.journal import Journal
from halfmoon.store.layout import CHECKS, REDO_LOG, STATE_TABLE, TRANSACTION, file_offset
from halfmoon.store.settings import StoreSettings
from halfmoon.store.transactions.check_slots import CheckSlots
from halfmoon.store.transactions.redo_log import RedoLog
from halfmoon.store.transactions.state_table import BLOCK, StateTable
from halfmoon.store.transactions.watermark import Watermark, WatermarkRow


class TransactionFiles:
    """The files. ``none_below`` as in `Watermark`."""

    def __init__(self, disk: Disk, settings: StoreSettings, journal: Journal) -> None:
        self.disk = disk
        self.table = StateTable(disk, settings.transaction_file_records)
        self.redo = RedoLog(disk, settings.transaction_file_records)
        self.slots = CheckSlots(disk)
        self.watermark = WatermarkRow(journal)
        self.boot = disk.boot_id() or ""
        self.none_below = 0
        self._owed: tuple[list[File], list[str]] = ([], [])
        self._taken: tuple[list[File], list[str]] = ([], [])
        """Other work of the next sync, and of the last one."""
        self.marks: deque[tuple[int, int]] = deque([(0, 0)])
        """Pairs, one for each 4,096 half messages from the first pending one on: units about half messages from this index on have
        this number or a higher one."""

    def mark(self, index: int) -> None:
        """Remember now and then from where on the units are about ``index``, the next half message, and later ones."""
        if index - self.marks[-1][0] >= BLOCK:
            self.marks.append((index, self.redo.end))

    def snapshot(self, position: int, end: int) -> Watermark:
        """Return the watermark that counts once what is written now is synced; everything below ``position`` was entered."""
        settled, marks = self.table.lowest_pending(), self.marks
        while len(marks) > 1 and marks[1][0] <= settled:
            marks.popleft()
        if self.table.pending_count == 0:
            self.marks = marks = deque([(settled, self.redo.end)])
        redo_from, none_below = marks[0][1], self.none_below
        return Watermark(position, self.table.end, self.redo.end, settled, redo_from, none_below, end, boot=self.boot)

    # ------------------------------------------------------------ sync

    @property
    def dirty(self) -> bool:
        """Whether something was written since the last sync began."""
        return bool(self._owed[0] or self.table.segments.dirty or self.redo.dirty or self.slots.dirty)

    def take_sync(self) -> Callable[[], None]:
        """Return what waits until everything written so far is on the device; it may run in another thread.

        When it fails before it began (`halfmoon.store.health.untried`), `put_back` leaves it to the next. Raises OSError when units
        of the redo log that wait in memory cannot be written.
        """
        # Units that wait in memory are in no file yet, and the watermark will count them.
        self.redo.write()
        (files, directories), self._owed = self._owed, ([], [])
        for segments in (self.table.segments, self.redo.segments):
            files += segments.take_dirty()
            if segments.take_directory_dirty():
                directories.append(segments.directory)
        files += self.slots.take_dirty()
        if self.slots.take_new_names():
            directories.append(CHECKS)
        if directories:
            directories.append(TRANSACTION)
        self._taken = (files, directories)

        def run() -> None:
            for file in files:
                file.sync()
            for directory in directories:
                self.disk.sync_directory(directory)

        return run

    def put_back(self) -> None:
        """Put back the files taken last for a sync that did not happen."""
        self._owed, self._taken = self._taken, ([], [])

    def sync(self) -> None:
        """Wait until everything written so far is on the device."""
        self.take_sync()()

    def write_watermark(self, watermark: Watermark) -> None:
        """Write a watermark and wait until it is on the device; one that is there already costs nothing."""
        if watermark != self.watermark.durable:
            self.watermark.write(watermark)
            self.watermark.sync()

    # ------------------------------------------------------------ files that go

    def drop_before(self, physical_offset: int) -> Work[None] | None:
        """Forget files whose half records lie below an offset, and units that no start needs; return the work of removing them.

        A file with something pending stays, though its record be gone: whoever looks at it gives it up, and says so.
        """
        lowest = self.table.half(self.table.lowest_pending())
        paths = self.table.drop_before(physical_offset if lowest is None else min(physical_offset, lowest.physical_offset))
        if paths:
            paths += self.slots.drop_before(self.table.first)
        paths += self.redo.drop_before(self.watermark.durable.redo_from)
        if not paths:
            return None

        def run() -> None:
            for path in paths:
                self.disk.remove(path)
            for directory in (STATE_TABLE, REDO_LOG, CHECKS):
                self.disk.sync_directory(directory)

        return Work(run, _forget_result, False, "remove transaction files")

    def clear(self) -> None:
        """Remove table and redo log at once, whatever their files are like. Checks stay: nothing else knows of them."""
        for directory in (STATE_TABLE, REDO_LOG):
            for name in self.disk.list(directory):
                if file_offset(name) is not None:
                    self.disk.remove(f"{directory}/{name}")
            self.disk.sync_directory(directory)
        self.table.reset()
        self.redo.reset()
        self.marks = deque([(0, 0)])
        self.none_below = 0


def _forget_result(result: Exception | None, now: Instant) -> None:
    """Ignore a failed removal: the next start finds the file again."""
