"""Shops that sell through an outbox: over an engine, an async engine, or a driver of PEP 249."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg2
import sqlalchemy
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Publisher, dbapi
from halfmoon.events.sqlalchemy import provider
from tests.events.fakes import FakeTransport
from tests.events.real_databases import connects, for_asyncio, plain

T, C = "TP_ORDER", "EC_PAID"


class Undo(Exception):
    """Leaves a block so that it is rolled back."""


class Shop:
    """A publisher with an outbox. ``begin`` opens a block that is a transaction; ``release`` gives connections back.

    Without ``options`` rows wait for a relay of the test's own.
    """

    def __init__(self, opened: Any, begin: Callable[[], Any], release: Callable[[], None] = lambda: None, **options: Any) -> None:
        self.provider, self.begin, self.release = opened, begin, release
        options = options or {"transport": FakeTransport(), "relay": False}
        self.publisher = Publisher("P_shop", provider=opened, mode="outbox", **options)
        self.publisher.create_tables()

    def sell(self, count: int = 1, *, topic: str = T, commits: bool = True, **fields: Any) -> list[str]:
        """Publish events in one transaction, and return their ids."""
        told = []
        with suppress(Undo), self.begin():
            for at in range(count):
                told.append(self.publisher.publish(topic, C, at, **fields).event_id)
            if not commits:
                raise Undo
        return told

    def close(self) -> None:
        self.publisher.close()
        self.release()


class LoopShop(Shop):
    """A shop over an async engine."""

    def sell(self, count: int = 1, *, topic: str = T, commits: bool = True, **fields: Any) -> list[str]:
        async def sold() -> list[str]:
            told = []
            with suppress(Undo):
                async with self.begin():
                    for at in range(count):
                        told.append((await self.publisher.publish_async(topic, C, at, **fields)).event_id)
                    if not commits:
                        raise Undo
            return told

        return asyncio.run(sold())


def shop(url: str, kind: str, driver: str = "psycopg", **options: Any) -> Shop:
    """Return a shop over an ``engine``, an ``async engine`` or a ``driver``. ``driver``: which one, for PostgreSQL."""
    if kind == "engine":
        engine = sqlalchemy.create_engine(url.replace("+psycopg:", f"+{driver}:"))
        session = sessionmaker(engine)
        return Shop(provider(session), session.begin, engine.dispose, **options)
    if kind == "async engine":
        on_loop = create_async_engine(for_asyncio(url).replace("+psycopg:", f"+{driver}:"), poolclass=sqlalchemy.NullPool)
        made = async_sessionmaker(on_loop)
        return LoopShop(provider(made), made.begin, **options)
    database = dbapi.provider(connects(url) if driver == "psycopg" else lambda: psycopg2.connect(plain(url)))
    return Shop(database, lambda: _block(database.connect()), **options)


@contextmanager
def _block(connection: Any) -> Iterator[Any]:
    try:
        yield connection
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    finally:
        connection.close()
