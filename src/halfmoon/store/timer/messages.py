"""Parked messages as they lie in the store: the topics, their queue entries and records. Moves nothing, decides nothing.

A message that is to be delivered later lies in queue ``level - 1`` of ``SCHEDULE_TOPIC_XXXX``, or, when it asks for a point in
time, in queue 0 of ``rmq_sys_wheel_timer``. The tag field of its queue entry says when it is due, so that nobody reads the log
for what is not. Follows ScheduleMessageService (RocketMQ 4.9.8).
"""

from __future__ import annotations

from typing import NamedTuple

from halfmoon.hot import ENTRY, ENTRY_BYTES, property_of
from halfmoon.store.layout import FILLER_SIZE
from halfmoon.store.store import Store

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"

OUT_MS, LOOK_MS, CANCELS = "TIMER_OUT_MS", "TIMER_LOOK_MS", "TIMER_CANCELS"
"""Properties of a record of the timer topic: when it is to be delivered (5.x has it too), when it is to be looked at where that is
earlier, and, of a cancel, the queue offset of the record that it cancels."""
_DIGITS_MAX = 18


class Parked(NamedTuple):
    """One queue entry of a parking queue. ``code`` is when the message is due, ms since the epoch; see `timer_code`."""

    queue_offset: int
    physical_offset: int
    size: int
    code: int


def parked(store: Store, topic: str, queue_id: int, queue_offset: int, count: int) -> list[Parked]:
    """Return up to ``count`` entries from an offset on, fewer at the end of a file; fillers are among them, of size 0."""
    queue = store._queues.get((topic, queue_id))
    if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
        return []
    count = min(count, queue.per_file - queue_offset % queue.per_file)
    view = queue.entries(queue_offset, count)
    return [
        Parked(queue_offset + place, offset, 0 if size == FILLER_SIZE else size, code)
        for place, (offset, size, code) in enumerate(ENTRY.iter_unpack(view[: len(view) // ENTRY_BYTES * ENTRY_BYTES]))
    ]


def timer_code(properties: bytes, store_ms: int) -> int:
    """Return the tag code of a record of the timer topic: when it is looked at, or, of a cancel, -1 - the offset it cancels."""
    cancels = _number(properties, CANCELS)
    if cancels is not None:
        return -1 - cancels
    wanted = _number(properties, LOOK_MS)
    if wanted is None:
        wanted = _number(properties, OUT_MS)
    return store_ms if wanted is None else wanted


def _number(properties: bytes, name: str) -> int | None:
    text = property_of(properties, name.encode())
    return int(text) if text is not None and text.isdigit() and len(text) <= _DIGITS_MAX else None
