"""The queue of one delay level: which of its messages are due, in the order of parking. Follows DeliverDelayedMessageTimerTask.

Differs: it sleeps until its next message is due instead of looking every 100 ms; the queue of a level that no longer exists is
delivered too, each message when its queue entry says; a message whose time is further away than the level's delay waits for it,
unless it was parked in the future, which means that the clock was set back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from halfmoon.broker.delay.delivery import Deliveries, Due
from halfmoon.broker.delay.levels import Levels
from halfmoon.store.entries import QueueEntry, entries_at
from halfmoon.store.store import Store
from halfmoon.store.timer.messages import SCHEDULE_TOPIC

RETRY_MS = 100
"""Retry after messages could not be stored. Follows DELAY_FOR_A_WHILE."""
SOON_MS = 5
"""Retry for a queue that is being created, or a message that is not visible yet."""

BYTES_AT_ONCE = 1 << 20
"""About how many bytes of records one level delivers at a time; a larger message goes alone. Bounds memory and time of a turn."""


class LevelQueue:
    """One level. ``offset`` is the queue offset of the next message to deliver."""

    def __init__(self, level: int, offset: int, levels: Levels, store: Store, deliveries: Deliveries) -> None:
        self.level, self.offset = level, offset
        self._levels, self._store, self._deliveries = levels, store, deliveries
        self.left: list[Due] = []
        self._behind = 0
        """The next offset once what is left is stored."""
        self._promised = 0
        """Queue offset behind the last message that was parked here."""
        self.due: int | None = 0
        """When `run` wants to be called; None: not before a message is parked."""

    def parked(self, end: int, due: int) -> None:
        """Note a parked message; the queue ends at ``end`` now."""
        self._promised = end
        if self.due is None:
            self.due = due

    def wait(self, until: int) -> None:
        """Do nothing before a time."""
        self.due = until

    def next(self, now: int, count_max: int) -> Sequence[QueueEntry]:
        """Return what is due, at most so many entries and `BYTES_AT_ONCE`, but for one; sets ``due`` when there is nothing."""
        queue_id = self.level - 1
        entries = entries_at(self._store, SCHEDULE_TOPIC, queue_id, self.offset, count_max)
        if not entries:
            return self._correct(now)
        size_bytes = 0
        for place, entry in enumerate(entries):
            size_bytes += entry.size
            if place and size_bytes > BYTES_AT_ONCE:
                return entries[:place]
            if entry.size and (due := self._due(entry, now)) > now:
                if place == 0:
                    self.due = due
                return entries[:place]
        return entries

    def _due(self, entry: QueueEntry, now: int) -> int:
        if entry.tag_code <= now + self._levels.delay_ms(self.level):
            return entry.tag_code
        stored_ms = self._store.store_ms(SCHEDULE_TOPIC, self.level - 1, entry.queue_offset)
        # Stored in the future means that the clock was set back since: it would wait for that, too.
        return now if stored_ms > now else entry.tag_code

    def _correct(self, now: int) -> Sequence[QueueEntry]:
        """Find out why there is no entry: all are delivered, or the beginning of the queue has expired."""
        low = self._store.queue_min(SCHEDULE_TOPIC, self.level - 1)
        high = self._store.queue_max(SCHEDULE_TOPIC, self.level - 1)
        if self.offset < low:
            self._deliveries.gone(self.level, self.offset, low)
        self.offset = max(low, min(self.offset, high))
        if self.offset < high:
            self.due = now
        else:
            self.due = now + SOON_MS if self._promised > high else None
        return ()

    def overdue(self, now: int) -> tuple[int, int]:
        """Return how many messages are due and not delivered, and since when the first is; looks at about log2(n) entries."""
        begin, end = self.offset, self._store.queue_max(SCHEDULE_TOPIC, self.level - 1)

        def due(queue_offset: int) -> int:
            entries = entries_at(self._store, SCHEDULE_TOPIC, self.level - 1, queue_offset, 1)
            return entries[0].tag_code if entries and entries[0].size else 0

        count = bisect_right(range(begin, end), now, key=due) if begin < end and due(begin) <= now else 0
        return count, due(begin) if count else now

    def settle(self, messages: Sequence[Due], behind: int, now: int) -> None:
        """Store messages, and go on at an offset once all of them are."""
        self._behind = behind
        self.left = self._deliveries.store(messages, now)
        if self.left:
            self.due = now + (SOON_MS if self._store.refusal is None else RETRY_MS)
        else:
            self.offset, self.due = behind, now

    def hurry(self) -> None:
        """Retry at once what is left."""
        if self.left:
            self.due = 0

    def leave(self, messages: Sequence[Due], behind: int) -> None:
        """Begin with messages that the last process left, and go on at an offset once they are stored."""
        self.left, self._behind = list(messages), behind
        if not messages:
            self.offset = behind

    def again(self, now: int) -> None:
        """Retry what is left."""
        self.settle(self.left, self._behind, now)
