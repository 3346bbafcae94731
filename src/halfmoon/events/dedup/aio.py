"""No effect twice, with asyncio connections of asyncpg or psycopg: the function gets the one in whose transaction it is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from halfmoon.events.aio import AsyncProvider, AsyncProxyConnection


@asynccontextmanager
async def begin(database: AsyncProvider) -> AsyncIterator[AsyncProxyConnection]:
    """Open a connection for a block that is a transaction, and close it."""
    connection = await database.open()
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()
