"""Properties of a parked message: where it belongs, and which of them say how it is parked. Bytes in, bytes out."""

from __future__ import annotations

from halfmoon.errors import MessageRefused
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.wire.properties import without

ASKED = frozenset({b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"})
"""What asks for a point in time."""
PARKING = ASKED | {
    b"DELAY", b"REAL_TOPIC", b"REAL_QID", b"TIMER_OUT_MS", b"TIMER_LOOK_MS", b"TIMER_ROLL_TIMES", b"TIMER_CANCELS",
    b"TIMER_DEL_UNIQKEY",
}  # fmt: skip
"""Properties that say how a message is parked; a message that is parked again gets them anew."""


def with_place(properties: bytes, topic: str, queue_id: int, more: bytes, *, keep_asked: bool = False) -> bytes:
    """Return properties that say where a parked message belongs, and ``more`` pairs.

    What says how it was parked before is left out; ``keep_asked`` keeps what asks for a point in time, as 5.x does. Raises
    MessageRefused (13) without room.
    """
    stored = without(properties, PARKING - ASKED if keep_asked else PARKING)
    if stored and not stored.endswith(b"\x02"):
        stored += b"\x02"
    stored += b"REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02%s" % (topic.encode(), queue_id, more)
    if len(stored) > PROPERTIES_BYTES_MAX:
        raise MessageRefused(f"the message is illegal: its properties take {len(stored)} bytes, over {PROPERTIES_BYTES_MAX}")
    return stored
