"""`DamagedRecords`: says which stored records readers step over, once of each queue. Decides nothing."""

from __future__ import annotations

import logging

from halfmoon.store.consumequeue import ConsumeQueue
from halfmoon.store.segments import Segments

log = logging.getLogger("halfmoon.store.damaged")


class DamagedRecords:
    """What readers found of the log that no decoder gets past; a queue is said once, until the store is opened again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._said: set[ConsumeQueue] = set()

    def found(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Say of the record at an offset of a queue that it is damaged."""
        if queue in self._said:
            return
        self._said.add(queue)
        physical_offset, size, _ = queue.entry(queue_offset)
        base = self._segments.base(physical_offset)
        log.error(
            "%s, bytes %d to %d (physical offset %d): the record of offset %d of queue %d of %s is damaged, readers step over it,"
            " and over others like it in that queue; fsck lists them",
            self._segments.path(base), physical_offset - base, physical_offset - base + size, physical_offset, queue_offset,
            queue.queue_id, queue.topic,
        )  # fmt: skip
