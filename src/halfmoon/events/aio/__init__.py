"""Events in the transactions of asyncpg's and psycopg's asyncio connections, of pools or alone.

::

    database = provider(lambda: asyncpg.connect(DSN))  # or psycopg.AsyncConnection.connect(DSN)
    events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", provider=database)

    async with database.connection(pool) as connection, connection.transaction():
        await connection.execute("INSERT INTO orders VALUES (42)")
        await events.publish_async("TP_ORDER", "EC_PAID", {"order_id": 42})

``database.proxied(connection)`` wraps one that something else gave.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.aio.own import BlockingConnection, execute
from halfmoon.events.aio.proxy import AsyncProxyConnection
from halfmoon.events.databases.database import Lent, Rows, Values
from halfmoon.events.databases.given import check_connect
from halfmoon.events.databases.provider import mapped
from halfmoon.events.dbapi import ProxyProvider
from halfmoon.events.tables import in_schema
from halfmoon.events.transaction import LocalTransaction, Status

__all__ = ["AsyncProvider", "AsyncProxyConnection", "provider"]


def provider(connect: Callable[[], Awaitable[Any]], *, schema: str = "") -> AsyncProvider:
    """Return a provider for one PostgreSQL database. ``connect`` opens a connection of the driver's own, to be awaited.

    The publisher asks on connections that it opens itself, on an event loop of its own, so that a pool may be as small as one.
    ``schema`` is that of the tables of events; empty: the one in which the database finds them. Raises UsageError for none.
    """
    return AsyncProvider(connect, schema=schema)


class AsyncProvider(ProxyProvider):
    """A `Provider` over proxies of asyncio connections. Safe to use from many event loops."""

    is_async = True

    def __init__(self, connect: Callable[[], Awaitable[Any]], *, schema: str = "") -> None:
        check_connect(connect)
        super().__init__(lambda: BlockingConnection(connect), dialect="postgresql", paramstyle="named", schema=schema)
        self._connect_async = connect

    ways = (
        "Name the connection (publish_async(…, session=connection), events.bound_to(connection)), or publish inside `async with "
        "database.connection(pool) as connection, connection.transaction():`"
    )

    def connection(self, pool: Any) -> AbstractAsyncContextManager[AsyncProxyConnection]:
        """Return a block with a connection of a pool, asyncpg's or psycopg_pool's, whose transactions count.

        At its end the connection goes back, as the pool has it: psycopg's commits, or rolls back after an exception; asyncpg's
        rolls back what is open.
        """
        lend = getattr(pool, "acquire", None) or getattr(pool, "connection", None)
        if not callable(lend):
            raise UsageError(f"{pool!r:.80} is no pool of asyncpg or psycopg_pool: use proxied(connection) for a connection")
        return self._lent(lend())

    @asynccontextmanager
    async def _lent(self, lent: AbstractAsyncContextManager[Any]) -> AsyncIterator[AsyncProxyConnection]:
        async with lent as real:
            proxy = self.proxied(real)
            try:
                yield proxy
                await proxy.commit_open()
            except BaseException:
                with suppress(Exception):
                    await proxy.roll_back_open()
                raise
            finally:
                proxy.leave(Status.ROLLED_BACK)

    async def open(self) -> AsyncProxyConnection:
        """Open a connection whose transactions count; close it with its ``close()``."""
        return self.proxied(await self._connect_async())

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Lent]:
        """Return a block with a connection in a transaction, closed at its end; see `Provider.lend`."""
        connection = await self.open()
        try:
            async with connection.transaction():
                yield self.lent(connection)
        finally:
            await connection.close()

    def proxied(self, connection: Any) -> AsyncProxyConnection:
        """Return a proxy around an open connection of the driver. Use nothing but the proxy from now on."""
        if isinstance(connection, AsyncProxyConnection):
            raise UsageError("this connection is already a proxy")
        return AsyncProxyConnection(connection, self, self.dialect)

    # ------------------------------------------------------------ what publishers ask

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Raise UsageError, because the connection has to be awaited, or TransactionEnded."""
        self._connection(transaction)
        raise UsageError("this connection is one of an event loop: use `await publish_async(…)`")

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """Run a statement in the connection's own transaction, on its event loop."""
        return (await self._executed(self._connection(transaction), statement, values))[0]

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run a query as `run_async` runs a statement, and return its rows."""
        return (await self._executed(self._connection(transaction), statement, values))[1]

    async def _executed(
        self, connection: AsyncProxyConnection, statement: str, values: Values | None
    ) -> tuple[int, Sequence[Sequence[Any]]]:
        with mapped(statement):
            return await execute(connection.driver_connection, in_schema(statement, self.schema, self.dialect), values)
