"""Outbox: events as rows of a table, written in the transaction that they report. Here: the form of a row, and how it is written.

A relay (`halfmoon.events.outbox.relay`) takes the rows from there and sends them. Runs no statement by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from halfmoon.conversion import msgpack_decoder
from halfmoon.events.databases.database import Provider, Values
from halfmoon.events.errors import PayloadRefused
from halfmoon.events.event import Event
from halfmoon.events.tables import OUTBOX
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message

PACKED_BYTES_MAX = 4 * 1024 * 1024 + 64 * 1024
"""Size of a row's message: a body of 4 MiB and its properties."""

ID_LENGTH_MAX = 64
TOPIC_LENGTH_MAX = 127
PARKED_MS = 2**62
"""The ``next_ms`` of a row that is not sent any more until somebody asks for it."""

INSERT = (
    f"INSERT INTO {OUTBOX.name} (event_id, topic, order_key, message, created_ms, attempts, next_ms, error, claimed_by, "
    "claimed_until_ms) VALUES (:event_id, :topic, :order_key, :message, :created_ms, 0, 0, '', '', 0)"
)
"""Writes one row. ``next_ms`` 0 is at once, whatever the clocks of other machines say."""

CHANNEL = "halfmoon_relay"
"""The channel of PostgreSQL on which relays listen: one for a database, since a relay may serve several schemas."""

INSERT_AND_NOTIFY = f"{INSERT} RETURNING pg_notify('{CHANNEL}', '')"
"""As `INSERT`, and notifies relays when the transaction commits, once for all its rows. PostgreSQL only; costs no round trip."""


class Unreadable(Exception):
    """Row whose message is not one that `pack` made. The text says why, and holds nothing of the message."""


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    """A message in a row, as a msgpack array: ``[1, tag, keys, properties, body, flag, wait_store, deliver_at_ms]``.

    The last is 0 for at once. One that is delivered later has form 2: a relay that knows form 1 alone parks it, and would else
    deliver it too early. Rows of older releases have form 1 without the last field.
    """

    form: Literal[1, 2]
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    body: bytes
    flag: int
    wait_store: bool
    deliver_at_ms: int = 0


_decoder = msgpack_decoder(_Packed)


def write(
    provider: Provider, transaction: LocalTransaction, message: Message, event: Event, now_ms: int, *, notify: bool = False
) -> tuple[str, Mapping[str, Any]]:
    """Return the statement, and its values, that puts an event into the outbox as part of a transaction.

    ``message`` is the event as it will travel; the event's id becomes the message's. One insert, on every dialect. ``notify``:
    notify relays of other processes, where the database can.

    Raises PayloadRefused for a message that a row cannot hold.
    """
    if not event.id or len(event.id) > ID_LENGTH_MAX:
        raise PayloadRefused(f"event id {event.id!r:.80}: an event in the outbox has an id of 1 to {ID_LENGTH_MAX} characters")
    if len(message.topic) > TOPIC_LENGTH_MAX:
        raise PayloadRefused(
            f"topic {message.topic!r:.140}: an event in the outbox has a topic of at most {TOPIC_LENGTH_MAX} characters"
        )
    values: Values = {
        "event_id": event.id,
        "topic": message.topic,
        "order_key": order_key(message.topic, event.key),
        "message": pack(message),
        "created_ms": now_ms,
    }
    tells = notify and provider.dialect == "postgresql" and not transaction.two_phase
    return INSERT_AND_NOTIFY if tells else INSERT, values


def order_key(topic: str, key: str) -> int:
    """Return the number by which rows of one topic and key find each other, 63 bits; 0 for no key.

    Two keys that share a number, which is next to never, are sent in one order; nothing else happens.
    """
    if not key:
        return 0
    digest = blake2b(f"{topic}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) >> 1 or 1


def pack(message: Message) -> bytes:
    """Return a message as a row holds it, all but its topic and id. Raises PayloadRefused."""
    due_ms = message.deliver_at or 0
    if message.delay is not None or message.delay_level or not isinstance(due_ms, int):
        raise PayloadRefused(f"a delayed message of topic {message.topic}: the outbox takes deliver_at, in ms since the epoch")
    keys = tuple(message.keys.split()) if isinstance(message.keys, str) else tuple(message.keys)
    packed = msgspec.msgpack.encode(
        _Packed(2 if due_ms else 1, message.tag, keys, message.properties, message.body, message.flag, message.wait_store, due_ms)
    )
    if len(packed) > PACKED_BYTES_MAX:
        raise PayloadRefused(
            f"a message of topic {message.topic} with {len(packed):,} bytes: the outbox holds {PACKED_BYTES_MAX:,} at most; "
            "publish a reference to it instead"
        )
    return packed


def unpack(topic: str, event_id: str, packed: bytes, attempt: int = 1) -> Message:
    """Return the message of a row, for its ``attempt``-th sending. Raises Unreadable."""
    try:
        fields = _decoder.decode(packed)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise Unreadable(f"the row of event {event_id} holds no message of a form known here: {exc}") from None
    return Message(
        topic,
        fields.body,
        tag=fields.tag,
        keys=fields.keys,
        properties=fields.properties,
        flag=fields.flag,
        wait_store=fields.wait_store,
        deliver_at=fields.deliver_at_ms or None,
        msg_id=event_id,
        attempt=attempt,
    )
