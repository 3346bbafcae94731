"""Claims of a relay on rows of the outbox: how rows are claimed, removed, given back and marked as failed. Waits for nothing.

A row is free when no claim on it runs and its time has come. A claim is a name and a time at which it ends by itself, so
that the rows of a relay that was killed become free. Times are those of the database's own clock, which all relays share; one that
lies further ahead than any relay writes it is from a clock that was wrong, and does not count.

Rows of one order key are claimed so that the earlier ones always go first, whichever relay has them. PostgreSQL, MySQL (8.0.1) and
MariaDB (10.6) skip rows that another relay is claiming just now; others, and older ones, take turns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from halfmoon.events.databases.database import Rows, Values
from halfmoon.events.outbox import PARKED_MS
from halfmoon.events.tables import OUTBOX

T = TypeVar("T", bound=Sequence[Any])

ERROR_LENGTH_MAX = 500
CLOSED_MAX = 200
"""Topics that a claim leaves out."""

ROUNDS_MAX = 10
"""How often a claim looks past keys that are held back."""

CLAIM_MAX_MS = 3_600_000
WAIT_MAX_MS = 86_400_000
"""How long a claim lasts at most, and a row that failed waits."""
CLAIM_SEEN_MAX_MS, WAIT_SEEN_MAX_MS = 2 * CLAIM_MAX_MS, 2 * WAIT_MAX_MS
"""Times further ahead do not count. Twice as far, for a clock that is set back a little while a relay works."""

CLAIMED = f"(claimed_until_ms > :now_ms AND claimed_until_ms - {CLAIM_SEEN_MAX_MS} <= :now_ms)"
UNCLAIMED = f"(claimed_until_ms <= :now_ms OR claimed_until_ms - {CLAIM_SEEN_MAX_MS} > :now_ms)"
"""Conditions of SQL: whether a relay has a row in hand."""
_DUE = f"(next_ms <= :now_ms OR (next_ms < {PARKED_MS} AND next_ms - {WAIT_SEEN_MAX_MS} > :now_ms))"

_CLOCKS = {
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000",
}
"""Ask a server for its time. SQLite has none: its clock is that of the machine, which those who share a file share, too."""

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(-MariaDB)?")


class ClaimedRow(NamedTuple):
    """Claimed row, by the names of its columns.

    ``attempts`` counts its tries, this one included; ``error`` is that of the last one, empty for none.
    """

    seq: int
    event_id: str
    topic: str
    order_key: int
    message: bytes
    created_ms: int
    attempts: int
    error: str


class Failure(NamedTuple):
    """A row that could not be sent: why, and how long it waits (`PARKED_MS`: until somebody asks for it).

    ``counts`` is 1 for a try that counts as one of the row's, and 0 when the way was closed.
    """

    seq: int
    error: str
    wait_ms: int
    counts: int = 1


class Claim(NamedTuple):
    """Claim of rows: its owner, the time now and the time at which it ends, both by the clock of the database (`clock_ms`)."""

    owner: str
    now_ms: int
    until_ms: int


def clock_ms(rows: Rows) -> int:
    """Return the time of the database, in ms since the epoch."""
    question = _CLOCKS.get(rows.dialect)
    return int(rows.all(question)[0][0]) if question else time.time_ns() // 1_000_000


def claim(rows: Rows, mine: Claim, *, count_max: int, bytes_max: int, without: Collection[str] = ()) -> list[ClaimedRow]:
    """Claim up to so many free rows, the oldest first, and return them in that order.

    ``bytes_max`` bounds their messages together, but one row is always taken; ``without`` are topics to leave out. Costs a scan of
    the rows that are older than the claimed ones, and some index look-ups. Raises Busy, and what the driver raises.
    """
    write_lock(rows)
    taken = _in_turn(rows, mine, count_max, bytes_max, sorted(without)[:CLOSED_MAX])
    if not taken:
        return []
    rows.run(
        f"UPDATE {OUTBOX.name} SET claimed_by = :owner, claimed_until_ms = :until_ms, attempts = attempts + 1 "
        f"WHERE seq IN ({listed(taken)}) AND {UNCLAIMED}",
        mine._asdict(),
    )
    claimed = rows.all(
        f"SELECT {', '.join(ClaimedRow._fields)} FROM {OUTBOX.name} "
        f"WHERE seq IN ({listed(taken)}) AND claimed_by = :owner AND claimed_until_ms = :until_ms ORDER BY seq",
        {"owner": mine.owner, "until_ms": mine.until_ms},
    )
    return [ClaimedRow(*row) for row in claimed]


def write_lock(rows: Rows) -> None:
    """Take SQLite's one lock for writing, before anything is read: a lock to read cannot always become one."""
    if rows.dialect == "sqlite":
        rows.run(f"UPDATE {OUTBOX.name} SET attempts = attempts WHERE seq = -1")


def idle(rows: Rows) -> bool:
    """Return whether no row is free. Only reads: in SQLite a relay with nothing to do waits for nobody who writes."""
    free = f"SELECT 1 FROM {OUTBOX.name} WHERE {_DUE} AND {UNCLAIMED} LIMIT 1"
    return not rows.all(free, {"now_ms": clock_ms(rows)})


def _in_turn(rows: Rows, mine: Claim, count_max: int, bytes_max: int, without: Sequence[str]) -> list[int]:
    """Return free rows whose turn it is: those of a key that is held back are looked past, a few times."""
    held: set[int] = set()
    turn: list[int] = []
    for _ in range(ROUNDS_MAX):
        free = _free(rows, mine.now_ms, count_max, without, held)
        near = within(free, bytes_max)
        first = _held_back(rows, near)
        turn = [row.seq for row in near if row.order_key not in first or row.seq < first[row.order_key]]
        if len(turn) >= count_max // 2 + 1 or len(near) < count_max or not first:
            break
        held |= first.keys()
    return turn


