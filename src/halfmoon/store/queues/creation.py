"""`QueueCreation`: creates a queue's directory, file, first space and reservation of offsets, before its first message is stored.

All of that waits for the file system or the device, so it is left as `Work`, many queues in one: one sync covers the reservations
of a whole batch. Whoever has a message for a queue that is not `ready` calls `request`. Stores no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.instant import Instant
from halfmoon.ports import Disk
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.reservations import Extension, Reservations

OnCreated = Callable[[Exception | None, Instant], None]
"""Called with None, or the reason why there is no queue, and the time."""

BATCH_MAX = 64
"""Queues of one work: what waits for them is handled in one turn, about 10 ms."""

_Key = tuple[str, int]


class _Job(NamedTuple):
    queue: ConsumeQueue
    is_new: bool
    extension: Extension | None
    """None: its offsets need no reservation."""
    waiting: list[OnCreated]


class QueueCreation:
    """Queues that are requested and those that are being created.

    ``health`` learns what cannot be written. ``remove`` removes queues that were created but that nobody wants any more.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, queues: Queues, reservations: Reservations, inventory: Inventory,
        queue_file_bytes: int, *, health: Health, remove: Callable[[list[ConsumeQueue]], None],
    ) -> None:  # fmt: skip
        self._disk, self._log, self._queues, self._reservations, self._inventory = disk, log, queues, reservations, inventory
        self._queue_file_bytes, self._health, self._remove = queue_file_bytes, health, remove
        self._requested: dict[_Key, list[OnCreated]] = {}
        self._running: dict[_Key, list[OnCreated]] = {}
        self._forgotten: set[_Key] = set()
        self._to_call: list[OnCreated] = []
        """Callers whose queue is no longer to be created: they look again."""
        self.has_requests = False
        """Whether `start` has something to do once the running work is done."""
        self._refusal: Exception | None = None

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is there and may give out its next offset."""
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.next_offset < queue.reserved

    def adopt(self, queue: ConsumeQueue) -> None:
        """Take in a queue that was there at the start."""
        self._reservations.adopt(queue)

    def create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Create a queue at once; its first append waits for the disk.

        Raises:
            UsageError: the topic cannot be a directory.
            StoreNotWritable: it is being created in the background at this moment.
        """
        if (topic, queue_id) in self._running:
            raise StoreNotWritable(f"queue {queue_id} of {topic} is being created")
        queue = self._queues[topic, queue_id] = self._new(topic, queue_id)
        return queue

    def request(self, topic: str, queue_id: int, made: OnCreated) -> None:
        """Create a queue in the background; ``made`` is called in the order of the calls. Raises UsageError as `create` does."""
        key = (topic, queue_id)
        # One that is forgotten is removed as soon as it is made: whoever asks now needs another.
        running = self._running.get(key)
        if running is not None and key not in self._forgotten:
            running.append(made)
        else:
            if key not in self._queues and key not in self._requested:
                self._new(topic, queue_id)  # raises for a name that cannot be a directory
            self._requested.setdefault(key, []).append(made)
            self.has_requests = True

    def start(self, leave: Callable[[Work[Any]], None]) -> None:
        """Leave the creation of what is requested as work, one at a time."""
        if self._running:
            return
        to_tell, self._to_call = self._to_call, []
        jobs: dict[_Key, _Job] = {}
        error = self._refusal
        for key in list(self._requested)[:BATCH_MAX]:
            waiting = self._requested.pop(key)
            if error is None and not self.ready(*key):
                try:
                    jobs[key] = self._job(key, waiting)
                    self._running[key] = waiting
                    continue
                except OSError as exc:
                    self._health.write_failed("a reservation of queue offsets", exc)
                    error = exc
            to_tell += waiting
        self.has_requests = bool(self._requested)

        def done(result: Any, now: Instant) -> None:
            _call(to_tell, error, now)
            self._done(jobs, result, now)

        leave(Work(self._run_of(list(jobs.values())), done, not jobs, "create queues"))

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: do not create its requested queues, remove those being created, and call those that wait."""
        for key in [key for key in self._requested if key[0] == topic]:
            self._to_call += self._requested.pop(key)
            self.has_requests = True
        self._forgotten.update(key for key in self._running if key[0] == topic)

    def refuse_all(self, refusal: Exception) -> None:
        """Create nothing any more, for the store takes no more messages."""
        self._refusal = self._refusal or refusal

    def _new(self, topic: str, queue_id: int) -> ConsumeQueue:
        queue = ConsumeQueue(self._disk, topic, queue_id, self._queue_file_bytes)
        queue.next_offset = self._reservations.floor(topic, queue_id)
        queue.born = self._log.end
        self.adopt(queue)
        return queue

    def _job(self, key: _Key, waiting: list[OnCreated]) -> _Job:
        queue = self._queues.get(key)
        is_new = queue is None
        if queue is None:
            queue = self._new(*key)
        reserved = queue.next_offset < queue.reserved
        return _Job(queue, is_new, None if reserved else self._reservations.extend(queue, queue.next_offset + 1), waiting)

    def _run_of(self, jobs: list[_Job]) -> Callable[[], list[OSError | None]]:
        """Return what creates queues and waits for their reservations; its result is the error of each, or None."""
        # Read here: `run` is called in another thread, while the log grows.
        log_end, log_file_bytes = self._log.end, self._log.file_bytes

        def run() -> list[OSError | None]:
            results = [_make(job, log_end, log_file_bytes) for job in jobs]
            if any(job.extension is not None for job in jobs):
                self._reservations.sync()
            return results

        return run

    def _done(self, jobs: dict[_Key, _Job], result: Any, now: Instant) -> None:
        self._running = {}
        forgotten, self._forgotten = self._forgotten, set()
        failed = result if isinstance(result, Exception) else None
        if isinstance(result, Exception):
            self._health.sync_failed(result)
            result = [result] * len(jobs)
        created = list[ConsumeQueue]()
        for key, error in zip(jobs, result):
            job = jobs[key]
            if isinstance(error, OSError) and error is not failed:
                self._health.write_failed("a queue", error)
            if key in forgotten:
                if job.is_new:
                    self._remove([job.queue])
            elif error is None:
                if job.extension is not None:
                    self._reservations.granted(job.extension)
                self._queues[key] = job.queue
                created.append(job.queue)
        self._inventory.note(created, self._log.end)
        # Only once all of them are entered: a caller may need several of these queues.
        for key, error in zip(jobs, result):
            _call(jobs[key].waiting, None if key in forgotten else error, now)


def _make(job: _Job, log_end: int, log_file_bytes: int) -> OSError | None:
    if job.is_new:
        try:
            job.queue.make_room(job.queue.next_offset, 1, log_end, log_file_bytes)
        except OSError as exc:
            return exc
    return None


def _call(waiting: list[OnCreated], error: Exception | None, now: Instant) -> None:
    for made in waiting:
        made(error, now)
