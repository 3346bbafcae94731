"""The topic of the message at a place of the log: the object of requests that name a message by its place or by the broker's id.

A message that waits in a topic of the protocol (undecided, expired, delayed) is one of the topic where it belongs, which the broker
itself wrote into the record. Reads only.
"""

from __future__ import annotations

from halfmoon.broker.names import EXPIRED_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.errors import CorruptRecord, UsageError
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.ids import parse_offset_msg_id

WAITING = frozenset((HALF_TOPIC, EXPIRED_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))
OFFSET_LENGTH_MAX = 19
"""Digits of a physical offset. The broker's ids of messages are longer."""


def topic_at(store: Store, place: str) -> str | None:
    """Return the topic of the message at a physical offset, or with an id of this broker's; None: there is no whole one."""
    try:
        offset = int(place) if len(place) <= OFFSET_LENGTH_MAX else parse_offset_msg_id(place).physical_offset
        record = store.record(offset) if offset >= 0 else None
        parts = None if record is None else whole_record(record)
    except (ValueError, UsageError, CorruptRecord):
        return None
    if parts is None:
        return None
    real = wire_properties.value_of(parts.properties, b"REAL_TOPIC") if parts.topic in WAITING else None
    return parts.topic if real is None else real.decode("utf-8", "replace")
