"""Finds messages of a topic by their id (UNIQ_KEY), by the key index and what of the log it has not reached. Keeps nothing."""

from __future__ import annotations

from halfmoon.errors import BadMessage
from halfmoon.model import UNIQ_KEY, StoredMessage
from halfmoon.store.store import Store
from halfmoon.wire.record import decode_record

COPIES_MAX = 16
"""Records of one id that are looked at, the newest: what checks, resumes and replays left."""
FOR_EVER_MS = 2**62


def messages_with(store: Store, topic: str, key: str) -> list[StoredMessage]:
    """Return the messages of a topic with an id, the newest first; with sync flush those that are durable."""
    found: list[StoredMessage] = []
    for record in reversed(store.query(topic, key, COPIES_MAX, 0, FOR_EVER_MS).records) if key else ():
        message = message_of(record)
        if message is not None and message.properties.get(UNIQ_KEY) == key:
            found.append(message)
    return found


def message_of(record: memoryview | None) -> StoredMessage | None:
    """Return the message of a record; None where there is none, or it is damaged."""
    try:
        return None if record is None else decode_record(bytes(record))
    except BadMessage:
        return None
