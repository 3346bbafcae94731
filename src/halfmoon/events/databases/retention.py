"""Removes rows of events that are older than what is kept, in short transactions. Knows no driver, and no clock but the one given.

A clock that is wrong must not remove rows that are needed: time is taken to be no later than the newest row. So the last rows of a
table into which nothing is written any more stay.
"""

from __future__ import annotations

from halfmoon.events.databases.database import Database
from halfmoon.events.tables import NEVER_MS, Table

STEP_ROWS = 1_000
"""Removed by one transaction, about: rows of one millisecond go together."""

STEPS_MAX = 1_000
"""Steps of one round; the rest waits for the next."""


def remove_old(provider: Database, table: Table, column: str, now_ms: int, keep_ms: int, *, steps_max: int = STEPS_MAX) -> int:
    """Remove the rows whose ``column`` (ms since the epoch, indexed) is more than ``keep_ms`` ago; return how many. Raises Busy."""
    removed, before = 0, 0
    for step in range(steps_max):
        with provider.fresh() as rows:
            if not step:
                newest = rows.all(f"SELECT MAX({column}) FROM {table.name} WHERE {column} < {NEVER_MS}")[0][0]
                before = min(now_ms, now_ms if newest is None else int(newest)) - keep_ms
            end = rows.all(
                f"SELECT {column} FROM {table.name} WHERE {column} < :before ORDER BY {column} LIMIT 1 OFFSET {STEP_ROWS - 1}",
                {"before": before},
            )
            last = int(end[0][0]) if end else before
            removed += rows.run(
                f"DELETE FROM {table.name} WHERE {column} < :before AND {column} <= :last", {"before": before, "last": last}
            )
        if not end:
            break
    return removed
