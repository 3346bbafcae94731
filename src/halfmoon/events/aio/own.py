"""Statements on asyncio connections of asyncpg and psycopg, and such a connection for blocking code: it lives on our own loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from halfmoon.events.databases.database import Busy, Values
from halfmoon.events.databases.own_loop import LOOP
from halfmoon.events.dbapi.driver import autocommits, in_transaction, paramstyle_of, with_plain_rows, written

T = TypeVar("T")


async def execute(connection: Any, statement: str, values: Values | None = None) -> tuple[int, Sequence[Sequence[Any]]]:
    """Run a statement of ours on a driver's connection; return how many rows it touched, and those that it found."""
    if hasattr(connection, "fetch"):
        return await _of_asyncpg(connection, *written(statement, values, paramstyle_of(connection)))
    async with with_plain_rows(connection.cursor()) as cursor:
        await cursor.execute(*written(statement, values, paramstyle_of(connection)))
        return max(0, cursor.rowcount), await cursor.fetchall() if cursor.description else []


async def _of_asyncpg(connection: Any, text: str, given: Sequence[Any]) -> tuple[int, Sequence[Sequence[Any]]]:
    if text.lstrip()[:6].upper() == "SELECT" or " RETURNING " in text:
        rows = [tuple(row) for row in await connection.fetch(text, *given)]
        return len(rows), rows
    *_, count = (await connection.execute(text, *given)).split() or [""]  # such as INSERT 0 3
    return int(count) if count.isdigit() else 0, []


class BlockingConnection:
    """Connection as in PEP 249, over an asyncio connection that ``connect`` opens: the methods that providers use."""

    def __init__(self, connect: Callable[[], Awaitable[Any]]) -> None:
        self._real = _waited(_opened(connect))
        self.autocommit = autocommits(self._real, "postgresql")

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open, or the driver does not say."""
        return in_transaction(self._real) is not False

    def cursor(self) -> BlockingCursor:
        """Return a cursor for one statement."""
        return BlockingCursor(self._real)

    def commit(self) -> None:
        """Commit, with psycopg."""
        _waited(self._real.commit())

    def rollback(self) -> None:
        """Roll back what is open."""
        if self.in_transaction:
            _waited(execute(self._real, "ROLLBACK"))

    def close(self) -> None:
        """Close."""
        _waited(self._real.close())


class BlockingCursor:
    """Cursor that runs one statement, with ``:name`` places, and has its rows."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.rowcount = 0
        self.description: Sequence[Any] | None = None

    def execute(self, statement: str, values: Values | None = None) -> None:
        """Run it."""
        self.rowcount, self.description = _waited(execute(self._real, statement, values))

    def fetchall(self) -> Sequence[Sequence[Any]]:
        """Return the rows that it found."""
        return self.description or []

    def close(self) -> None:
        """Do nothing."""


async def _opened(connect: Callable[[], Awaitable[Any]]) -> Any:
    return await connect()


def _waited(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on our own loop and wait for it. Raises Busy where the network failed."""
    try:
        return LOOP.run(coroutine)
    except OSError as error:
        raise Busy(f"the database could not be reached: {error}") from error
