"""Sent events that are kept for a while: how they are kept, a list, and how they return to the outbox. Sends nothing.

They lie in a table of their own, so that claims and figures of the outbox neither see nor pass them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from halfmoon.events.databases.database import Database, Rows, Values
from halfmoon.events.outbox import CHANNEL, Unreadable, unpack
from halfmoon.events.outbox.claims import chosen, clock_ms, listed, within, write_lock
from halfmoon.events.tables import OUTBOX, SENT

LIST_MAX = 10_000
STEP_ROWS = 1_000
"""Put into the outbox again by one transaction."""
KEPT_BY_ONE_STATEMENT = 100
"""Each has a value of its own there, and databases take hundreds."""
READ_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of messages that are held in memory to read the keys from."""
MESSAGE_ID_LENGTH_MAX = 64

log = logging.getLogger("halfmoon.events")


class SentEntry(msgspec.Struct, frozen=True):
    """An event that was sent. ``message_id`` is the broker's id of the message, with which it is found there."""

    event_id: str
    topic: str
    key: str
    created_ms: int
    sent_ms: int
    message_id: str
    size_bytes: int


def keep(rows: Rows, owner: str, sent: Mapping[int, str], now_ms: int) -> None:
    """Keep rows of the outbox that were sent, as far as they are still this owner's, before they are removed there.

    ``sent``: the broker's id of each row's message.
    """
    numbers = sorted(sent)
    for begin in range(0, len(numbers), KEPT_BY_ONE_STATEMENT):
        chunk = numbers[begin : begin + KEPT_BY_ONE_STATEMENT]
        ids: Values = {f"m{at}": sent[seq][:MESSAGE_ID_LENGTH_MAX] for at, seq in enumerate(chunk)}
        id_of_row = " ".join(f"WHEN {seq} THEN :m{at}" for at, seq in enumerate(chunk))
        rows.run(
            f"INSERT INTO {SENT.name} (event_id, topic, order_key, message, created_ms, sent_ms, message_id) "
            f"SELECT event_id, topic, order_key, message, created_ms, {int(now_ms)}, CASE seq {id_of_row} ELSE '' END "
            f"FROM {OUTBOX.name} WHERE seq IN ({listed(chunk)}) AND claimed_by = :owner ORDER BY seq",
            {**ids, "owner": owner},
        )


def entries(
    provider: Database, *, topic: str | None = None, since_ms: int = 0, until_ms: int | None = None, count_max: int = 100
) -> list[SentEntry]:
    """Return kept events, those sent last first: of one topic, sent from ``since_ms`` on and before ``until_ms``, if given."""
    which, values = _condition("", topic, since_ms, until_ms)
    with provider.fresh() as rows:
        heads = rows.all(
            f"SELECT seq, event_id, topic, created_ms, sent_ms, message_id, LENGTH(message) FROM {SENT.name} WHERE {which} "
            f"ORDER BY sent_ms DESC, seq DESC LIMIT {min(LIST_MAX + 1, int(count_max))}",
            values,
        )
        keys = dict(_keys(rows, heads))
    return [SentEntry(event_id, named, keys.get(seq, ""), *facts) for seq, event_id, named, *facts in heads]


def resend(
    provider: Database,
    *,
    event_ids: Collection[str] | None = None,
    topic: str | None = None,
    since_ms: int = 0,
    until_ms: int | None = None,
) -> int:
    """Have kept events sent again, each once and under its own id, in the order in which they were sent; returns how many.

    ``event_ids``: only these; None: all of the topic and time, as for `entries`. Consumers with ``dedup`` ignore what they have
    processed. One that waits in the outbox is left alone.
    """
    which, values = _condition("kept.", topic, since_ms, until_ms)
    later, _ = _condition("later.", topic, since_ms, until_ms)
    with provider.fresh() as rows:
        last = int(rows.all(f"SELECT COALESCE(MAX(seq), 0) FROM {SENT.name}")[0][0])
    count = sum(
        _resend(provider, f"{which} AND kept.seq <= {last} {only}", f"{later} AND later.seq <= {last}", {**values, **more})
        for only, more in chosen(event_ids)
    )
    if count:
        log.info("events of the outbox are sent again by hand: count=%d", count)
    return count


def _resend(provider: Database, which: str, later: str, values: Values) -> int:
    """Copy step by step; the relay may send, and keep again, while it goes on. ``later``: which copies of an event go before."""
    count = after = 0
    columns = "event_id, topic, order_key, message"
    same = "event_id = kept.event_id AND {0}.topic = kept.topic"
    while True:
        with provider.fresh() as rows:
            write_lock(rows)
            found = rows.all(
                f"SELECT seq FROM {SENT.name} kept WHERE {which} AND kept.seq > {after} AND NOT EXISTS (SELECT 1 FROM {SENT.name} "
                f"later WHERE later.{same.format('later')} AND later.seq > kept.seq AND {later}) ORDER BY seq LIMIT {STEP_ROWS}",
                values,
            )
            if not found:
                return count
            waiting = f"SELECT 1 FROM {OUTBOX.name} waiting WHERE waiting.{same.format('waiting')}"
            numbers = [int(seq) for (seq,) in found]
            count += rows.run(
                f"INSERT INTO {OUTBOX.name} ({columns}, created_ms, attempts, next_ms, error, claimed_by, claimed_until_ms) "
                f"SELECT {columns}, {clock_ms(rows)}, 0, 0, '', '', 0 FROM {SENT.name} kept WHERE seq IN ({listed(numbers)}) "
                f"AND NOT EXISTS ({waiting}) ORDER BY seq"
            )
            if rows.dialect == "postgresql":
                rows.all(f"SELECT pg_notify('{CHANNEL}', '')")
            after = numbers[-1]


def _condition(of: str, topic: str | None, since_ms: int, until_ms: int | None) -> tuple[str, Values]:
    """Return the condition on rows of one topic and time, and its values. ``of``: the table's name before its columns."""
    which = [f"{of}sent_ms >= :since_ms"]
    which += [f"{of}sent_ms < :until_ms"] if until_ms is not None else []
    which += [f"{of}topic = :topic"] if topic is not None else []
    values: dict[str, Any] = {"since_ms": since_ms, "until_ms": until_ms, "topic": topic}
    return " AND ".join(which), {name: value for name, value in values.items() if value is not None}


def _keys(rows: Rows, heads: Sequence[Sequence[Any]]) -> Iterator[tuple[int, str]]:
    """Yield the number and the event's key of each row. Reads messages, a few at a time."""
    while heads:
        near = within(heads, READ_BYTES_MAX)
        heads = heads[len(near) :]
        chunk = listed([head[0] for head in near])
        for seq, event_id, packed in rows.all(f"SELECT seq, event_id, message FROM {SENT.name} WHERE seq IN ({chunk})"):
            yield seq, key_of(event_id, packed)


def key_of(event_id: str, packed: bytes) -> str:
    """Return the key of the event in a row's message; empty for none, or a message that cannot be read."""
    try:
        keys = unpack("", event_id, packed).keys
    except Unreadable:
        return ""
    return next((key for key in keys if key != event_id), "")
