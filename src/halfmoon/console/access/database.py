"""Database of the console: users and the audit log in one SQLite file, for the console's user alone. Knows neither's meaning.

Threads and processes share it: consoles and commands. Each use opens it anew, so one that is gone or replaced is noticed at once.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec

from halfmoon.errors import HalfmoonError
from halfmoon.settings.private import exposed, is_refused

NAME = "console.db"
READ_WAIT_S, WRITE_WAIT_S = 1.0, 5.0
"""Longest wait for another process, which locks the file for one write. Nothing else is answered while a page waits to read."""

# Its journal is cut and not removed: that is durable without a directory being synced, which takes longer than all else.
_SCHEMA = """
PRAGMA journal_mode = TRUNCATE;
PRAGMA synchronous = FULL;
CREATE TABLE IF NOT EXISTS users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('viewer', 'operator')), must_change INTEGER NOT NULL,
    changed_ms INTEGER NOT NULL, salt BLOB NOT NULL, digest BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS audit (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, user TEXT NOT NULL, address TEXT NOT NULL, action TEXT NOT NULL,
    fields TEXT NOT NULL, outcome TEXT NOT NULL, ended_ms INTEGER, times INTEGER NOT NULL DEFAULT 1, minute INTEGER
);
CREATE INDEX IF NOT EXISTS failed_logins ON audit (minute) WHERE minute IS NOT NULL;
"""


@contextmanager
def opened(directory: Path, what: str, error: type[HalfmoonError], *, writes: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the database of a directory for one transaction: durable when it ends, rolled back after an error.

    Who writes makes it where there is none; who reads finds nothing then. Costs 0.1 ms to read, some ms to write, and up to 1 and
    5 s while another process has it locked. Raises ``error``: ``what`` cannot be read or written, in which file and why; others may
    read the file.
    """
    path = (directory / NAME).absolute()
    try:
        if writes:
            _make(path)
        uri = f"{path.as_uri()}?mode=rw" if _is_there(path, error) else ":memory:"
        with closing(sqlite3.connect(uri, WRITE_WAIT_S if writes else READ_WAIT_S, isolation_level=None, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            connection.executescript(_SCHEMA)
            with connection:
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                yield connection
    except (OSError, sqlite3.Error, msgspec.DecodeError) as exc:
        done = "written" if writes else "read"
        raise error(f"{path}: {what} cannot be {done}: {getattr(exc, 'strerror', None) or exc}") from None


def now_ms() -> int:
    """Return the time, in ms since the epoch."""
    return time.time_ns() // 1_000_000


def _make(path: Path) -> None:
    """Make the file, its directory and the data directory around it, for their owner alone."""
    for each in (path.parent.parent, path.parent):
        with suppress(FileExistsError):
            each.mkdir(0o700, parents=True)
    with suppress(FileExistsError):
        path.touch(0o600, exist_ok=False)


def _is_there(path: Path, error: type[HalfmoonError]) -> bool:
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if is_refused(mode, os.environ):
        raise error(exposed(path, "the password hashes in it"))
    return True
