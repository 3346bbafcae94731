"""Contract of a database provider: the requests of a publisher and of consumers to the database of their transactions.

A provider binds the transactions it sees to their contexts (`halfmoon.events.transaction`), and runs the few statements of
`halfmoon.events.tables`: in the user's own transaction, or in a short one of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, NamedTuple, Protocol

from halfmoon.events.databases.listening import ListeningConnection
from halfmoon.events.tables import in_schema
from halfmoon.events.transaction import LocalTransaction

Values = Mapping[str, Any]
"""The values of a statement's ``:name`` places: texts, ints, bytes, None."""


LOOK_WAIT_MS = 200
"""Longest wait of one query for a lock of the whole database or table, where it has a bound."""


def bounding(dialect: str, lock_wait_ms: int | None) -> tuple[str, str]:
    """Return the statements that bound the lock waits of `Database.fresh`: one before the transaction, one inside; "" for none.

    Inside where that is possible: the connection may go back to a pool. No database takes 0 for "at once".
    """
    wait_ms = LOOK_WAIT_MS if lock_wait_ms is None else max(1, int(lock_wait_ms))
    wait_s = wait_ms // 1000  # MySQL takes 0 for 1
    before = {
        "sqlite": f"PRAGMA busy_timeout = {wait_ms}",
        "mysql": f"SET innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}",  # for rows, and for tables
    }
    return before.get(dialect, ""), f"SET LOCAL lock_timeout = {wait_ms}" if dialect == "postgresql" else ""


class Refused(Exception):
    """The database refused a row because one of its key is there. The transaction may be unusable now."""


class Busy(Exception):
    """The database could not say now: a lock is held, or the connection failed. Another try later may help."""


class Rows(Protocol):
    """Statements in one transaction.

    ``:name`` marks a value; ``dialect`` is ``sqlite``, ``postgresql``, ``mysql`` or another.
    """

    dialect: str

    def run(self, statement: str, values: Values | None = None) -> int:
        """Run a statement and return the number of rows it touched. Raises Refused, Busy, and other errors of the driver."""

    def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows. Raises Busy, and other errors of the driver."""


class SchemaRows:
    """`Rows` whose statements name the tables of events in a schema; those that say one themselves keep it."""

    def __init__(self, rows: Rows, schema: str) -> None:
        self._rows, self._schema, self.dialect = rows, schema, rows.dialect

    def run(self, statement: str, values: Values | None = None) -> int:
        """Run a statement; see `Rows.run`."""
        return self._rows.run(in_schema(statement, self._schema, self.dialect), values)

    def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        """Run a query; see `Rows.all`."""
        return self._rows.all(in_schema(statement, self._schema, self.dialect), values)


class Lent(NamedTuple):
    """A transaction that is lent to a consumer's function.

    ``handle`` is the object that the function works with, such as a session. ``rows`` runs statements in the transaction: `Rows`,
    whose methods are coroutine functions where the provider is one of an event loop (`Provider.is_async`).
    """

    handle: Any
    rows: Any


class Database(Protocol):
    """Data source, or one schema of it, without the transactions of its users."""

    @property
    def dialect(self) -> str:
        """Dialect of the database; see `Rows.dialect`."""

    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> AbstractContextManager[Rows]:
        """Return a block with a transaction of its own: committed at its end, rolled back by an exception.

        ``lock_wait_ms``: the longest wait for a lock of somebody else; then it raises Busy. None: the block runs one query that
        only reads. Where a bound would cost round trips, such a query has no bound and no transaction.
        """


class Provider(Database, Protocol):
    """Data source with the transactions of its users. Safe to use from many threads.

    `halfmoon.events.databases.provider.DatabaseProvider` has what most have in common; `halfmoon.events.databases.registry` finds
    those of other packages.
    """

    @property
    def is_async(self) -> bool:
        """Whether its transactions are those of an event loop: `lend` is for ``async with``, and for coroutine functions."""

    @property
    def ways(self) -> str:
        """Ways to say which transaction a publish belongs to, in words: part of the text of `NoTransaction`."""

    @property
    def inline(self) -> bool:
        """True if only the connection of a transaction reaches its database, such as one in memory.

        Rows are then asked for in the thread that ended the transaction.
        """

    def current(self, handle: object = None) -> LocalTransaction | None:
        """Return the transaction that is active in this context (of ``handle``, such as a session, where given); None for none.

        A session or connection that has had no statement yet counts when it is the only one that can be meant; its transaction
        begins here, then. Raises AmbiguousTransaction; TransactionEnded for a handle whose transaction has ended; UsageError for
        one of another kind.
        """

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return the `Rows` of an active transaction, whose statements commit with it."""

    def awaiting(self) -> Callable[[Awaitable[Any]], Any] | None:
        """Return the function that awaits for blocking code on an event loop, such as hooks of an AsyncSession; else None."""

    def standing_in(self, transaction: LocalTransaction) -> Rows | None:
        """Return `Rows` in the transaction that a test has put around everything, in place of the database; else None."""

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """Run a statement as ``rows(transaction).run(…)`` does, in a transaction of an event loop."""

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run a query as ``rows(transaction).all(…)`` does, in a transaction of an event loop."""

    def lend(self) -> AbstractContextManager[Lent] | AbstractAsyncContextManager[Lent]:
        """Return a block with a transaction for a consumer's function: committed at its end, rolled back by an exception."""

    def listening(self) -> ListeningConnection:
        """Open a connection that receives notifications of the database, outside of pools. For a thread without an event loop.

        Raises CannotListen where the database or driver has none, and the errors of the driver.
        """

    def release(self) -> None:
        """Close the connections of its own that are idle."""
