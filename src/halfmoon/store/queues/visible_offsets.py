"""`VisibleOffsets`: what consumers can see, and what is pending. Hands entries to their queues, announces them, waits for nothing.

An append is visible at once; in sync flush, or a pair, its entries wait here until the log is kept, and are then written one
queue at a time. Space for entries is taken before their records are written, so that no acknowledged message lacks it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from halfmoon.errors import StoreNotWritable
from halfmoon.hot import ENTRY, ENTRY_BYTES
from halfmoon.store.health import Health
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue


class Arrival(NamedTuple):
    """Messages made visible in a queue. ``max_offset`` is its new end, ``entries`` are the new queue entries; None: unknown."""

    topic: str
    queue_id: int
    max_offset: int
    entries: bytes | None

    @property
    def count(self) -> int:  # type: ignore[override]  # hides tuple.count, which nobody misses
        """How many messages became visible; 0: unknown."""
        return len(self.entries or b"") // ENTRY_BYTES

    @property
    def tag_codes(self) -> list[int] | None:
        """The tag codes of what became visible; None: unknown."""
        return None if self.entries is None else [code for _, _, code in ENTRY.iter_unpack(self.entries)]


class VisibleOffsets:
    """Written and pending entries. ``end`` is the physical offset below which everything is visible, stored at ``end_ms``.

    ``changed`` are the queues that got entries since queues were last written out; ``published_bytes`` counts all entries.
    """

    def __init__(self, log: CommitLog, health: Health) -> None:
        self._log, self._health = log, health
        self.end = self.end_ms = self.published_bytes = 0
        self.changed: list[ConsumeQueue] = []
        self._pending: deque[tuple[int, ConsumeQueue, int, bytes]] = deque()
        """(end offset, queue, first queue offset, entries) of appends that are not visible yet."""
        self._arrivals: list[tuple[ConsumeQueue, int, bytes | None]] = []
        """Queue, its new end and new entries: each an `Arrival` once somebody asks."""

    def make_room(self, queue: ConsumeQueue, first: int, count: int) -> None:
        """Take disk space for entries. Raises StoreNotWritable, and changes nothing, when there is none."""
        try:
            queue.make_room(first, count, self._log.end, self._log.file_bytes)
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("a queue", exc)) from exc

    def publish(self, queue: ConsumeQueue, first: int, entries: bytes) -> None:
        """Give entries to their queue and let consumers see them. Raises StoreNotWritable."""
        if not queue.changed:
            self.changed.append(queue)
        try:
            queue.publish(first, entries, self._log.file_bytes)
        except OSError as exc:
            raise StoreNotWritable(self._health.fail(f"a queue cannot be written: {exc}")) from exc
        self.published_bytes += len(entries)
        if not queue.held:
            self._arrivals.append((queue, queue.max_offset, entries))

    def release(self, queue: ConsumeQueue) -> None:
        """Let consumers see, in one step, all that was written to a queue while it was held."""
        queue.held = False
        if queue.max_offset < queue.written:
            queue.max_offset = queue.written
            self._arrivals.append((queue, queue.max_offset, None))

    def wait(self, end_offset: int, queue: ConsumeQueue, first: int, entries: bytes) -> None:
        """Keep entries until the log is kept up to ``end_offset``."""
        self._pending.append((end_offset, queue, first, entries))

    def publish_kept(self, kept_offset: int, kept_ms: int) -> None:
        """Let consumers see what is kept now, one write a queue."""
        pending = self._pending
        blocks: dict[ConsumeQueue, tuple[int, list[bytes]]] = {}
        while pending and pending[0][0] <= kept_offset:
            _, queue, first, entries = pending.popleft()
            if queue in blocks:
                blocks[queue][1].append(entries)
            else:
                blocks[queue] = (first, [entries])
        try:
            for queue, (first, pieces) in blocks.items():
                self.publish(queue, first, b"".join(pieces))
        except StoreNotWritable:
            return  # the store has failed; what is durable is found again at the next start
        self.end, self.end_ms = kept_offset, kept_ms

    def forget(self, topic: str) -> None:
        """Forget a deleted topic: its entries need neither be seen nor synced."""
        self._pending = deque(entry for entry in self._pending if entry[1].topic != topic)
        self.changed = [queue for queue in self.changed if queue.topic != topic]

    def drop_pending(self) -> None:
        """Drop pending entries, which never become visible, for the store failed."""
        self._pending.clear()

    def take_changed(self) -> list[ConsumeQueue]:
        """Take out the queues whose entries are to be written out."""
        taken, self.changed = self.changed, []
        return taken

    def take_arrivals(self) -> list[Arrival]:
        """Take out what became visible since the last call."""
        taken, self._arrivals = self._arrivals, []
        return [Arrival(queue.topic, queue.queue_id, max_offset, entries) for queue, max_offset, entries in taken]

    def drop_arrivals(self) -> None:
        """Forget what became visible: nobody waits."""
        self._arrivals.clear()
