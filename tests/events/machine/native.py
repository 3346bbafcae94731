"""asyncpg and psycopg's asyncio connections behind `halfmoon.events.aio`, and the verbs that only they have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg

from halfmoon.events import Publisher
from halfmoon.events.aio import provider
from tests.events.machine.application import GROUP, OnLoop
from tests.events.machine.dbapi import Connections
from tests.events.machine.verbs import one, verb
from tests.events.real_databases import plain


class AsyncConnections(OnLoop, Connections):
    """Connections of one driver; ``traits`` name it."""

    def __init__(self, *arguments: Any) -> None:
        self.opened_ones: list[Any] = []
        super().__init__(*arguments)
        found = {"native", "async", "transactions", self.driver}
        self.traits = frozenset(found)  # type: ignore[misc]  # each object is of one driver

    def _publisher(self) -> Publisher:
        connect: Any = asyncpg.connect if self.driver == "asyncpg" else psycopg.AsyncConnection.connect
        self.connect = lambda: connect(plain(self.store.url))
        self.database = provider(self.connect)
        return Publisher(GROUP, transport=self.carrier, provider=self.database)

    async def _opened(self) -> Any:
        self.opened_ones.append(connection := await self.connect())
        return connection

    def _clear(self) -> None:
        self.loop.run_until_complete(self._close_all())
        super()._clear()

    async def _close_all(self) -> None:
        while self.opened_ones:
            with suppress(Exception):
                await asyncio.wait_for(self.opened_ones.pop().close(), 1)

    def forget(self) -> None:
        super().forget()
        self.transactions: list[Any] = []

    async def open(self) -> None:
        self.wrap(await self._opened())

    async def text(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await (super().commit() if self.driver == "psycopg" else self.text("COMMIT"))

    async def rollback(self) -> None:
        await (super().rollback() if self.driver == "psycopg" else self.text("ROLLBACK"))

    # ------------------------------------------------------------ as a pool

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """Lend a connection as the driver's pool does, which ends what is open beneath a proxy."""
        real = await self._opened()
        try:
            yield real
            if self.driver == "psycopg":
                await real.commit()
        except BaseException:
            if self.driver == "psycopg":
                await real.rollback()
            raise
        finally:
            await real.close()


@verb("native", weight=2, opens=True)
async def open_of_a_pool(app: AsyncConnections) -> None:
    app.proxied(await app.enter(app.database.connection(app)))
    app.lent = True


@verb("native", weight=5, opens=True)
async def open_in_a_transaction_of_a_pool(app: AsyncConnections) -> None:
    await open_of_a_pool(app)
    await app.enter(app.connection.transaction())


one("open of a pool that ends it beneath", lambda app: app.borrow(app.acquire()), "native", opens=True)
one("commit beneath on a loop", lambda app: app.real.execute("COMMIT"), "native")
one("rollback beneath on a loop", lambda app: app.real.execute("ROLLBACK"), "native")
one("switch autocommit on a loop", lambda app: app.connection.set_autocommit(True), "native", "psycopg")


@verb("asyncpg", weight=2)
async def start_a_transaction(app: AsyncConnections) -> None:
    transaction = app.connection.transaction()
    await transaction.start()
    app.transactions.append(transaction)


one("commit a transaction", lambda app: app.transactions and app.transactions.pop().commit(), "asyncpg", weight=2)
one("roll a transaction back", lambda app: app.transactions and app.transactions.pop().rollback(), "asyncpg")
one("reset of asyncpg", lambda app: app.connection.reset(), "asyncpg")
