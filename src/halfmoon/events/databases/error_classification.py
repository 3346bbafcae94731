"""Classification of database errors: refused, busy, duplicate key, missing table. Reads errors of any driver.

Drivers differ, so facts are looked for where they keep them: SQLSTATE (psycopg, asyncpg, pg8000), SQLite's codes, MySQL's numbers.
What is not recognised is not certain. Raises nothing and imports no driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SQLITE_BUSY, SQLITE_LOCKED, SQLITE_READONLY, SQLITE_CONSTRAINT = 5, 6, 8, 19
_SQLITE_KEYS = {1555, 2067, 2579}  # primary key, unique, rowid
_SQLITE_TEXTS = {
    "database is locked": SQLITE_BUSY,
    "database table is locked": SQLITE_LOCKED,
    "attempt to write a readonly database": SQLITE_READONLY,
}

_BUSY_STATES = {"40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "53300"}
"""Serialization failure, deadlock, lock not available, cancelled, shut down or starting, too many connections."""

_MYSQL_BUSY = {1040, 1158, 1159, 1160, 1161, 1205, 1213, 2002, 2003, 2006, 2013}
_MYSQL_REFUSED = {1062, 1205, 1213, 1451, 1452}
_MYSQL_KEY, _MYSQL_NO_TABLE, _MYSQL_NO_COLUMN = {1062, 1586}, 1146, 1054
_MYSQL_READ_ONLY, _MYSQL_NOT_PERMITTED = {1290, 1792, 1836}, {1044, 1142, 1143}
_MYSQL_DRIVERS = {"pymysql", "mysqldb", "aiomysql", "asyncmy", "mysql", "mariadb"}
_STATE = re.compile(r"[0-9A-Z]{5}")


def refused(error: BaseException | None) -> bool:
    """Return whether a commit that raised this was refused for certain, so that the transaction cannot be committed.

    A constraint, a serialization failure, a deadlock: SQLSTATE classes 23 and 40 but 40003 (completion unknown). SQLite leaves a
    transaction whose COMMIT found a lock or broke a constraint open, so what follows is a rollback.
    """
    for link in _chain(error):
        if (state := _sqlstate(link)) is not None and (state[:2] == "23" or (state[:2] == "40" and state != "40003")):
            return True
        if (code := _sqlite(link)) is not None and code & 0xFF in {SQLITE_BUSY, SQLITE_LOCKED, SQLITE_CONSTRAINT}:
            return True
        if _mysql(link) in _MYSQL_REFUSED:
            return True
    return False


def duplicate(error: BaseException | None) -> bool:
    """Return whether a statement failed because a row of its key is there."""
    return any(_sqlstate(link) == "23505" or _sqlite(link) in _SQLITE_KEYS or _mysql(link) in _MYSQL_KEY for link in _chain(error))


def busy(error: BaseException | None) -> bool:
    """Return whether another try later may help: somebody holds a lock, or there was no connection."""
    for link in _chain(error):
        state, code = _sqlstate(link), _sqlite(link)
        if state is not None and (state in _BUSY_STATES or state[:2] == "08"):
            return True
        if code is not None and code & 0xFF in {SQLITE_BUSY, SQLITE_LOCKED}:
            return True
        if _mysql(link) in _MYSQL_BUSY or (state is None and _of_connection(link)):
            return True
    return False


def _of_connection(error: BaseException) -> bool:
    """Return whether an error without a SQLSTATE is about the connection, and not about the statement."""
    name, module = type(error).__name__, type(error).__module__
    return (
        getattr(error, "connection_invalidated", False)
        or (module.startswith("psycopg") and name == "OperationalError")
        or (module.startswith("asyncpg") and not isinstance(error, ValueError))  # the driver checks values itself
        or (module.startswith("sqlalchemy") and name == "TimeoutError")  # its pool has no connection that is free
    )


def no_table(error: BaseException | None) -> bool:
    """Return whether a statement failed because its table is not there."""
    return any(
        _sqlstate(link) == "42P01"
        or _mysql(link) == _MYSQL_NO_TABLE
        or (_sqlite(link) is not None and str(link).startswith("no such table"))
        for link in _chain(error)
    )


def no_column(error: BaseException | None) -> bool:
    """Return whether a statement failed because its table lacks a column."""
    return any(
        _sqlstate(link) == "42703"
        or _mysql(link) == _MYSQL_NO_COLUMN
        or (_sqlite(link) is not None and ("no such column" in str(link) or "has no column named" in str(link)))
        for link in _chain(error)
    )


def read_only(error: BaseException | None) -> bool:
    """Return whether a statement failed because it writes, and the database only reads, as a replica does."""
    for link in _chain(error):
        code = _sqlite(link)
        if _sqlstate(link) == "25006" or _mysql(link) in _MYSQL_READ_ONLY or (code is not None and code & 0xFF == SQLITE_READONLY):
            return True
    return False


def not_permitted(error: BaseException | None) -> bool:
    """Return whether a statement failed because its user has no right to what it names."""
    return any(_sqlstate(link) == "42501" or _mysql(link) in _MYSQL_NOT_PERMITTED for link in _chain(error))


def in_failed_transaction(error: BaseException | None) -> bool:
    """Return whether PostgreSQL refused a statement because its transaction was given up after an earlier error."""
    return any(_sqlstate(link) == "25P02" for link in _chain(error))


def aborted(connection: object) -> bool:
    """Return whether a driver's connection is in a transaction that PostgreSQL has given up after an error.

    A COMMIT of such a one is answered without an error, and is a rollback. False for other databases; drivers: psycopg, psycopg2,
    pg8000.
    """
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if getattr(status, "name", None) == "INERROR" or (isinstance(status, int) and status == 3):
        return True
    return getattr(connection, "_transaction_status", None) == b"E"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, the one that it wraps (SQLAlchemy's ``orig``) and its causes; at most ten."""
    for _ in range(10):
        if error is None:
            return
        yield error
        inner = getattr(error, "orig", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__


def _sqlstate(error: BaseException) -> str | None:
    for name in ("sqlstate", "pgcode"):
        if isinstance(state := getattr(error, name, None), str) and _STATE.fullmatch(state):
            return state
    first = error.args[0] if error.args else None
    if isinstance(first, dict) and isinstance(state := first.get("C"), str):  # pg8000
        return state
    return None


def _sqlite(error: BaseException) -> int | None:
    if isinstance(code := getattr(error, "sqlite_errorcode", None), int):
        return code
    if type(error).__module__ != "sqlite3":
        return None
    return _SQLITE_TEXTS.get(str(error), 0)


def _mysql(error: BaseException) -> int | None:
    """Return MySQL's number: the ``errno`` of an error of its drivers, or its first argument. Others' are something else."""
    if type(error).__module__.partition(".")[0].lower() not in _MYSQL_DRIVERS:
        return None
    first = error.args[0] if error.args else None
    number = getattr(error, "errno", None)
    return number if isinstance(number, int) and number > 0 else first if isinstance(first, int) else None
