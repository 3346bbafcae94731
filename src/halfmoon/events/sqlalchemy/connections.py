"""Transactions of SQLAlchemy's Core: a block in place of ``engine.begin()``, whose end is known for certain.

The engine's own events cannot tell: the one for a commit comes before the driver's commit. So a session that nobody else sees
begins and ends the transaction of the block's connection. Made by `sqlalchemy.provider`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session
from sqlalchemy.util import greenlet_spawn

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Lent
from halfmoon.events.databases.given import described
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.sqlalchemy.sessions import SessionProvider
from halfmoon.events.transaction import LocalTransaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine


class ConnectionProvider(SessionProvider):
    """A `Provider` over the blocks of one engine. Safe to use from many threads."""

    ways = (
        "Publish it inside `with halfmoon.events.sqlalchemy.begin(engine) as connection:`, or name such a connection "
        "(publish(…, session=connection), events.bound_to(connection))"
    )
    handles = "connections"

    def __init__(self, engine: Engine) -> None:
        super().__init__(type("SessionOfBlock", (Session,), {}), engine, lambda: engine, on_loop=False)
        self.made_by = engine
        self._of_block = engine
        self._sessions: WeakKeyDictionary[Connection, Session] = WeakKeyDictionary()
        changes = {
            "savepoint": LocalTransaction.savepoint,
            "release_savepoint": LocalTransaction.release,
            "rollback_savepoint": LocalTransaction.rollback_savepoint,
        }
        for name, change in changes.items():
            event.listen(engine, name, partial(self._change, change))

    def _change(self, change: Callable[[LocalTransaction], None], connection: Connection, *_: Any) -> None:
        session = self._sessions.get(connection)
        if session is not None and (root := self._root(session)) is not None:
            change(root.local)

    # ------------------------------------------------------------ blocks

    @property
    def is_async(self) -> bool:
        """Whether it was made of an AsyncEngine."""
        return hasattr(self.made_by, "sync_engine")

    @contextmanager
    def _lend(self) -> Iterator[Lent]:
        with self.begin() as connection:
            yield self.lent(connection)

    @asynccontextmanager
    async def _lend_async(self) -> AsyncIterator[Lent]:
        async with self.begin_async(self.made_by) as connection:
            yield self.lent(connection)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """Open a transaction for a block: committed at its end, rolled back by an exception."""
        with self._of_block.connect() as connection:
            session = self._started(connection)
            try:
                yield connection
                self._commit(session)
            except BaseException:
                if connection.get_transaction() is not None:  # SQLite leaves one open whose commit it refused
                    session.rollback()
                raise
            finally:
                session.close()

    @asynccontextmanager
    async def begin_async(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """Open a transaction as `begin` does, for an AsyncEngine over this engine."""
        async with engine.connect() as connection:
            session = await greenlet_spawn(self._started, connection.sync_connection)
            try:
                yield connection
                await greenlet_spawn(self._commit, session)
            except BaseException:
                if connection.get_transaction() is not None:
                    await greenlet_spawn(session.rollback)
                raise
            finally:
                await greenlet_spawn(session.close)

    def _started(self, connection: Connection | None) -> Session:
        assert connection is not None, "an async connection that was opened has its other side"
        session = self._sessions[connection] = self._class(connection)
        session.begin()
        session.connection()
        self._of(connection).block = f"begin() of the engine {self._of_block.url!r}"
        return session

    def _commit(self, session: Session) -> None:
        root = self._root(session)
        if root is not None and root.goes_on():  # else the user ended it inside
            session.commit()

    # ------------------------------------------------------------ finding one

    def _session(self, handle: object) -> Session:
        connection = getattr(handle, "sync_connection", handle)
        if not isinstance(connection, Connection) or connection.engine.dialect is not self._of_block.dialect:
            raise UsageError(
                f"session= is {described(handle)}: give a connection of the publisher's own engine, as "
                "`with halfmoon.events.sqlalchemy.begin(engine) as connection:` opens one"
            )
        if (session := self._sessions.get(connection)) is None:
            raise NoTransaction("the connection is in no block of halfmoon.events.sqlalchemy.begin(engine): publish inside one")
        return session

    def _of(self, handle: object) -> LocalTransaction:
        root = self._root(self._session(handle))
        if root is None or not self._runs(root.local):
            raise TransactionEnded("the connection's transaction has ended: publish before its commit or rollback")
        return root.local

    def _is_in(self, root: Any) -> bool:
        return super()._is_in(root) and root.goes_on()
