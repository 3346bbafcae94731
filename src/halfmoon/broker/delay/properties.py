"""Properties of a parked message: its real topic and queue, and how it is parked. Bytes in, bytes out."""

from __future__ import annotations

from halfmoon.errors import MessageRefused
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.wire.properties import without

ASKED = frozenset({b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS", b"__STARTDELIVERTIME"})
"""Properties that ask for a point in time, the last one of Aliyun's clients."""
PARKING = ASKED | {
    b"DELAY", b"REAL_TOPIC", b"REAL_QID", b"TIMER_OUT_MS", b"TIMER_LOOK_MS", b"TIMER_ROLL_TIMES", b"TIMER_CANCELS",
    b"TIMER_DEL_UNIQKEY",
}  # fmt: skip
"""Properties that say how a message is parked; they are replaced when it is parked again."""


def with_place(properties: bytes, topic: str, queue_id: int, more: bytes, *, keep_asked: bool = False) -> bytes:
    """Return properties with the real topic and queue of a parked message, and ``more`` pairs.

    Properties of earlier parking are left out; ``keep_asked`` keeps those that ask for a point in time, as 5.x does. Raises
    MessageRefused (13) without room.
    """
    stored = without(properties, PARKING - ASKED if keep_asked else PARKING)
    if stored and not stored.endswith(b"\x02"):
        stored += b"\x02"
    stored += b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02%s" % (topic.encode(), queue_id, more)
    if len(stored) > PROPERTIES_BYTES_MAX:
        raise MessageRefused(f"the message is illegal: its properties take {len(stored)} bytes, over {PROPERTIES_BYTES_MAX}")
    return stored
