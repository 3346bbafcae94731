"""A shop on asyncio: a PostgreSQL, its provider with pools of a driver, and a publisher on a bus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest

from halfmoon.events import Publisher
from halfmoon.events.aio import AsyncProvider, provider
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import plain

T, C = "TP_ORDER", "EC_PAID"
INSERT = "INSERT INTO orders VALUES ({})"


class Shop:
    """A database with its provider, a driver's pools, and a publisher on a bus."""

    def __init__(self, url: str, driver: str, **options: Any) -> None:
        self.dsn, self.driver = plain(url), driver
        connect = asyncpg.connect if driver == "asyncpg" else psycopg.AsyncConnection.connect
        self.database: AsyncProvider = provider(lambda: connect(self.dsn, **options))
        self.bus = MemoryBus()
        self.events = Publisher("P_shop", transport=self.bus, provider=self.database, tries_max=0, relay=False)
        self.events.create_tables()
        with self.database.fresh() as rows:
            rows.run("CREATE TABLE orders (id INT PRIMARY KEY)")

    @asynccontextmanager
    async def pool(self, size: int = 2) -> AsyncIterator[Any]:
        if self.driver == "asyncpg":
            async with asyncpg.create_pool(self.dsn, min_size=1, max_size=size) as pool:
                yield pool
        else:
            async with psycopg_pool.AsyncConnectionPool(self.dsn, min_size=1, max_size=size, open=False) as pool:
                yield pool

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with self.pool(1) as pool, self.database.connection(pool) as connection:
            yield connection

    def orders(self) -> list[int]:
        with self.database.fresh() as rows:
            return [row[0] for row in rows.all("SELECT id FROM orders ORDER BY id")]

    def seen(self) -> list[int]:
        return sorted(event.payload for event in self.bus.events(T, C))


@pytest.fixture(params=["asyncpg", "psycopg"])
def shop(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[Shop]:
    made = Shop(postgres_url, request.param)
    yield made
    made.events.close()


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


async def sell(shop: Shop, connection: Any, number: int, **options: Any) -> None:
    await connection.execute(INSERT.format(number))
    await shop.events.publish_async(T, C, number, transactional=True, **options)
