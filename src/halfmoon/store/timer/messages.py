"""Delayed messages as they lie in the store: their topics, properties and tag codes. Moves nothing, decides nothing.

A delayed message lies in queue ``level - 1`` of ``SCHEDULE_TOPIC_XXXX``, or, if it asks for a point in time, in queue 0 of
``rmq_sys_wheel_timer``. The tag code of its queue entry says when it is due, so that the log is read only for what is due.
Follows ScheduleMessageService (RocketMQ 4.9.8).
"""

from __future__ import annotations

from halfmoon.hot import property_of

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC = "rmq_sys_wheel_timer"

OUT_MS, LOOK_MS, CANCELS = "TIMER_OUT_MS", "TIMER_LOOK_MS", "TIMER_CANCELS"
"""Properties of a record of the timer topic: when to deliver it (5.x has it too), when to look at it if that is earlier, and, of a
cancel, the queue offset of the record that it cancels."""
_DIGITS_MAX = 18


def timer_code(properties: bytes, store_ms: int) -> int:
    """Return the tag code of a record of the timer topic: when to look at it; for a cancel -1 - the queue offset it cancels."""
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
