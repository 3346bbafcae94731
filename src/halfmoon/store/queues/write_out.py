"""`WriteOut`: rounds in which entries that wait in memory are written to the files of their queues, some queues at a time.

Each round covers everything that was visible when it began. What it wrote is then synced (`halfmoon.store.flush`), and how far
queues are on the device is noted in the inventory. Waits for nothing: syncs are `Work`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from halfmoon.effects import Work
from halfmoon.instant import LONG_AGO, Steady
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.flush import Flush
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.visible_offsets import VisibleOffsets

_QUEUES_A_STEP = 128
"""Queues written in one step, about 1 ms."""
STEP_MS = 10
"""Between two steps."""
WAITING_BYTES_MAX = 64 * 1024 * 1024
"""When more entries may wait in all, steps follow one another without a pause: a round of 80,000 queues takes a second of them."""
_NOTED_A_SYNC = 64
"""Queues whose ends are noted after a sync, some 0.3 ms; the others wait for one of the next, or the close."""


class WriteOut:
    """The round, and what was written. Below ``end``, a physical offset, every entry is in a file; it was stored at ``end_ms``.

    ``to_sync`` are the queues written since the last sync of queues began. ``due`` is when the next step is; None: no round is on.
    """

    def __init__(
        self, log: CommitLog, queues: Queues, visible: VisibleOffsets, flush: Flush, inventory: Inventory,
        checkpoint: CheckpointFile, health: Health,
    ) -> None:  # fmt: skip
        self._log, self._queues, self._visible, self._flush = log, queues, visible, flush
        self._inventory, self._checkpoint, self._health = inventory, checkpoint, health
        self.end = self.end_ms = 0
        self.to_sync: dict[ConsumeQueue, None] = {}
        self.due: Steady | None = None
        self._left: deque[ConsumeQueue] = deque()
        self._grown: dict[ConsumeQueue, int] = {}
        """Queues of which the inventory was not told yet how far they go, each with the end that its last sync covers."""
        self._covers = (0, 0, 0)
        self._published_bytes = 0
        """Bytes of published entries that have been written for sure."""
        self._began_at = self._rests_until = LONG_AGO

    def begin(self, now: Steady) -> None:
        """Begin a round, unless one is on, or the last ended a shorter while ago than it took: more entries are written at once."""
        if self.due is None and (now >= self._rests_until or self._is_crowded):
            self._began_at = now
            self._left.extend(self._visible.take_changed())
            self._covers = self._visible.end, self._visible.end_ms, self._visible.published_bytes
            self.due = now

    def step(self, now: Steady) -> bool:
        """Write out some queues; return whether that ended a round. False, too: the store has failed."""
        for _ in range(min(_QUEUES_A_STEP, len(self._left))):
            if not self._write(self._left.popleft()):
                return False
        self.due = now if self._is_crowded else now + STEP_MS
        self._rests_until = now + (now - self._began_at)
        return self._ended()

    @property
    def _is_crowded(self) -> bool:
        return self._visible.published_bytes - self._published_bytes > WAITING_BYTES_MAX

    def all(self) -> bool:
        """Write out every queue. False: the store has failed."""
        for _ in range(2):  # what is left of a round, then what came since it began
            self._rests_until = LONG_AGO
            self.begin(LONG_AGO)
            while self._left:
                if not self._write(self._left.popleft()):
                    return False
            self._ended()
        return True

    def sync_work(self, synced: Callable[[], None], *, everything: bool = False) -> Work[None] | None:
        """Return the work of syncing what was written, ``everything`` written out before; None: one is on, or the store failed.

        ``synced`` is called when it is on the device.
        """
        if self._flush.queues_syncing or self._health.failure or (everything and not self.all()):
            return None
        queues, self.to_sync = list(self.to_sync), {}
        self._grown.update((queue, queue.stored) for queue in queues)
        noted = list(islice(self._grown.items(), _NOTED_A_SYNC))
        return self._flush.sync_queues(queues, self.end, self.end_ms, self._checkpoint, lambda now: self._synced(noted, synced))

    def _synced(self, noted: list[tuple[ConsumeQueue, int]], synced: Callable[[], None]) -> None:
        if self._health.failure:
            return
        there = [(queue, end) for queue, end in noted if self._queues.get((queue.topic, queue.queue_id)) is queue]
        self._inventory.note_durable(there, self._log.end)
        for queue, _ in noted:
            self._grown.pop(queue, None)
        synced()

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: nothing of it is written any more."""
        self._left = deque(queue for queue in self._left if queue.topic != topic)
        self.to_sync = {queue: None for queue in self.to_sync if queue.topic != topic}

    def reported_max(self, topic: str, queue_id: int) -> int:
        """Return the queue offset behind the last visible message, 0 for an unknown queue, for an answer.

        The entries below are in the files then, unless the store fails: Spark's source may read these (``readFrom=files``).
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return 0
        if not self._health.failure:
            self._to_file(queue)
        return queue.max_offset

    def _write(self, queue: ConsumeQueue) -> bool:
        queue.changed = False
        if not self._to_file(queue):
            return False
        self.to_sync[queue] = None
        return True

    def _to_file(self, queue: ConsumeQueue) -> bool:
        try:
            queue.write_out()
        except OSError as exc:
            self._health.fail(f"a queue cannot be written: {exc}")
            return False
        return True

    def _ended(self) -> bool:
        if self._left:
            return False
        self.end, self.end_ms, self._published_bytes = self._covers
        self.due = None
        return True
