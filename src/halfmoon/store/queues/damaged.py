"""`DamagedRecords`: logs which records readers step over, once for each queue, and once for the key index. Decides nothing."""

from __future__ import annotations

import logging

from halfmoon.store.log.segments import Segments
from halfmoon.store.queues.consume_queue import ConsumeQueue

log = logging.getLogger("halfmoon.store.damaged")


class DamagedRecords:
    """Where readers report records that no decoder gets past. Of each queue only the first is logged, until the next start."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._index_reported = False

    def report(self, queue: ConsumeQueue, queue_offset: int) -> None:
        """Log that the record at an offset of a queue is damaged."""
        if queue.damage_logged:
            return
        queue.damage_logged = True
        physical_offset, size, _ = queue.entry(queue_offset)
        log.error(
            "%s: the record at offset %d of queue %d of %s is damaged; readers skip it and others like it in that queue;"
            " fsck lists them all",
            self._where(physical_offset, size), queue_offset, queue.queue_id, queue.topic,
        )  # fmt: skip

    def report_to_index(self, physical_offset: int, size: int) -> None:
        """Log once that the key index, which knows no queue, skips bytes of the log."""
        if self._index_reported:
            return
        self._index_reported = True
        log.error(
            "%s: no record is there; the key index skips it and others like it; fsck lists them all",
            self._where(physical_offset, size),
        )

    def _where(self, physical_offset: int, size: int) -> str:
        base = self._segments.base(physical_offset)
        begin = physical_offset - base
        return f"{self._segments.path(base)}, bytes {begin} to {begin + size} (physical offset {physical_offset})"
