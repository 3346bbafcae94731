"""Proxy of an asyncio connection of asyncpg or psycopg, whose transactions are noticed. Made by `aio.provider`.

Everything is handed on to the driver. What the proxy cannot see, such as a COMMIT that a cursor sends, costs transactional events a
second, and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from halfmoon.events.databases import error_classification
from halfmoon.events.databases.unused_sessions import note_opened
from halfmoon.events.dbapi.driver import driver_of, in_transaction
from halfmoon.events.dbapi.proxy import DriverBlock, Noticed, forced
from halfmoon.events.transaction import LocalTransaction, Status

_NOTICED = {"execute", "commit", "rollback"}
"""Methods of drivers that begin and end transactions; asyncpg has the first one only."""

_TRIED = "SELECT 1"
"""Fails in a transaction that PostgreSQL has given up after an error, whose COMMIT would be a rollback without an error."""


class AsyncProxyConnection(Noticed):
    """Driver's asyncio connection with its transactions noticed. Attributes and methods are the driver's."""

    _waits = False

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.driver_connection, name)
        return self._noticed(name, attribute) if name in _NOTICED else attribute

    def _noticed(self, name: str, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return a method of the driver that notices transactions around its call."""

        async def call(*args: Any, **options: Any) -> Any:
            with self.noticing(name, *args):
                return await method(*args, **options)

        return call

    # ------------------------------------------------------------ the driver's own verbs

    async def close(self, *args: Any, **options: Any) -> None:
        """Close; what was not committed is rolled back."""
        try:
            await self.driver_connection.close(*args, **options)
        finally:
            self.leave(Status.ROLLED_BACK)

    def transaction(self, *args: Any, **options: Any) -> AsyncProxyBlock:
        """Return the driver's block of a transaction or savepoint."""
        return AsyncProxyBlock(self, self.driver_connection.transaction(*args, **options), forced=forced(*args, **options))

    async def __aenter__(self) -> Self:
        await self.driver_connection.__aenter__()
        self._unused_session = note_opened(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            if error is None:
                await self.commit_open()
            else:
                await self.roll_back_open()
            return await self.driver_connection.__aexit__(kind, error, trace)
        finally:
            self.leave(Status.ROLLED_BACK)

    # ------------------------------------------------------------ the end of its block

    async def commit_open(self) -> None:
        """Commit what is open where the driver does so at the end of a block (psycopg)."""
        if hasattr(self.driver_connection, "commit") and not self.driver_connection.closed:
            await self.commit()

    async def roll_back_open(self) -> None:
        """Roll back what is open where the driver does so at the end of a block (psycopg)."""
        if hasattr(self.driver_connection, "rollback") and not self.driver_connection.closed:
            await self.rollback()

    def _ended(self, status: Status) -> None:
        """End as `Noticed` does; the next transaction of the block belongs to it again, also before its first statement."""
        super()._ended(status)
        self._unused_session = note_opened(self)

    async def given_up(self, local: LocalTransaction | None) -> bool:
        """Return whether a COMMIT would be a rollback. asyncpg does not say, so a statement tries it where the commit matters."""
        if driver_of(self.driver_connection) != "asyncpg":
            return self._given_up()
        if local is None or not local.goes_by_its_end:
            return False
        try:
            await self.driver_connection.execute(_TRIED)
        except Exception as error:
            return error_classification.in_failed_transaction(error)
        return False


class AsyncProxyBlock(DriverBlock):
    """A block for ``async with``; asyncpg's also begins and ends by its methods."""

    _connection: AsyncProxyConnection

    async def __aenter__(self) -> Any:
        inner = bool(in_transaction(self._connection.driver_connection))
        entered = await self.driver_block.__aenter__()
        self.begun(inner=inner)
        return entered

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            if error is None:
                self.before_commit()
        except BaseException as veto:
            await self._end(partial(self.driver_block.__aexit__, type(veto), veto, veto.__traceback__), rolls_back=True)
            raise
        return await self._end(partial(self.driver_block.__aexit__, kind, error, trace), rolls_back=error is not None)

    async def start(self) -> None:
        """Begin, as asyncpg's ``start``."""
        inner = bool(in_transaction(self._connection.driver_connection))
        await self.driver_block.start()
        self.begun(inner=inner)

    async def commit(self) -> None:
        """End it, as asyncpg's ``commit``."""
        self.before_commit()
        await self._end(self.driver_block.commit, rolls_back=False)

    async def rollback(self) -> None:
        """Undo it, as asyncpg's ``rollback``."""
        await self._end(self.driver_block.rollback, rolls_back=True)

    async def _end(self, end: Callable[[], Awaitable[Any]], *, rolls_back: bool) -> Any:
        given_up = not rolls_back and not self._inner and await self._connection.given_up(self._connection.local)
        with self.ending(rolls_back=rolls_back or given_up):
            return await end()
