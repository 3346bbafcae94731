"""`Appending`: gives messages their offsets, and writes everything that one turn brought to the log at once.

Each group of messages is stored or refused as if it had come alone. What is written is published at once, or handed to
`VisibleOffsets` until it is kept (sync flush, a pair). Does not decide what may be stored. Waits for the device only to create a
queue or when a queue outruns its reserved offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from halfmoon.errors import StoreNotWritable
from halfmoon.hot import ENTRY, ENTRY_BYTES, Group, Messages
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.health import Health
from halfmoon.store.keyindex.indexing import Indexing
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.creation import QueueCreation
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.missing import Queues
from halfmoon.store.queues.reservations import Reservations
from halfmoon.store.queues.visible_offsets import VisibleOffsets


class Appended(NamedTuple):
    """Where messages went; durable once ``store.durable_offset >= end_offset``."""

    queue_offset: int
    physical_offsets: list[int]
    end_offset: int
    entries: bytes
    """Their queue entries."""

    @property
    def sizes(self) -> list[int]:
        """Size of each record, in bytes."""
        return [size for _, size, _ in ENTRY.iter_unpack(self.entries)]


class Appending:
    """The append of a store."""

    def __init__(
        self, log: CommitLog, queues: Queues, creation: QueueCreation, reservations: Reservations, visible: VisibleOffsets,
        inventory: Inventory, indexing: Indexing, checkpoint: CheckpointFile, health: Health, *, holds_back: bool,
    ) -> None:  # fmt: skip
        self._log, self._queues, self._creation, self._reservations = log, queues, creation, reservations
        self._visible, self._inventory, self._indexing, self._health = visible, inventory, indexing, health
        self._note_end, self._holds_back = checkpoint.note_end, holds_back

    def all(self, groups: Sequence[Group], now: int, *, in_order: bool) -> list[Appended | Exception]:
        """Store groups; return for each where it lies, or why nothing of it is stored.

        ``in_order``: the result ends with the first group that is not stored.
        """
        outcomes: list[Appended | Exception] = []
        gathered: list[tuple[int, ConsumeQueue, Appended]] = []
        for topic, queue_id, _, messages in groups:
            try:
                queue, appended = self._gather(topic, queue_id, messages, now)
            except Exception as exc:
                outcomes.append(exc)
                # `gather` may have had to write what others gathered, and failed: then the log ends before those, too.
                self._take_back(gathered, outcomes, exc)
                if in_order:
                    break
            else:
                gathered.append((len(outcomes), queue, appended))
                outcomes.append(appended)
        try:
            self._log.write()
        except OSError as exc:
            self._take_back(gathered, outcomes, StoreNotWritable(self._health.write_failed("the log", exc)))
        try:
            self._note_end(self._log.end)  # before anything is answered
        except OSError as exc:
            self._not_noted(gathered, outcomes, exc)
        for index, queue, (first, places, end, entries) in gathered:
            if end >= self._indexing.next_mark:
                self._indexing.mark(places[0])
            if self._holds_back:
                if entries:
                    self._visible.wait(end, queue, first, entries)
                continue
            try:
                if entries:
                    self._visible.publish(queue, first, entries)
                self._visible.end, self._visible.end_ms = end, now
            except StoreNotWritable as exc:
                outcomes[index] = exc
        return outcomes

    def _not_noted(
        self, gathered: list[tuple[int, ConsumeQueue, Appended]], outcomes: list[Appended | Exception], exc: OSError
    ) -> None:
        """Refuse all that was written, and show nothing of it: a start would not know that it was there."""
        refusal = StoreNotWritable(self._health.fail(f"the checkpoint cannot be written: {exc}"))
        for index, _, _ in gathered:
            outcomes[index] = refusal
        gathered.clear()

    def _gather(self, topic: str, queue_id: int, messages: Messages, now: int) -> tuple[ConsumeQueue, Appended]:
        """Give messages their places, and the log their records to write. Raises what `Store.append` does."""
        queue = self._queues.get((topic, queue_id)) or self._creation.create(topic, queue_id)
        first, count = queue.next_offset, len(messages)
        if first + count > queue.low_water:
            self._reservations.more(queue, first + count)
        # Before the record is in the log: from then on its entry must not lack space.
        if first + count > queue.room:
            self._visible.make_room(queue, first, count)
            # That may have made a file, and a file is listed before the checkpoint covers what is in it.
            self._inventory.note([queue], self._log.end)
        try:
            entries = self._log.gather(topic, queue_id, first, messages, now)
        except OSError as exc:
            raise StoreNotWritable(self._health.write_failed("the log", exc)) from exc
        queue.next_offset = first + len(entries) // ENTRY_BYTES
        return queue, Appended(first if entries else 0, messages.places, self._log.end, entries)

    def _take_back(
        self, gathered: list[tuple[int, ConsumeQueue, Appended]], outcomes: list[Appended | Exception], exc: Exception
    ) -> None:
        """Take back messages that the log does not have, for they lie behind its end: as if they never came."""
        while gathered and gathered[-1][2].end_offset > self._log.end:
            index, queue, appended = gathered.pop()
            queue.next_offset -= len(appended.entries) // ENTRY_BYTES
            outcomes[index] = exc
