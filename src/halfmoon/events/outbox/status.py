"""What operators see of an outbox and do to it: figures, a list, another try, an end. Sends nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from halfmoon.events.databases.database import Database, Values
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.outbox.claims import CLAIMED, UNCLAIMED, clock_ms
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
"""Of a row: parked, refused for good or after ``attempts_max`` tries; a relay has it in hand; failed and tried again later; not
tried yet."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What an outbox holds: rows by state, all but the failed ones together, and the age of the oldest of these in ms."""

    backlog: int
    oldest_age_ms: int
    waiting: int
    sending: int
    retrying: int
    failed: int


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One row. ``next_ms``: when it is tried again, 0 for at once or never; ``error``: of the last try, empty for none."""

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


def backlog(provider: Database, now_ms: int | None = None) -> Backlog:
    """Count an outbox. Reads every row's head. ``now_ms``: by the clock of the database, which is asked for None."""
    sums = ", ".join(f"COALESCE(SUM(CASE WHEN {condition} THEN 1 ELSE 0 END), 0)" for condition in _STATES.values())
    oldest = f"COALESCE(MIN(CASE WHEN next_ms < {PARKED_MS} THEN created_ms END), :now_ms)"
    with provider.fresh() as rows:
        now_ms = clock_ms(rows) if now_ms is None else now_ms
        row = rows.all(f"SELECT {oldest}, {sums} FROM {OUTBOX.name}", {"now_ms": now_ms})[0]
    by_state = dict(zip(STATES, (int(count) for count in row[1:]), strict=True))
    behind = sum(by_state.values()) - by_state["failed"]
    return Backlog(backlog=behind, oldest_age_ms=max(0, now_ms - int(row[0])), **by_state)


def total(found: Collection[Backlog]) -> Backlog:
    """Return what several outboxes hold together."""
    sums = {name: sum(getattr(one, name) for one in found) for name in Backlog.__struct_fields__}
    return Backlog(**{**sums, "oldest_age_ms": max((one.oldest_age_ms for one in found), default=0)})


def entries(
    provider: Database,
    now_ms: int | None = None,
    *,
    state: str | None = None,
    topic: str | None = None,
    count_max: int = 100,
) -> list[Entry]:
    """Return rows, the oldest first: of one state of `STATES` and of one topic, where given. Raises KeyError for another state.

    ``now_ms`` as for `backlog`.
    """
    values: Values = {"failed_ms": PARKED_MS, **({"topic": topic} if topic is not None else {})}
    word = f"CASE WHEN next_ms >= :failed_ms THEN 0 WHEN {CLAIMED} THEN 1 WHEN error <> '' THEN 2 ELSE 3 END"
    which = [f"({_STATES[state]})"] if state is not None else ["1 = 1"]
    which += ["topic = :topic"] if topic is not None else []
    with provider.fresh() as rows:
        selected = rows.all(
            f"SELECT seq, event_id, topic, {word}, created_ms, attempts, next_ms, error, claimed_by, LENGTH(message) "
            f"FROM {OUTBOX.name} WHERE {' AND '.join(which)} ORDER BY seq LIMIT {min(LIST_MAX + 1, int(count_max))}",
            {**values, "now_ms": clock_ms(rows) if now_ms is None else now_ms},
        )
    return [
        Entry(
            seq=int(seq),
            event_id=event_id,
            topic=named,
            state=STATES[int(at)],
            created_ms=int(created_ms),
            attempts=int(attempts),
            next_ms=0 if int(next_ms) >= PARKED_MS else int(next_ms),
            error=error,
            claimed_by=claimed_by if STATES[int(at)] == "sending" else "",
            size_bytes=int(size or 0),
        )
        for seq, event_id, named, at, created_ms, attempts, next_ms, error, claimed_by, size in selected
    ]


def retry(provider: Database, now_ms: int | None = None, *, event_ids: Collection[str] | None = None) -> int:
    """Have failed rows, and those that wait for another try, tried at once, from the first try on; returns how many.

    ``event_ids``: only these events; None: all failed rows. Rows that a relay has in hand are left alone. ``now_ms`` as for
    `backlog`.
    """
    change = f"UPDATE {OUTBOX.name} SET next_ms = 0, attempts = 0 WHERE {UNCLAIMED} AND "
    with provider.fresh() as rows:
        now_ms = clock_ms(rows) if now_ms is None else now_ms
        if event_ids is None:
            return rows.run(f"{change} next_ms >= {PARKED_MS}", {"now_ms": now_ms})
        return sum(
            rows.run(f"{change} event_id = :id AND next_ms > 0", {"now_ms": now_ms, "id": event_id}) for event_id in event_ids
        )


def drop(provider: Database, *, event_ids: Collection[str] | None = None) -> int:
    """Remove failed rows, whose events are never sent then; returns how many. None: all failed ones. Others are left alone.

    Each is named in the log.
    """
    wanted: list[tuple[str, Values]] = (
        [("", {})] if event_ids is None else [("AND event_id = :id", {"id": event_id}) for event_id in event_ids]
    )
    return sum(_drop(provider, condition, values) for condition, values in wanted)


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