def _lock(rows: Rows) -> str:
    """Return the clause that locks rows while a relay claims them: others skip them, or wait. SQLite has its one lock already."""
    if rows.dialect == "sqlite":
        return ""
    skips = rows.dialect == "postgresql" or (rows.dialect == "mysql" and skips_locked(rows.all("SELECT VERSION()")[0][0]))
    return " FOR UPDATE SKIP LOCKED" if skips else " FOR UPDATE"


def skips_locked(version: str) -> bool:
    """Return whether a MySQL (8.0.1 or newer) or MariaDB (10.6 or newer) of a version knows SKIP LOCKED."""
    versions = [*_VERSION.findall(version), ("0", "0", "0", "")]
    # MariaDB may answer "5.5.5-10.6.4-MariaDB": the first number is there for old replicas only
    *numbers, mariadb = next((candidate for candidate in versions if candidate[3]), versions[0])
    return tuple(map(int, numbers)) >= ((10, 6, 0) if mariadb else (8, 0, 1))


class _Free(NamedTuple):
    seq: int
    order_key: int
    size_bytes: int


def _free(rows: Rows, now_ms: int, count_max: int, without: Sequence[str], held: Collection[int]) -> list[_Free]:
    """Return free rows, the oldest first, and keep other relays from them until this transaction ends."""
    topics = {f"t{at}": topic for at, topic in enumerate(without)}
    which = f"{_DUE} AND {UNCLAIMED} "
    which += f"AND topic NOT IN ({', '.join(f':{place}' for place in topics)}) " if topics else ""
    which += f"AND order_key NOT IN ({listed(held)}) " if held else ""
    free_rows = rows.all(
        f"SELECT seq, order_key, LENGTH(message) FROM {OUTBOX.name} WHERE {which}ORDER BY seq LIMIT {int(count_max)}{_lock(rows)}",
        {"now_ms": now_ms, **topics},
    )
    return [_Free(*row) for row in free_rows]


def within(rows: Sequence[T], bytes_max: int) -> Sequence[T]:
    """Return the first rows that together have so many bytes, at least one. A row ends with the size of its message."""
    total = 0
    for at, row in enumerate(rows):
        total += row[-1]
        if at and total > bytes_max:
            return rows[:at]
    return rows


def _held_back(rows: Rows, near: Sequence[_Free]) -> dict[int, int]:
    """Return the oldest row of each key that is not among these: it waits, or another relay has it, and later ones wait for it."""
    if not (keyed := [row for row in near if row.order_key]):
        return {}
    oldest = rows.all(
        f"SELECT order_key, MIN(seq) FROM {OUTBOX.name} WHERE order_key IN ({listed({row.order_key for row in keyed})}) "
        f"AND seq < {keyed[-1].seq} AND seq NOT IN ({listed([row.seq for row in keyed])}) AND next_ms < {PARKED_MS} "
        "GROUP BY order_key"
    )
    return {int(key): int(seq) for key, seq in oldest}


def remove(rows: Rows, owner: str, sent: Collection[int]) -> int:
    """Remove rows that were sent; returns how many were still this owner's."""
    if not sent:
        return 0
    return rows.run(f"DELETE FROM {OUTBOX.name} WHERE seq IN ({listed(sent)}) AND claimed_by = :owner", {"owner": owner})


def release(rows: Rows, owner: str, unsent: Collection[int]) -> None:
    """Give back rows that were claimed and not tried: they are free as before."""
    if not unsent:
        return
    rows.run(
        f"UPDATE {OUTBOX.name} SET claimed_by = '', claimed_until_ms = 0, attempts = attempts - 1 "
        f"WHERE seq IN ({listed(unsent)}) AND claimed_by = :owner",
        {"owner": owner},
    )


def fail(rows: Rows, owner: str, failed: Collection[Failure], now_ms: int) -> None:
    """Note why rows could not be sent, and when they are free again."""
    for seq, error, wait_ms, counts in failed:
        next_ms = min(PARKED_MS, now_ms + wait_ms)
        rows.run(
            f"UPDATE {OUTBOX.name} SET claimed_by = '', claimed_until_ms = 0, error = :error, next_ms = :next_ms, "
            "attempts = attempts - 1 + :counts WHERE seq = :seq AND claimed_by = :owner",
            {"seq": seq, "error": error, "next_ms": next_ms, "counts": counts, "owner": owner},
        )


def chosen(event_ids: Collection[str] | None) -> list[tuple[str, Values]]:
    """Return the conditions that select each of these events, with their values; for None one that selects all."""
    return [("", {})] if event_ids is None else [("AND event_id = :id", {"id": event_id}) for event_id in dict.fromkeys(event_ids)]


def error_text(error: BaseException) -> str:
    """Return an error as a row keeps it: its kind and text, cut, without what a database refuses in a text."""
    text = f"{type(error).__name__}: {error}".replace("\0", "\ufffd").encode("utf-8", "backslashreplace").decode()
    return text[:ERROR_LENGTH_MAX]


def listed(numbers: Collection[int]) -> str:
    """Return numbers as a list of SQL. Drivers take hundreds of places for values one by one; numbers need none."""
    return ", ".join(str(int(number)) for number in sorted(numbers))
