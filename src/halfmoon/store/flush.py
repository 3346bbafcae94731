"""`Flush`: what is written, what is durable, and the syncs in between. Two lanes, each with at most one sync in flight.

The *log lane* syncs the commit log and moves ``durable_offset``; in sync flush it is the group commit: whatever was appended
while one sync runs waits together for the next. The *queue lane* syncs queues and the journal, and with the log lane's offset gives
the checkpoint. A sync that failed is never retried: the kernel may have dropped the pages, and a second call would lie.
One that never began, for want of a descriptor, leaves what it owes to the next of its lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from halfmoon.effects import Work
from halfmoon.instant import Instant
from halfmoon.ports import Disk, File
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.health import Health, untried
from halfmoon.store.layout import COMMIT_LOG, CONSUME_QUEUE
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue


class Flush:
    """Both lanes. ``error`` is the first failure, for good."""

    def __init__(self, disk: Disk, log: CommitLog, health: Health) -> None:
        self._disk, self._log, self._health = disk, log, health
        self._owed_log, self._owed_queues = _Owed([], []), _Owed([], [])
        self.durable_offset = 0
        self.durable_ms = 0
        self.queues_offset = 0
        self.queues_ms = 0
        self.error: Exception | None = None
        self.log_syncing = self.queues_syncing = False
        self.log_wanted = False
        """Somebody waits for what was appended since the sync in flight began."""

    @property
    def idle(self) -> bool:
        """Whether no sync is in flight."""
        return not self.log_syncing and not self.queues_syncing

    def sync_log(self, done: Callable[[Instant], None], *, inline: bool) -> Work[None] | None:
        """Return the work of syncing the log up to its end, or None when one is in flight, nothing is new, or one failed."""
        log = self._log
        if self.log_syncing or self.error is not None or self.durable_offset >= log.end:
            return None
        self.log_wanted = False
        self.log_syncing = True
        target, store_ms = log.end, log.last_store_ms
        files, directory = log.segments.take_dirty(), log.segments.take_directory_dirty()
        owed = self._owed_log.and_(files, [COMMIT_LOG] if directory else [])
        self._owed_log = _Owed([], [])

        def run() -> None:
            owed.sync(self._disk)

        def finish(result: Exception | None, now: Instant) -> None:
            self.log_syncing = False
            if untried(result):
                self._owed_log = owed
            if isinstance(result, Exception):
                self._not_synced(result)
            elif self.error is None:
                self.durable_offset, self.durable_ms = target, store_ms
            done(now)

        return Work(run, finish, inline, "sync log")

    def sync_queues(
        self,
        queues: Iterable[ConsumeQueue],
        published: int,
        store_ms: int,
        checkpoint: CheckpointFile,
        done: Callable[[Instant], None],
    ) -> Work[None] | None:
        """Return the work of syncing queues that were written; everything below ``published`` has its entry in them.

        ``done`` is called when that is on the device.
        """
        if self.queues_syncing or self.error is not None:
            return None
        self.queues_syncing = True
        files: list[File] = []
        directories: list[str] = []
        for queue in queues:
            files += queue.segments.take_dirty()
            if queue.segments.take_directory_dirty():
                directories.append(queue.segments.directory)
        if directories:
            directories.append(CONSUME_QUEUE)
        owed = self._owed_queues.and_(files, directories)
        self._owed_queues = _Owed([], [])

        def run() -> None:
            owed.sync(self._disk)
            checkpoint.sync()

        def finish(result: Exception | None, now: Instant) -> None:
            self.queues_syncing = False
            if untried(result):
                self._owed_queues = owed
            if isinstance(result, Exception):
                self._not_synced(result)
            elif self.error is None:
                self.queues_offset, self.queues_ms = published, store_ms
                done(now)

        return Work(run, finish, False, "sync queues")

    def _not_synced(self, error: Exception) -> None:
        self._health.sync_failed(error)
        if not untried(error):
            self.error = self.error or error


class _Owed(NamedTuple):
    """Files and directories that are to be synced."""

    files: list[File]
    directories: list[str]

    def and_(self, files: list[File], directories: list[str]) -> _Owed:
        """Return these and others, each once."""
        return _Owed([*dict.fromkeys([*self.files, *files])], [*dict.fromkeys([*self.directories, *directories])])

    def sync(self, disk: Disk) -> None:
        """Wait until all is on the device. Raises OSError."""
        disk.sync_all(self.files, self.directories)
