"""One adapter for each provider: what an application does with its transactions, under the same names for all of them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from importlib import import_module
from itertools import count
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import OperationalError, connections, transaction
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool
from sqlalchemy.util import await_only, greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from halfmoon.events import Published, aio, dbapi, sqlalchemy
from halfmoon.events import django as project
from halfmoon.events.aio import AsyncProvider
from halfmoon.events.databases.database import Busy, Values
from halfmoon.events.transaction import LocalTransaction
from tests.events.contract.adapter import Adapter, prepared
from tests.events.django import conftest  # configures the project
from tests.events.real_databases import connects, for_asyncio, mysql_options, plain

assert conftest.settings.configured

_numbers = count(1)


# ---------------------------------------------------------------- SQLAlchemy


class Core(Adapter):
    """Blocks of an engine."""

    traits = frozenset({"several", "named"})

    def connect(self) -> None:
        self.engine: Any = create_engine(self.url, poolclass=NullPool)
        self.provider = sqlalchemy.provider(self.engine)
        self._listen(self.engine)

    def _address(self, url: str) -> URL:
        return make_url(url).set(drivername=self.name) if self.name else make_url(url)

    def _listen(self, engine: Engine) -> None:
        if self.dialect == "sqlite":
            event.listen(engine, "connect", lambda connection, _: [connection.execute(f"PRAGMA {one}") for one in _PRAGMAS])

    def block(self) -> AbstractContextManager[Any]:
        return sqlalchemy.begin(self.engine)

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        return handle.begin_nested()  # type: ignore[no-any-return]

    def execute(self, handle: Any, statement: str) -> Any:
        result = handle.execute(text(statement))
        return result.scalar() if result.returns_rows else None

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        dialect = handle.get_bind().dialect if hasattr(handle, "get_bind") else handle.dialect
        plain = dialect.do_commit

        def once(connection: Any) -> None:
            dialect.do_commit = plain
            commit(lambda: plain(connection))

        dialect.do_commit = once


class Sessions(Core):
    """Sessions of a sessionmaker."""

    traits = frozenset({"open", "several", "named", "unused", "dropped"})

    def connect(self) -> None:
        self.engine = create_engine(self._address(self.url), poolclass=NullPool)
        self.maker: Any = sessionmaker(self.engine)
        self.provider = sqlalchemy.provider(self.maker)
        self._listen(self.engine)

    def block(self) -> AbstractContextManager[Any]:
        return self.maker.begin()  # type: ignore[no-any-return]

    def open(self) -> Any:
        return self.maker()


_PRAGMAS = ("foreign_keys = ON", "synchronous = OFF")


class _OnLoop(Core):
    """What the asyncio side does otherwise: each step is awaited in the greenlet."""

    def _within(self, promise: Callable[[], None]) -> None:
        async def spawned() -> None:
            await greenlet_spawn(promise)

        asyncio.run(spawned())

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        return _awaited(handle.begin_nested)

    def execute(self, handle: Any, statement: str) -> Any:
        result = await_only(handle.execute(text(statement)))
        return result.scalar() if result.returns_rows else None

    def commit(self, handle: Any) -> None:
        await_only(handle.commit())

    def rollback(self, handle: Any) -> None:
        await_only(handle.rollback())

    def close(self, handle: Any) -> None:
        await_only(handle.close())


class AsyncCore(_OnLoop):
    """Blocks of an async engine."""

    def connect(self) -> None:
        self.engine = create_async_engine(for_asyncio(self.url), poolclass=NullPool)
        self.provider = sqlalchemy.provider(self.engine)
        self._listen(self.engine.sync_engine)

    def _listen(self, engine: Engine) -> None:
        if self.dialect == "sqlite":
            event.listen(engine, "connect", lambda connection, _: [connection.run_async(_on(one)) for one in _PRAGMAS])

    def block(self) -> AbstractContextManager[Any]:
        return _awaited(lambda: sqlalchemy.begin_async(self.engine))


def _on(pragma: str) -> Callable[[Any], Any]:
    return lambda connection: connection.execute(f"PRAGMA {pragma}")


class AsyncSessions(AsyncCore):
    """AsyncSessions of an async_sessionmaker."""

    traits = frozenset({"open", "several", "named", "unused"})

    def connect(self) -> None:
        self.engine = create_async_engine(self._address(for_asyncio(self.url)), poolclass=NullPool)
        self.maker: Any = async_sessionmaker(self.engine)
        self.provider = sqlalchemy.provider(self.maker)
        self._listen(self.engine.sync_engine)

    def block(self) -> AbstractContextManager[Any]:
        return _awaited(self.maker.begin)

    def open(self) -> Any:
        return self.maker()


@contextmanager
def _awaited(opened: Callable[[], Any]) -> Iterator[Any]:
    """Return an asynchronous block as one that blocks."""
    block = opened()
    handle = await_only(block.__aenter__())
    try:
        yield handle
    except BaseException as error:
        if not await_only(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        await_only(block.__aexit__(None, None, None))


# ---------------------------------------------------------------- Django


class Alias(Adapter):
    """One alias of ``DATABASES``; the handle is the alias. ``open`` switches autocommit off."""

    traits = frozenset({"open", "named"})
    lost = OperationalError
    atomic: Callable[..., Any] = staticmethod(transaction.atomic)

    def connect(self) -> None:
        url = make_url(self.url)
        self.using = f"{type(self).__name__.lower()}_{self.dialect}"
        connections.settings = connections.configure_settings({**connections.settings, self.using: {
            "ENGINE": "django.db.backends." + {"sqlite": "sqlite3"}.get(self.dialect, self.dialect), "NAME": url.database,
            "HOST": url.host or "", "PORT": str(url.port or ""), "USER": url.username or "", "PASSWORD": url.password or "",
        }})  # fmt: skip
        self.provider = project.provider(self.using)

    def block(self) -> AbstractContextManager[Any]:
        @contextmanager
        def within() -> Iterator[str]:
            with self.atomic(using=self.using):
                yield self.using

        return within()

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        return self.atomic(using=self.using)  # type: ignore[no-any-return]

    def execute(self, handle: Any, statement: str) -> Any:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0] if cursor.description else None

    def open(self) -> str:
        transaction.set_autocommit(False, using=self.using)
        return self.using

    def commit(self, handle: Any) -> None:
        transaction.commit(using=self.using)

    def rollback(self, handle: Any) -> None:
        transaction.rollback(using=self.using)

    def close(self, handle: Any) -> None:
        connections[self.using].close()

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        connection = connections[self.using]
        plain = connection._commit

        def once() -> None:
            del connection._commit
            commit(plain)

        connection._commit = once

    def shut(self) -> None:
        with suppress(AttributeError):
            connections[self.using].close()
            del connections[self.using]


class AliasOfOurs(Alias):
    """As `Alias`, with Halfmoon's ``atomic``."""

    atomic = staticmethod(project.atomic)


