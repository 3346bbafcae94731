"""`WriteOut`: rounds in which entries that wait in memory are written to the files of their queues, some queues at a time.

Each round covers everything that was visible when it began. What it wrote is then synced (`halfmoon.store.flush`).
Waits for nothing.
"""

from __future__ import annotations

from collections import deque

from halfmoon.errors import StoreNotWritable
from halfmoon.store.health import Health
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.visible_offsets import VisibleOffsets

_QUEUES_A_STEP = 128
"""Queues written in one step, about 1 ms."""
STEP_MS = 10
"""Between two steps."""


class WriteOut:
    """The round, and what was written. Below ``end``, a physical offset, every entry is in a file; it was stored at ``end_ms``.

    ``to_sync`` are the queues written since the last sync of queues began. ``due`` is when the next step is; None: no round is on.
    """

    def __init__(self, visible: VisibleOffsets, health: Health) -> None:
        self._visible, self._health = visible, health
        self.end = self.end_ms = 0
        self.to_sync: dict[ConsumeQueue, None] = {}
        self.due: int | None = None
        self._left: deque[ConsumeQueue] = deque()
        self._covers = (0, 0)
        self._began_ms = self._rests_until = 0

    def begin(self, now: int) -> None:
        """Begin a round, unless one is on, or the last ended a shorter while ago than it took: more entries are written at once."""
        if self.due is None and now >= self._rests_until:
            self._began_ms = now
            self._left.extend(self._visible.take_changed())
            self._covers = self._visible.end, self._visible.end_ms
            self.due = now

    def step(self, now: int) -> bool:
        """Write out some queues; return whether that ended a round. Raises StoreNotWritable: the store has failed."""
        for _ in range(min(_QUEUES_A_STEP, len(self._left))):
            self._write(self._left.popleft())
        self.due = now + STEP_MS
        self._rests_until = 2 * now - self._began_ms
        return self._ended()

    def all(self) -> None:
        """Write out every queue. Raises as `step` does."""
        for _ in range(2):  # what is left of a round, then what came since it began
            self._rests_until = 0
            self.begin(0)
            while self._left:
                self._write(self._left.popleft())
            self._ended()

    def take_to_sync(self) -> list[ConsumeQueue]:
        """Take out the queues that want a sync."""
        taken, self.to_sync = list(self.to_sync), {}
        return taken

    def stepped(self, by_ms: int) -> None:
        """The clock was set."""
        self.due = None if self.due is None else self.due + by_ms
        self._began_ms, self._rests_until = self._began_ms + by_ms, self._rests_until + by_ms

    def forget(self, topic: str) -> None:
        """A topic was deleted: nothing of it is written any more."""
        self._left = deque(queue for queue in self._left if queue.topic != topic)
        self.to_sync = {queue: None for queue in self.to_sync if queue.topic != topic}

    def _write(self, queue: ConsumeQueue) -> None:
        queue.changed = False
        try:
            queue.write_out()
        except OSError as exc:
            raise StoreNotWritable(self._health.fail(f"a queue cannot be written: {exc}")) from exc
        self.to_sync[queue] = None

    def _ended(self) -> bool:
        if self._left:
            return False
        self.end, self.end_ms = self._covers
        self.due = None
        return True
