"""Transactions of Python's SQLite driver, sqlite3, and of aiosqlite around it: where they differ from other drivers.

Without ``autocommit=False`` (Python 3.12) the driver begins a transaction before a statement that writes, and before no other. So a
SAVEPOINT that comes first is itself the transaction, and its RELEASE commits. Providers that follow a transaction send the BEGIN.
"""

from __future__ import annotations

import re
from typing import Any

BEGIN = "BEGIN"
_SAVEPOINT = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/)*savepoint\b", re.IGNORECASE | re.DOTALL)


def needs_begin(connection: object, statement: object) -> bool:
    """Return whether a BEGIN has to go before a statement: a SAVEPOINT outside any transaction of a driver's connection."""
    return isinstance(statement, str) and _SAVEPOINT.match(statement) is not None and in_no_transaction(connection)


def commits_by_itself(connection: object) -> bool:
    """Return whether a driver's connection commits each statement by itself, because no BEGIN was sent."""
    if isinstance(autocommit := getattr(connection, "autocommit", None), bool):  # Python 3.12
        return autocommit and in_no_transaction(connection)
    return getattr(connection, "isolation_level", "") is None and in_no_transaction(connection)


def in_no_transaction(connection: object) -> bool:
    """Return whether a driver's connection says that no transaction is open."""
    return getattr(connection, "in_transaction", None) is False


def in_memory(connection: Any) -> bool:
    """Return whether a connection of sqlite3 is the only one that reaches its database: one in memory, without a shared cache."""
    cursor = connection.cursor()
    cursor.row_factory = None  # a user's may make anything of a row
    try:
        files = {row[1]: row[2] for row in cursor.execute("PRAGMA database_list").fetchall()}
    finally:
        cursor.close()
    return not files.get("main")
