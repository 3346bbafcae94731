"""No effect twice, with asyncio connections of asyncpg or psycopg: the function gets the one in whose transaction it is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from halfmoon.events.aio import AsyncProvider, AsyncProxyConnection
from halfmoon.events.databases.database import Provider, Refused
from halfmoon.events.dedup.ledger import Consumed, ConsumedKey, ConsumedRows


class AsyncConnectionLedger:
    """Lends connections of an `AsyncProvider` to coroutine functions: one for each event, in a transaction, closed after it."""

    is_async = True

    def __init__(self, provider: AsyncProvider) -> None:
        self.provider: Provider = provider
        self._database = provider
        self._notes = ConsumedRows()

    @asynccontextmanager
    async def lend(self, note: ConsumedKey) -> AsyncIterator[AsyncProxyConnection]:
        """Lend a connection whose transaction has begun."""
        connection = await self._database.open()
        try:
            async with connection.transaction():
                await self._note(connection, note)
                yield connection
        finally:
            await connection.close()

    async def _note(self, connection: AsyncProxyConnection, note: ConsumedKey) -> None:
        steps = self._notes.steps(self.provider.dialect, note)
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._database.execute(connection, *step))
        except StopIteration:
            return
        except Refused as exc:
            raise Consumed from exc
