"""No effect twice, in a database of SQLAlchemy: the consumer's function gets the Session in whose transaction the note was made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.util import greenlet_spawn

from halfmoon.events.databases.database import Provider
from halfmoon.events.dedup.ledger import ConsumedKey, ConsumedRows, Ledger
from halfmoon.events.sqlalchemy import SessionProvider, begin, begin_async, provider
from halfmoon.events.sqlalchemy.engines import asyncio_module


class SessionLedger:
    """Lends Sessions of a sessionmaker, or Connections of an Engine, to plain functions."""

    is_async = False

    def __init__(self, provider: Provider, begin: Callable[[], AbstractContextManager[Any]]) -> None:
        self.provider = provider
        self._begin = begin
        self._notes = ConsumedRows()

    @contextmanager
    def lend(self, note: ConsumedKey) -> Iterator[Any]:
        """Lend a Session or Connection whose transaction has begun."""
        with self._begin() as session:
            transaction = self.provider.current(session)
            assert transaction is not None, "it has begun"
            self._notes.write(self.provider.rows(transaction), note)
            yield session


class AsyncSessionLedger:
    """Lends AsyncSessions of an async_sessionmaker, or AsyncConnections of an AsyncEngine, to coroutine functions."""

    is_async = True

    def __init__(self, provider: Provider, begin: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self.provider = provider
        self._begin = begin
        self._notes = ConsumedRows()

    @asynccontextmanager
    async def lend(self, note: ConsumedKey) -> AsyncIterator[Any]:
        """Lend an AsyncSession or AsyncConnection whose transaction has begun."""
        async with self._begin() as session:
            transaction = self.provider.current(session)
            assert transaction is not None, "it has begun"
            await greenlet_spawn(self._notes.write, self.provider.rows(transaction), note)
            yield session


def ledger(dedup: Any) -> Ledger | None:
    """Return the ledger of something of SQLAlchemy; None for what is none of the kinds it may be."""
    match dedup:
        case scoped_session():
            return ledger(dedup.session_factory)
        case sessionmaker():
            return SessionLedger(provider(dedup), dedup.begin)
        case Engine():
            return SessionLedger(provider(dedup), lambda: begin(dedup))
        case SessionProvider() if dedup.made_by is not None:
            return ledger(dedup.made_by)
    if (on_loop := asyncio_module()) is None:
        return None
    match dedup:
        case on_loop.async_scoped_session():
            return ledger(dedup.session_factory)
        case on_loop.async_sessionmaker():
            return AsyncSessionLedger(provider(dedup), dedup.begin)
        case on_loop.AsyncEngine():
            return AsyncSessionLedger(provider(dedup), lambda: begin_async(dedup))
    return None
