"""Audit log: user, address, action and outcome. A change is written before it is made, and its outcome after it."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from halfmoon.console.access.database import opened
from halfmoon.conversion import convert
from halfmoon.errors import HalfmoonError
from halfmoon.logs import escaped

log = logging.getLogger("halfmoon.console")

KEPT_MS = 400 * 24 * 3_600_000
"""How long an entry is kept: a year, and some weeks in which last year's entries can still be read."""
ENTRIES_MAX, LOOK_EVERY, MAKE_ROOM = 500_000, 1000, 5000
"""Entries in all, some 150 MB. Each thousandth entry they are counted; beyond, the user who has most loses the oldest 5,000: a
flood takes away nothing that others did."""
TEXT_MAX = 200
"""Longest value, in characters."""
FAILURES_MAX, OTHERS = 10, "several addresses"
"""Failed logins, and failed changes of one user, that get entries of their own in a minute. Without a bound they would fill the
log and push out older entries."""
BEGUN, UNKNOWN = "begun", "not known: the console ended meanwhile"
RUNNING_MS = 10 * 60_000
"""Age from which on an entry without an outcome counts as unknown: a request has 5 minutes."""
SECRET = re.compile("passw|secret|token|csrf|credential|cookie|authenticationuser", re.IGNORECASE)
"""Names of fields and settings whose values are left out."""


class NotAudited(HalfmoonError):
    """The audit log cannot be written or read. A change without an entry is not made."""


class AuditEntry(msgspec.Struct, frozen=True):
    """Entry of one change, login or refusal.

    ``outcome`` is "begun", "done: ...", "failed: ..." or "not known: ..."; times are ms since the epoch. ``times``: how many failed
    logins, or failed changes of a user, it stands for.
    """

    id: int
    at_ms: int
    user: str
    address: str
    action: str
    fields: dict[str, str]
    outcome: str
    ended_ms: int | None
    times: int