# ---------------------------------------------------------------- drivers of PEP 249


class _Sqlite(sqlite3.Connection):
    """A connection whose methods can be replaced."""


class Connections(Adapter):
    """Proxied connections of one driver. Its blocks are ours where the driver's own do not end a transaction."""

    traits = frozenset({"open", "several", "named", "unused", "dropped"})

    def connect(self) -> None:
        if self.dialect == "sqlite":
            path = make_url(self.url).database
            self.provider = dbapi.provider(lambda: prepared(sqlite3.connect(path, timeout=1, factory=_Sqlite)))
        elif self.dialect == "postgresql":
            self.provider = dbapi.provider(connects(self.url))
        else:
            module = import_module(self.name)
            self.provider = dbapi.provider(lambda: module.connect(**mysql_options(self.url)))

    def open(self) -> Any:
        return self.provider.connect()  # type: ignore[attr-defined]

    @contextmanager
    def block(self) -> Iterator[Any]:
        connection = self.open()
        self.execute(connection, "SELECT 1")
        with closing(connection):
            if self.dialect != "mysql":  # its drivers' blocks do not all commit
                with connection:
                    yield connection
                return
            try:
                yield connection
                connection.commit()
            except BaseException:
                connection.rollback()
                raise

    @contextmanager
    def savepoint(self, handle: Any) -> Iterator[None]:
        name = f"s{next(_numbers)}"
        self.execute(handle, f"SAVEPOINT {name}")
        try:
            yield
        except BaseException:
            self.execute(handle, f"ROLLBACK TO SAVEPOINT {name}")
            raise
        self.execute(handle, f"RELEASE SAVEPOINT {name}")

    def execute(self, handle: Any, statement: str) -> Any:
        with closing(handle.cursor()) as cursor:
            cursor.execute(statement)
            return cursor.fetchone()[0] if cursor.description else None

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        plain = handle.driver_connection.commit

        def once() -> None:
            handle.driver_connection.commit = plain
            commit(plain)

        handle.driver_connection.commit = once


class Blocks(Connections):
    """As `Connections`, whose transactions and savepoints are blocks of psycopg, with autocommit."""

    traits = frozenset({"several", "named"})

    def connect(self) -> None:
        self.provider = dbapi.provider(connects(self.url, autocommit=True))

    @contextmanager
    def block(self) -> Iterator[Any]:
        with closing(self.open()) as connection:
            self.running = connection.transaction()
            with self.running:
                yield connection

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        return handle.transaction()  # type: ignore[no-any-return]

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        plain = self.running.driver_block

        def once(*error: Any) -> Any:
            return plain.__exit__(*error) if any(error) else commit(lambda: plain.__exit__(*error))

        self.running.driver_block = SimpleNamespace(__exit__=once)


# ---------------------------------------------------------------- asyncio drivers of PostgreSQL


