"""Differences between drivers: dialect, places of values, whether a transaction is open. Changes nothing.

Known: sqlite3, psycopg, psycopg2, pg8000, pymysql, mysqlclient, mariadb, mysql-connector, and asyncpg, which is none of PEP 249. Of
others only the standard is used.
"""

from __future__ import annotations

import re
import sys
from itertools import count
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Values

_DIALECTS = {
    "sqlite3": "sqlite",
    "psycopg": "postgresql",
    "psycopg2": "postgresql",
    "pg8000": "postgresql",
    "asyncpg": "postgresql",
    "pymysql": "mysql",
    "MySQLdb": "mysql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
NUMBERED = "numeric_dollar"
"""The paramstyle of asyncpg: ``$1``."""

_MYSQL_IN_TRANSACTION = 1
_PLACE = re.compile(r"(?<![:\w]):([a-z_]\w*)")


def driver_of(connection: object) -> str:
    """Return the name of the package that a connection's class comes from."""
    for base in type(connection).__mro__:
        if (name := base.__module__.partition(".")[0]) in _DIALECTS:
            return name
    return type(connection).__module__.partition(".")[0]


def dialect_of(connection: object) -> str:
    """Return ``sqlite``, ``postgresql``, ``mysql``, or empty for a driver that is not known."""
    return _DIALECTS.get(driver_of(connection), "")


def paramstyle_of(connection: object) -> str:
    """Return the paramstyle of a connection's driver, as its package has it. Raises UsageError when it has none."""
    if driver_of(connection) == "asyncpg":
        return NUMBERED
    for base in type(connection).__mro__:
        package = sys.modules.get(base.__module__.partition(".")[0])
        if isinstance(style := getattr(package, "paramstyle", None), str):
            return style
    raise UsageError(f"the driver of {type(connection)!r} has no paramstyle attribute: give provider(connect, paramstyle=…)")


def written(statement: str, values: Values | None, style: str) -> tuple[str, Any]:
    """Return a statement with ``:name`` places and its values as a driver of a paramstyle takes them."""
    given = dict(values or {})
    if style == "named":
        return statement, given
    if style in {"format", "pyformat"}:
        statement = statement.replace("%", "%%") if given else statement
    if style == "pyformat":
        return _PLACE.sub(r"%(\1)s", statement), given
    names: list[str] = _PLACE.findall(statement)
    in_order = [given[name] for name in names]
    if style in {"numeric", NUMBERED}:
        numbers, mark = count(1), ":" if style == "numeric" else "$"
        return _PLACE.sub(lambda _: f"{mark}{next(numbers)}", statement), in_order
    place = {"qmark": "?", "format": "%s"}.get(style)
    if place is None:
        raise UsageError(f"paramstyle {style!r} is not one of PEP 249: qmark, numeric, named, format, pyformat")
    return _PLACE.sub(place, statement), in_order


def with_plain_rows(cursor: Any) -> Any:
    """Return a cursor that gives rows as sequences, whatever the user's ``row_factory`` makes of them."""
    if hasattr(cursor, "row_factory"):
        rows = sys.modules.get("psycopg.rows") if driver_of(getattr(cursor, "driver_cursor", cursor)) == "psycopg" else None
        cursor.row_factory = None if rows is None else rows.tuple_row
    return cursor


def plain_row(row: Any) -> tuple[Any, ...]:
    """Return the values of a row, also of one that a cursor class makes a dict."""
    return tuple(row.values() if isinstance(row, dict) else row)


def autocommits(connection: Any, dialect: str) -> bool:
    """Return whether each statement commits by itself, unless a BEGIN came before it."""
    autocommit = getattr(connection, "autocommit", None)
    if isinstance(autocommit, bool):
        return autocommit
    if dialect == "sqlite":
        return getattr(connection, "isolation_level", "") is None
    asked = getattr(connection, "get_autocommit", None)
    return bool(asked()) if callable(asked) else driver_of(connection) == "asyncpg"


def in_transaction(connection: Any) -> bool | None:
    """Return whether the driver has a transaction open; None when it does not say."""
    state = getattr(connection, "in_transaction", None)
    if isinstance(state, bool):
        return state
    if callable(asked := getattr(connection, "is_in_transaction", None)):  # asyncpg
        return False if connection.is_closed() else bool(asked())
    status = getattr(getattr(connection, "info", None), "transaction_status", None)
    if (name := getattr(status, "name", None)) is not None:
        return None if name == "UNKNOWN" else bool(name != "IDLE")
    if isinstance(status, int):
        return None if status == 4 else status != 0
    if isinstance(flags := getattr(connection, "server_status", None), int):  # of MySQL's last answer
        return bool(flags & _MYSQL_IN_TRANSACTION)
    return None
