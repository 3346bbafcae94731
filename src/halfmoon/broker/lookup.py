"""Lookup of messages by topic and id (UNIQ_KEY), with the key index and the part of the log that it has not reached."""

from __future__ import annotations

from halfmoon.errors import BadMessage
from halfmoon.hot import parts_at
from halfmoon.model import UNIQ_KEY, StoredMessage
from halfmoon.store.store import Store
from halfmoon.wire.record import decode_record

COPIES_MAX = 16
"""The newest records of one id that are looked at: checks, resumes and replays store several."""
FOR_EVER_MS = 2**62


def messages_with(store: Store, topic: str, key: str, *, deleted: bool = False) -> list[StoredMessage]:
    """Return the messages of a topic with an id, the newest first; with sync flush only durable ones. See `Store.query`."""
    messages: list[StoredMessage] = []
    for record in reversed(store.query(topic, key, COPIES_MAX, 0, FOR_EVER_MS, deleted=deleted).records) if key else ():
        message = message_of(record)
        if message is not None and message.properties.get(UNIQ_KEY) == key:
            messages.append(message)
    return messages


def message_of(record: memoryview | None) -> StoredMessage | None:
    """Return the message of a record; None if there is none or it is damaged."""
    try:
        return None if record is None else decode_record(bytes(record))
    except BadMessage:
        return None


def places_of(record: memoryview | None) -> tuple[int, int, int] | None:
    """Return a record's queue offset, its place in the log, and the place of the half message that it names; its body is not read.

    None: there is no record, or it is damaged.
    """
    try:
        head = None if record is None else parts_at(record, 0)[0]
    except BadMessage:
        return None
    return None if head is None else (head[5], head[6], head[13])
