"""Transactions of SQLAlchemy's Core: a block in place of ``engine.begin()``, whose end is known for certain.

The engine's own events cannot tell: the one for a commit comes before the driver's commit. Made by `sqlalchemy.provider`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Rows, Values
from halfmoon.events.databases.listening import ListeningConnection
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction, TransactionEnded
from halfmoon.events.sqlalchemy.engines import asyncio_module, begin_before_savepoints, status_of, watch_commit
from halfmoon.events.sqlalchemy.rows import ConnectionRows, Fresh, dialect_of, refuse_autocommit
from halfmoon.events.transaction import LocalTransaction, active_transactions, bind

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class _Block:
    """One transaction, from `begin` to the end of its block."""

    def __init__(self, connection: Connection, transaction: RootTransaction, local: LocalTransaction) -> None:
        self.connection = connection
        self.transaction = transaction
        self.local = local
        self.commit = watch_commit(connection)
        self.returned = False

    @property
    def is_current(self) -> bool:
        """Whether the transaction is still the connection's, as after a commit that failed: SQLite leaves it open, and SQLAlchemy
        would give it back to the pool like that."""
        return self.connection.get_transaction() is self.transaction


class ConnectionProvider:
    """A `Provider` over the blocks of one engine. Safe to use from many threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.dialect = dialect_of(engine)
        self._open: dict[Connection, _Block] = {}
        self.schema = ""
        """Of the tables of events; empty: the one in which the database finds them."""
        self._fresh = Fresh(engine, lambda: bool(self._open), lambda: self.schema)
        begin_before_savepoints(engine)
        event.listen(engine, "savepoint", lambda connection, name: self._local(connection, LocalTransaction.savepoint))
        event.listen(engine, "release_savepoint", lambda connection, *_: self._local(connection, LocalTransaction.release))
        event.listen(
            engine, "rollback_savepoint", lambda connection, *_: self._local(connection, LocalTransaction.rollback_savepoint)
        )

    def _local(self, connection: Connection, change: Callable[[LocalTransaction], None]) -> None:
        if (block := self._open.get(connection)) is not None:
            change(block.local)

    # ------------------------------------------------------------ blocks

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction for a block: committed at its end, rolled back by an exception."""
        with self._engine.connect() as connection:
            block = self._started(connection)
            try:
                yield connection
                self._commit(block)
            except BaseException:
                if block.is_current:
                    block.transaction.rollback()
                raise
            finally:
                self._ended(block)

    @asynccontextmanager
    async def begin_async(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """As `begin`, for an AsyncEngine over this engine."""
        async with engine.connect() as connection:
            block = await greenlet_spawn(self._started, connection.sync_connection)
            try:
                yield connection
                await greenlet_spawn(self._commit, block)
            except BaseException:
                if block.is_current:
                    await greenlet_spawn(block.transaction.rollback)
                raise
            finally:
                self._ended(block)

    def _started(self, connection: Connection | None) -> _Block:
        assert connection is not None, "an async connection that was opened has its other side"
        local = LocalTransaction(self, connection, waits=not connection.dialect.is_async)
        block = _Block(connection, connection.begin(), local)
        local.facts["sqlalchemy"] = block
        local.block = f"begin() of the engine {self._engine.url!r}"
        self._open[connection] = block
        self._fresh.used_here()
        bind(local)
        return block

    def _commit(self, block: _Block) -> None:
        if not block.transaction.is_active:
            return  # the user ended it inside
        block.local.before_commit()
        block.transaction.commit()
        block.returned = True

    def _ended(self, block: _Block) -> None:
        self._open.pop(block.connection, None)
        block.local.end(status_of([block.commit], returned=block.returned))

    # ------------------------------------------------------------ what publishers ask

    ways = (
        "Publish it inside `with halfmoon.events.sqlalchemy.begin(engine) as connection:`, or name such a connection "
        "(publish(…, session=connection), events.bound_to(connection))"
    )

    def current(self, handle: object = None) -> LocalTransaction | None:
        """Return the active transaction of this context, or of a connection that `begin` gave."""
        if handle is not None:
            return self._of(getattr(handle, "sync_connection", handle))
        transactions = [
            transaction
            for transaction in active_transactions()
            if transaction.source is self and _block(transaction).transaction.is_active
        ]
        if len(transactions) > 1:
            raise AmbiguousTransaction(
                f"{len(transactions)} connections have a transaction here: say which one (publish(…, session=connection))"
            )
        return transactions[0] if transactions else None

    def _of(self, connection: object) -> LocalTransaction:
        if not isinstance(connection, Connection) or connection.engine.dialect is not self._engine.dialect:
            raise UsageError(f"session= must be a connection of the publisher's own engine, not {connection!r:.80}")
        if (block := self._open.get(connection)) is None:
            raise NoTransaction("the connection is in no block of halfmoon.events.sqlalchemy.begin(engine): publish inside one")
        if not block.transaction.is_active:
            raise TransactionEnded("the connection's transaction has ended: publish before its commit or rollback")
        return block.local

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return what runs statements in the connection's own transaction."""
        block = _block(transaction)
        if not transaction.active or not block.transaction.is_active:
            raise TransactionEnded("the connection's transaction has ended: publish before its commit or rollback")
        refuse_autocommit(block.connection)
        return ConnectionRows(lambda: block.connection, self.dialect, self.schema, on_loop=not transaction.waits)

    def awaiting(self) -> Callable[[Awaitable[Any]], Any] | None:
        """Return `sqlalchemy.util.await_only` in code that SQLAlchemy runs in a greenlet, such as hooks of an AsyncSession."""
        return await_only if asyncio_module() is not None and in_greenlet() else None

    def standing_in(self, transaction: LocalTransaction) -> Rows | None:
        """Return None: transactions of tests are ended as any."""
        return None

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """Run a statement in the transaction of a block on this event loop."""
        if transaction.waits:
            return self.rows(transaction).run(statement, values)
        return await greenlet_spawn(self.rows(transaction).run, statement, values)

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        """As `run_async`, for a query: returns its rows."""
        if transaction.waits:
            return self.rows(transaction).all(statement, values)
        return await greenlet_spawn(self.rows(transaction).all, statement, values)

    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> AbstractContextManager[Rows]:
        """Return a block with a transaction of its own on the engine. Not for a thread that runs an event loop."""
        return self._fresh.block(lock_wait_ms)

    def listening(self) -> ListeningConnection:
        """Open a connection for notifications, as the engine opens one, in no pool."""
        return self._fresh.listening()

    @property
    def inline(self) -> bool:
        """Whether all share one connection, as with SQLite in memory."""
        return self._fresh.shared

    def release(self) -> None:
        """Close the connections of its own that are idle."""
        self._fresh.release()


def _block(local: LocalTransaction) -> _Block:
    block = local.facts.get("sqlalchemy")
    if not isinstance(block, _Block):
        raise UsageError("this transaction is not one of halfmoon.events.sqlalchemy.begin(engine)")
    return block
