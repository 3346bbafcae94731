"""`DamagedRecords`: says which records readers step over, once for each queue, and once for the key index. Decides nothing."""

from __future__ import annotations

import logging

from halfmoon.store.log.segments import Segments
from halfmoon.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger("halfmoon.store.damaged")


class DamagedRecords:
    """Where readers say what they found in the log that no decoder gets past; of a queue the first, until it is opened again."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._passed = False

    def found(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Say that the record at an offset of a queue is damaged."""
        if queue.damage_said:
            return
        queue.damage_said = True
        physical_offset, size, _ = queue.entry(queue_offset)
        log.error(
            "%s: the record of offset %d of queue %d of %s is damaged; readers step over it and over others like it in that queue,"
            " and fsck lists them all",
            self._where(physical_offset, size), queue_offset, queue.queue_id, queue.topic,
        )  # fmt: skip

    def passed(self, physical_offset: int, size: int) -> None:
        """Say that the key index, which knows no queue, steps over bytes of the log; once."""
        if self._passed:
            return
        self._passed = True
        log.error(
            "%s: no record is there; the key index steps over it and over others like it, and fsck lists them all",
            self._where(physical_offset, size),
        )

    def _where(self, physical_offset: int, size: int) -> str:
        base = self._segments.base(physical_offset)
        begin = physical_offset - base
        return f"{self._segments.path(base)}, bytes {begin} to {begin + size} (physical offset {physical_offset})"
