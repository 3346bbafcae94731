"""Outbox as operators see and change it: figures, a list, another try, an end. Sends nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from halfmoon.events.databases.database import Database, Values
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox.claims import CLAIMED, UNCLAIMED, chosen, clock_ms
from halfmoon.events.tables import OUTBOX

LIST_MAX = 10_000

STEP_ROWS = 1_000
"""Dropped by one transaction."""

log = logging.getLogger("halfmoon.events")

_STATES = {
    "failed": f"next_ms >= {PARKED_MS}",
    "sending": f"next_ms < {PARKED_MS} AND {CLAIMED}",
    "retrying": f"next_ms < {PARKED_MS} AND {UNCLAIMED} AND error <> ''",
    "waiting": f"next_ms < {PARKED_MS} AND {UNCLAIMED} AND error = ''",
}
STATES = tuple(_STATES)
"""States of a row: parked, refused for good or after ``attempts_max`` tries; a relay has it in hand; failed and tried again later;
not tried yet."""


class OutboxFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of an outbox: rows by state, all but the failed ones together, and the age of the oldest of these in ms."""

    backlog: int
    oldest_age_ms: int
    waiting: int
    sending: int
    retrying: int
    failed: int


class OutboxEntry(msgspec.Struct, frozen=True):
    """Row of an outbox. ``next_ms``: when it is tried again, 0 for at once or never; ``error``: of the last try, empty for none."""

    seq: int
    event_id: str
    topic: str
    state: str
    created_ms: int
    attempts: int
    next_ms: int
    error: str
    claimed_by: str
    size_bytes: int


_STATE = " ".join(f"WHEN {condition} THEN '{state}'" for state, condition in _STATES.items())
_ENTRY = (
    f"SELECT seq, event_id, topic, CASE {_STATE} END, "
    f"created_ms, attempts, CASE WHEN next_ms < {PARKED_MS} THEN next_ms ELSE 0 END, error, "
    f"CASE WHEN {_STATES['sending']} THEN claimed_by ELSE '' END, LENGTH(message) FROM {OUTBOX.name}"
)


def backlog(provider: Database) -> OutboxFigures:
    """Count an outbox. Reads every row's head."""
    sums = ", ".join(f"COALESCE(SUM(CASE WHEN {condition} THEN 1 ELSE 0 END), 0)" for condition in _STATES.values())
    oldest = f"COALESCE(MIN(CASE WHEN next_ms < {PARKED_MS} THEN created_ms END), :now_ms)"
    with provider.fresh() as rows:
        now_ms = clock_ms(rows)
        row = rows.all(f"SELECT {oldest}, {sums} FROM {OUTBOX.name}", {"now_ms": now_ms})[0]
    by_state = dict(zip(STATES, (int(count) for count in row[1:]), strict=True))
    behind = sum(by_state.values()) - by_state["failed"]
    return OutboxFigures(backlog=behind, oldest_age_ms=max(0, now_ms - int(row[0])), **by_state)


def total(found: Collection[OutboxFigures]) -> OutboxFigures:
    """Return the figures of several outboxes together."""
    sums = {name: sum(getattr(one, name) for one in found) for name in OutboxFigures.__struct_fields__}
    return OutboxFigures(**{**sums, "oldest_age_ms": max((one.oldest_age_ms for one in found), default=0)})


def entries(provider: Database, *, state: str | None = None, topic: str | None = None, count_max: int = 100) -> list[OutboxEntry]:
    """Return rows, the oldest first: of one state of `STATES` and of one topic, where given. Raises KeyError for another state."""
    which = _STATES[state] if state is not None else "1 = 1"
    which += " AND topic = :topic" if topic is not None else ""
    with provider.fresh() as rows:
        values: Values = {"now_ms": clock_ms(rows), **({"topic": topic} if topic is not None else {})}
        found = rows.all(f"{_ENTRY} WHERE {which} ORDER BY seq LIMIT {min(LIST_MAX + 1, int(count_max))}", values)
    return [OutboxEntry(*row) for row in found]


def retry(provider: Database, *, event_ids: Collection[str] | None = None) -> int:
    """Have failed rows, and those that wait for another try, tried at once, from the first try on; returns how many.

    ``event_ids``: only these events; None: all failed rows. Rows that a relay has in hand are left alone.
    """
    which = f"next_ms >= {PARKED_MS}" if event_ids is None else "next_ms > 0"
    change = f"UPDATE {OUTBOX.name} SET next_ms = 0, attempts = 0 WHERE {UNCLAIMED} AND {which}"
    with provider.fresh() as rows:
        now_ms = clock_ms(rows)
        return sum(rows.run(f"{change} {only}", {"now_ms": now_ms, **values}) for only, values in chosen(event_ids))


def drop(provider: Database, *, event_ids: Collection[str] | None = None) -> int:
    """Remove failed rows, whose events are never sent then; returns how many. None: all failed ones. Others are left alone.

    Each is named in the log.
    """
    return sum(_drop(provider, only, values) for only, values in chosen(event_ids))


def _drop(provider: Database, condition: str, values: Values) -> int:
    dropped = 0
    failed = f"FROM {OUTBOX.name} WHERE next_ms >= {PARKED_MS}"
    while True:
        with provider.fresh() as rows:
            candidates = rows.all(f"SELECT seq, event_id, topic, error {failed} {condition} ORDER BY seq LIMIT {STEP_ROWS}", values)
            deleted = [row for row in candidates if rows.run(f"DELETE {failed} AND seq = {int(row[0])}")]
        for _, event_id, topic, error in deleted:
            log.warning("an event of the outbox was dropped by hand: event=%s topic=%s error=%s", event_id, topic, error)
        dropped += len(deleted)
        if len(candidates) < STEP_ROWS or not deleted:
            return dropped