class Asyncpg(_OnLoop):
    """Connections of asyncpg, whose transactions are its blocks. Publishing is awaited, too."""

    traits = frozenset({"several", "named", "native"})
    killed = (Busy, asyncpg.InternalClientError)  # where the server's last words cross the statement
    connecting: Callable[[str], Awaitable[Any]] = staticmethod(asyncpg.connect)

    def connect(self) -> None:
        self.provider: AsyncProvider = aio.provider(lambda: self.connecting(plain(self.url)))
        self.blocks: dict[Any, Any] = {}

    def open(self) -> Any:
        return await_only(self.provider.open())

    @contextmanager
    def block(self) -> Iterator[Any]:
        connection = self.open()
        self.blocks[connection] = block = connection.transaction()
        try:
            with _awaited(lambda: block):
                yield connection
        finally:
            del self.blocks[connection]
            self.close(connection)

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        return _awaited(handle.transaction)

    def execute(self, handle: Any, statement: str) -> Any:
        run = handle.fetchval if statement.startswith("SELECT") else handle.execute
        return await_only(run(statement))

    def _published(self, events: Any, *given: Any, **options: Any) -> Published:
        if in_greenlet():
            return await_only(events.publish_async(*given, **options))
        return super()._published(events, *given, **options)

    def run_in(self, local: LocalTransaction, statement: str, values: Values | None = None) -> int:
        return await_only(self.provider.run_async(local, statement, values))

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        block = self.blocks[handle]
        plain = block.driver_block

        async def once(*error: Any) -> Any:
            ending = partial(plain.__aexit__, *error)
            return await (ending() if any(error) else greenlet_spawn(commit, lambda: await_only(ending())))

        block.driver_block = SimpleNamespace(__aexit__=once)


class AsyncPsycopg(Asyncpg):
    """Asyncio connections of psycopg: their first statement begins a transaction, too."""

    traits = frozenset({"open", "several", "named", "unused", "native"})
    connecting = staticmethod(psycopg.AsyncConnection.connect)

    def execute(self, handle: Any, statement: str) -> Any:
        cursor = await_only(handle.execute(statement))
        return await_only(cursor.fetchone())[0] if cursor.description else None


ADAPTERS: dict[str, tuple[type[Adapter], str, str]] = {
    "session on sqlite": (Sessions, "sqlite", ""),
    "session on postgresql": (Sessions, "postgresql", ""),
    "session on mariadb": (Sessions, "mysql", ""),
    "session on mysqlclient": (Sessions, "mysql", "mysql+mysqldb"),
    "session on mariadb's connector": (Sessions, "mysql", "mariadb+mariadbconnector"),
    "core on sqlite": (Core, "sqlite", ""),
    "core on postgresql": (Core, "postgresql", ""),
    "async session on aiosqlite": (AsyncSessions, "sqlite", ""),
    "async session on psycopg": (AsyncSessions, "postgresql", ""),
    "async session on aiomysql": (AsyncSessions, "mysql", ""),
    "async session on asyncpg": (AsyncSessions, "postgresql", "postgresql+asyncpg"),
    "async core on aiosqlite": (AsyncCore, "sqlite", ""),
    "async core on psycopg": (AsyncCore, "postgresql", ""),
    "django on sqlite": (Alias, "sqlite", ""),
    "django on postgresql": (Alias, "postgresql", ""),
    "django on mariadb": (Alias, "mysql", ""),
    "our atomic on sqlite": (AliasOfOurs, "sqlite", ""),
    "our atomic on postgresql": (AliasOfOurs, "postgresql", ""),
    "sqlite3": (Connections, "sqlite", ""),
    "psycopg": (Connections, "postgresql", ""),
    "psycopg's blocks": (Blocks, "postgresql", ""),
    "pymysql": (Connections, "mysql", "pymysql"),
    "MySQLdb": (Connections, "mysql", "MySQLdb"),
    "mariadb": (Connections, "mysql", "mariadb"),
    "asyncpg": (Asyncpg, "postgresql", ""),
    "async psycopg": (AsyncPsycopg, "postgresql", ""),
}
"""By name: the adapter, the database that it needs, and its driver where several are promised."""

DRIVERS = {"session on mysqlclient", "session on mariadb's connector", "mariadb"}
"""Those that differ from others in nothing but the driver."""

_MODULES = {"mysql+mysqldb": "MySQLdb", "mariadb+mariadbconnector": "mariadb", "postgresql+asyncpg": "asyncpg"}


def traits_of(name: str) -> frozenset[str]:
    """Return what a promise may ask of an adapter: its own traits, and those of its database."""
    kind, dialect, _ = ADAPTERS[name]
    of_database = {"sqlite": {"deferred"}, "postgresql": {"deferred", "server", "postgresql"}, "mysql": {"server"}}
    blocking = frozenset() if "native" in kind.traits else {"blocking"}
    return kind.traits | of_database[dialect] | blocking | {dialect}


def made(name: str, url: str) -> Adapter:
    """Return a new adapter on an empty database; skip where its driver is not installed."""
    kind, _, driver = ADAPTERS[name]
    if driver:
        module = _MODULES.get(driver, driver)
        pytest.importorskip(module, reason=f"the driver {module} is not installed: tools/debian.sh compiles it")
    return kind(url, driver)
