"""`QueueCreation`: a queue's directory, file, first space and reservation of offsets, made before its first message is stored.

All of that waits for the file system or the device, so it is left as `Work`, many queues in one: one sync covers the reservations
of a whole batch. Whoever has a message for such a queue asks `ready` and, when it is not, waits for `later`. Stores no message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from halfmoon.effects import Work
from halfmoon.errors import StoreNotWritable
from halfmoon.ports import Disk
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.reservations import Extension, Reservations

OnCreated = Callable[[Exception | None, int], None]
"""Called with None or why there is no queue, and the time."""

BATCH_MAX = 64
"""Queues of one work: what waits for them is handled in one turn, some 10 ms."""

_Key = tuple[str, int]


class _Job(NamedTuple):
    queue: ConsumeQueue
    is_new: bool
    extension: Extension | None
    """None: its offsets need no reservation."""
    waiting: list[OnCreated]


class QueueCreation:
    """Queues that are wanted and those that are being made.

    ``health`` is told what cannot be written, ``remove`` removes what was made of queues that nobody wants now.
    """

    def __init__(
        self, disk: Disk, log: CommitLog, queues: Queues, reservations: Reservations, inventory: Inventory,
        queue_file_bytes: int, *, health: Health, remove: Callable[[list[ConsumeQueue]], None],
    ) -> None:  # fmt: skip
        self._disk, self._log, self._queues, self._reservations, self._inventory = disk, log, queues, reservations, inventory
        self._queue_file_bytes, self._health, self._remove = queue_file_bytes, health, remove
        self._wanted: dict[_Key, list[OnCreated]] = {}
        self._running: dict[_Key, list[OnCreated]] = {}
        self._forgotten: set[_Key] = set()
        self._to_tell: list[OnCreated] = []
        """Those whose queue is not to be made any more: they look again."""
        self.asked = False
        """Whether `start` has something to do, once what runs has ended."""
        self._refusal: Exception | None = None

    def ready(self, topic: str, queue_id: int) -> bool:
        """Whether the queue is there and may give out its next offset."""
        queue = self._queues.get((topic, queue_id))
        return queue is not None and queue.next_offset < queue.reserved

    def adopt(self, queue: ConsumeQueue) -> None:
        """Take in a queue that was there at the start."""
        self._reservations.adopt(queue)

    def now(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Enter a new queue at once; its first append waits for the disk.

        Raises:
            UsageError: the topic cannot be a directory.
            StoreNotWritable: it is being made elsewhere at this moment.
        """
        if (topic, queue_id) in self._running:
            raise StoreNotWritable(f"queue {queue_id} of {topic} is being made")
        queue = self._queues[topic, queue_id] = self._new(topic, queue_id)
        return queue

    def later(self, topic: str, queue_id: int, made: OnCreated) -> None:
        """Have a queue made ready in the background; ``made`` is called in the order of the calls. Raises UsageError as `now`."""
        key = (topic, queue_id)
        running = self._running.get(key)
        if running is not None and key not in self._forgotten:
            running.append(made)
        else:
            if key not in self._queues and key not in self._wanted:
                self._new(topic, queue_id)  # raises for a name that cannot be a directory
            self._wanted.setdefault(key, []).append(made)
            self.asked = True

    def start(self, leave: Callable[[Work[Any]], None]) -> None:
        """Leave the making of what is wanted as work, one at a time."""
        if self._running:
            return
        to_tell, self._to_tell = self._to_tell, []
        jobs: dict[_Key, _Job] = {}
        error = self._refusal
        for key in list(self._wanted)[:BATCH_MAX]:
            waiting = self._wanted.pop(key)
            if error is None and not self.ready(*key):
                try:
                    jobs[key] = self._job(key, waiting)
                    self._running[key] = waiting
                    continue
                except OSError as exc:
                    self._health.write_failed("a reservation of queue offsets", exc)
                    error = exc
            to_tell += waiting
        self.asked = bool(self._wanted)

        def done(result: Any, now: int) -> None:
            _tell(to_tell, error, now)
            self._done(jobs, result, now)

        leave(Work(self._run_of(list(jobs.values())), done, not jobs, "make queues"))

    def forget(self, topic: str) -> None:
        """A topic was deleted: what is wanted of it is not made, what is being made is removed; who waits looks again."""
        for key in [key for key in self._wanted if key[0] == topic]:
            self._to_tell += self._wanted.pop(key)
            self.asked = True
        self._forgotten.update(key for key in self._running if key[0] == topic)

    def give_up(self, refusal: Exception) -> None:
        """The store takes no more messages: nothing is made any more."""
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
        """Return what makes queues and waits for their reservations; its result says what went wrong with each."""
        log_end, log_file_bytes = self._log.end, self._log.file_bytes

        def run() -> list[OSError | None]:
            results = [_make(job, log_end, log_file_bytes) for job in jobs]
            if any(job.extension is not None for job in jobs):
                self._reservations.sync()
            return results

        return run

    def _done(self, jobs: dict[_Key, _Job], result: Any, now: int) -> None:
        self._running = {}
        forgotten, self._forgotten = self._forgotten, set()
        failed = result if isinstance(result, Exception) else None
        if isinstance(result, Exception):
            self._health.sync_failed(result)
            result = [result] * len(jobs)
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
                self._inventory.note([job.queue], self._log.end)
        for key, error in zip(jobs, result):
            _tell(jobs[key].waiting, None if key in forgotten else error, now)


def _make(job: _Job, log_end: int, log_file_bytes: int) -> OSError | None:
    if job.is_new:
        try:
            job.queue.make_room(job.queue.next_offset, 1, log_end, log_file_bytes)
        except OSError as exc:
            return exc
    return None


def _tell(waiting: list[OnCreated], error: Exception | None, now: int) -> None:
    for made in waiting:
        made(error, now)