class Audit:
    """Entries of 400 days, in the database of a directory.

    Threads and processes may share it. ``now_ms``: milliseconds since the epoch.
    """

    entries_max, look_every, make_room = ENTRIES_MAX, LOOK_EVERY, MAKE_ROOM

    def __init__(self, directory: Path, now_ms: Callable[[], int]) -> None:
        self._opened, self._now_ms = partial(opened, directory, "the audit log", NotAudited), now_ms

    def begin(self, user: str, address: str, action: str, fields: Mapping[str, object]) -> int:
        """Write durably that a change begins, and return its id. Values are cut; passwords and tokens are left out.

        Raises NotAudited: then it must not be made.
        """
        return self._write(user, address, action, fields, BEGUN)

    def end(self, change_id: int, outcome: str) -> None:
        """Write the outcome of a change, once: "done: ..." or "failed: ...". Where that fails it is logged: the change is made.

        Of failed changes of a user, those from the eleventh of a minute on are counted in the tenth.
        """
        with _or_logged(f"entry {change_id}: {outcome}"), self._opened(writes=True) as database:
            ended = "UPDATE audit SET outcome = ?, ended_ms = ? WHERE id = ? AND outcome = ?"
            if not database.execute(ended, [_cut(outcome), self._now_ms(), change_id, BEGUN]).rowcount:
                raise NotAudited("the audit log has no entry of the change that ended")
            if outcome.startswith("failed"):
                self._join_failures(database, change_id)

    def _join_failures(self, database: sqlite3.Connection, change_id: int) -> None:
        """Count a failed change in an earlier entry, where its user has no entry left in this minute."""
        same = "user = (SELECT user FROM audit WHERE id = ?) AND outcome LIKE 'failed%' AND at_ms > ? AND minute IS NULL"
        asked = [change_id, self._now_ms() - 60_000, change_id - self.look_every, change_id - 1]
        before = database.execute(
            f"SELECT id FROM audit WHERE {same} AND id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?", [*asked, FAILURES_MAX]
        ).fetchall()
        if len(before) == FAILURES_MAX:
            database.execute("UPDATE audit SET times = times + 1 WHERE id = ?", [before[0]["id"]])
            database.execute("DELETE FROM audit WHERE id = ?", [change_id])

    def note(self, user: str, address: str, action: str, fields: Mapping[str, object], outcome: str = "done") -> None:
        """Write an action that needs no permission, such as a login. A failure to write is logged."""
        with _or_logged(f"{action} of {user}: {outcome}"):
            self._write(user, address, action, fields, outcome)

    def login_failed(self, name: str, address: str, locked_ms: int = 0) -> None:
        """Write a failed login; from the tenth of a minute on they share an entry, and are counted. Where that fails it is logged.

        ``name`` is empty unless there is a user of that name: people type passwords there. ``locked_ms``: `Attempts.failed`.
        """
        outcome = "failed: locked out" if locked_ms else "failed: wrong name or password"
        minute = self._now_ms() // 60_000
        with _or_logged(f"login of {name} from {address}: {outcome}"):
            with self._opened() as database:
                before = [row["id"] for row in database.execute("SELECT id FROM audit WHERE minute = ?", [minute])]
            if len(before) < FAILURES_MAX:
                self._write(name, address, "login", {}, outcome, minute)
                return
            with self._opened(writes=True) as database:
                counted = "UPDATE audit SET times = times + 1, user = '', address = ?, outcome = ? WHERE id = ?"
                database.execute(counted, [OTHERS, outcome, before[-1]])

    def read(self, count: int, before: int = 2**63 - 1) -> list[AuditEntry]:
        """Return the newest entries first, of those before an id. Raises NotAudited."""
        with self._opened() as database:
            rows = database.execute("SELECT * FROM audit WHERE id < ? ORDER BY id DESC LIMIT ?", [before, count])
            return [self._entry(dict(row)) for row in rows]

    def _write(
        self, user: str, address: str, action: str, fields: Mapping[str, object], outcome: str, minute: int | None = None
    ) -> int:
        kept = {name: "(left out)" if _is_secret(name, fields) else _cut(value) for name, value in fields.items()}
        texts = _cut(user), _cut(address), _cut(action), msgspec.json.encode(kept).decode(), _cut(outcome)
        row = [self._now_ms(), *texts, minute]
        with self._opened(writes=True) as database:
            insert = "INSERT INTO audit (at_ms, user, address, action, fields, outcome, minute) VALUES (?, ?, ?, ?, ?, ?, ?)"
            entry_id = database.execute(insert, row).lastrowid or 0
            self._forget(database, self._now_ms() - KEPT_MS, entry_id)
        return entry_id

    def _entry(self, row: dict[str, Any]) -> AuditEntry:
        entry: AuditEntry = convert({**row, "fields": msgspec.json.decode(row["fields"])}, AuditEntry)
        is_over = entry.outcome == BEGUN and abs(self._now_ms() - entry.at_ms) >= RUNNING_MS
        return msgspec.structs.replace(entry, outcome=UNKNOWN) if is_over else entry

    def _forget(self, database: sqlite3.Connection, before_ms: int, entry_id: int) -> None:
        """Remove at most two entries that are too old, so that a wrong clock does little harm; and make room."""
        oldest = "SELECT id FROM audit ORDER BY id LIMIT 2"
        database.execute(f"DELETE FROM audit WHERE id IN ({oldest}) AND at_ms < ?", [before_ms])
        if entry_id % self.look_every or database.execute("SELECT count(*) FROM audit").fetchone()[0] <= self.entries_max:
            return
        most = "SELECT user FROM audit GROUP BY user ORDER BY count(*) DESC LIMIT 1"
        theirs = f"SELECT id FROM audit WHERE user = ({most}) ORDER BY id LIMIT ?"
        count = database.execute(f"DELETE FROM audit WHERE id IN ({theirs})", [self.make_room]).rowcount
        log.warning(
            "the audit log has more than %d entries: the oldest %d of the user with most are removed", self.entries_max, count
        )


@contextmanager
def _or_logged(what: str) -> Iterator[None]:
    try:
        yield
    except NotAudited as exc:
        log.error("%s: %s", exc, what)


def _is_secret(name: str, fields: Mapping[str, object]) -> bool:
    """Whether a field's value is secret: by its name, or by the setting whose value it is."""
    return SECRET.search(name) is not None or (name == "value" and SECRET.search(str(fields.get("setting"))) is not None)


def _cut(value: object) -> str:
    text = escaped(str(value))
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"
