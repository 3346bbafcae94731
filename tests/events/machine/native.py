"""asyncpg and psycopg's asyncio connections behind `halfmoon.events.aio`, and the verbs that only they have."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg

from halfmoon.events import Event, Publisher
from halfmoon.events.aio import provider
from halfmoon.events.testing import MemoryBus
from tests.events.machine.application import GROUP, Application
from tests.events.machine.stores import Store
from tests.events.machine.verbs import verb
from tests.events.real_databases import plain


class AsyncConnections(Application):
    """Connections of one driver, on an event loop of its own; ``traits`` name it."""

    def __init__(self, store: Store, driver: str, bus: MemoryBus) -> None:
        self.traits = frozenset({"native", "async", f"native {driver}"})  # type: ignore[misc]  # each object is of one driver
        self.loop = asyncio.new_event_loop()
        self.opened_ones: list[Any] = []
        super().__init__(store, driver, bus)

    async def connect(self) -> Any:
        """Open a connection of the driver's own."""
        connect: Any = asyncpg.connect if self.driver == "asyncpg" else psycopg.AsyncConnection.connect
        return await connect(plain(self.store.url))

    async def _opened(self) -> Any:
        self.opened_ones.append(connection := await self.connect())
        return connection

    def _publisher(self) -> Publisher:
        self.database = provider(self.connect)
        return Publisher(GROUP, transport=self.carrier, provider=self.database)

    def _drive(self, program: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(program)

    def _clear(self) -> None:
        self.loop.run_until_complete(self._close_all())
        super()._clear()

    async def _close_all(self) -> None:
        while self.opened_ones:
            with suppress(Exception):
                await asyncio.wait_for(self.opened_ones.pop().close(), 1)

    def sever(self) -> None:
        gc.collect()
        self.store.cut_off()

    def shut(self) -> None:
        super().shut()
        self.loop.close()

    async def publish(self, event: Event, handle: Any) -> None:
        await self.publisher.publish_async(event, session=handle)

    @property
    def opened(self) -> bool:
        return self.connection is not None

    @property
    def handle(self) -> Any:
        return self.connection

    def forget(self) -> None:
        self.connection: Any = None
        self.transactions: list[Any] = []
        self.lent = False

    async def open(self) -> None:
        self.connection = self.database.proxied(await self._opened())

    async def text(self, statement: str) -> None:
        await self.connection.execute(statement)

    async def commit(self) -> None:
        await (self.connection.commit() if self.driver == "psycopg" else self.text("COMMIT"))

    async def rollback(self) -> None:
        await (self.connection.rollback() if self.driver == "psycopg" else self.text("ROLLBACK"))

    async def close(self) -> None:
        try:
            await self.connection.close()
        finally:
            self.forget()

    async def driver_connection(self) -> Any:
        return self.connection._real

    def left(self) -> None:
        if self.lent:
            self.forget()

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
    app.connection = await app.enter(app.database.connection(app))
    app.lent = True


@verb("native", weight=5, opens=True)
async def open_in_a_transaction_of_a_pool(app: AsyncConnections) -> None:
    await open_of_a_pool(app)
    await app.enter(app.connection.transaction())


@verb("native", opens=True)
async def open_of_a_pool_that_ends_it_beneath(app: AsyncConnections) -> None:
    app.connection = app.database.proxied(await app.enter(app.acquire()))
    app.lent = True


@verb("native", weight=4)
async def enter_transaction_on_a_loop(app: AsyncConnections) -> None:
    await app.enter(app.connection.transaction())


@verb("native")
async def enter_transaction_beneath_on_a_loop(app: AsyncConnections) -> None:
    await app.enter(app.connection._real.transaction())


@verb("native")
async def commit_beneath_on_a_loop(app: AsyncConnections) -> None:
    await app.connection._real.execute("COMMIT")


@verb("native")
async def rollback_beneath_on_a_loop(app: AsyncConnections) -> None:
    await app.connection._real.execute("ROLLBACK")


@verb("native psycopg")
async def force_a_rollback_on_a_loop(app: AsyncConnections) -> None:
    await app.enter(app.connection.transaction(force_rollback=True))


@verb("native psycopg")
async def switch_autocommit_on_a_loop(app: AsyncConnections) -> None:
    await app.connection.set_autocommit(True)


@verb("native psycopg")
async def pipeline_on_a_loop(app: AsyncConnections) -> None:
    await app.enter(app.connection.pipeline())


@verb("native asyncpg", weight=2)
async def start_a_transaction(app: AsyncConnections) -> None:
    transaction = app.connection.transaction()
    await transaction.start()
    app.transactions.append(transaction)


@verb("native asyncpg", weight=2)
async def commit_a_transaction(app: AsyncConnections) -> None:
    if app.transactions:
        await app.transactions.pop().commit()


@verb("native asyncpg")
async def roll_a_transaction_back(app: AsyncConnections) -> None:
    if app.transactions:
        await app.transactions.pop().rollback()


@verb("native asyncpg")
async def reset_on_a_loop(app: AsyncConnections) -> None:
    await app.connection.reset()
