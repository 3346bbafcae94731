"""Drivers of PEP 249 behind `halfmoon.events.dbapi`, and the verbs that only they have."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from psycopg import sql
from psycopg_pool import ConnectionPool

from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from halfmoon.events.testing import MemoryBus
from tests.events.machine.application import GROUP, Application
from tests.events.machine.stores import Store
from tests.events.machine.verbs import MYSQL, POSTGRESQL, done, one, verb
from tests.events.real_databases import mysql_options, plain

MULTI_STATEMENTS = 1 << 16


def connecting(store: Store, driver: str) -> Callable[..., Any]:
    """Return what opens connections of a driver. Raises ImportError where it is not installed."""
    if driver in ("sqlite3", "psycopg"):
        return store.raw
    module = import_module(driver)
    if driver == "psycopg2":
        return lambda: module.connect(plain(store.url))
    options = mysql_options(store.url)
    if driver == "pymysql":
        options["client_flag"] = MULTI_STATEMENTS
    return lambda **more: module.connect(**options, **more)


class Connections(Application):
    """Connections of one driver; ``traits`` name it."""

    def __init__(self, store: Store, driver: str, bus: MemoryBus) -> None:
        found = {"dbapi", "blocking", "bare", driver, *(["transactions"] if driver == "psycopg" else [])}
        self.traits = frozenset(found)  # type: ignore[misc]  # each object is of one driver
        self._pool: ConnectionPool | None = None
        super().__init__(store, driver, bus)

    def _publisher(self) -> Publisher:
        self.connect: Callable[..., Any] = connecting(self.store, self.driver)
        self.database: Any = provider(self.connect)
        return Publisher(GROUP, transport=self.carrier, provider=self.database)

    @property
    def opened(self) -> bool:
        return self.connection is not None

    @property
    def handle(self) -> Any:
        return self.connection

    def forget(self) -> None:
        self.connection: Any = None
        self.real: Any = None
        """The driver's own connection."""
        self.lent = False
        """Whether the handle ends with its outermost block."""

    def drop(self) -> None:
        """As of any application. The driver mariadb never frees the frames of a statement that failed, nor what they refer to."""
        lost = None if self.connection is None else weakref.ref(self.connection)
        super().drop()
        if lost is not None and (kept := lost()) is not None:
            kept.close()

    async def open(self) -> None:
        self.wrap(self.connect())

    def wrap(self, real: Any) -> None:
        """Have a connection of the driver as the handle."""
        self.proxied(self.database.proxied(real))

    def proxied(self, connection: Any) -> None:
        """Have a proxy as the handle."""
        self.connection, self.real = connection, connection.driver_connection

    async def borrow(self, block: Any) -> None:
        """Have the connection that a block lends as the handle."""
        self.lent = True
        self.wrap(await self.enter(block))

    def pool(self) -> ConnectionPool:
        """Return a pool of psycopg_pool."""
        if self._pool is None:
            options = {"min_size": 1, "max_size": 4, "timeout": 2, "check": ConnectionPool.check_connection}
            self._pool = ConnectionPool(plain(self.store.url), open=True, **options)
        return self._pool

    def shut(self) -> None:
        super().shut()
        if self._pool is not None:
            self._pool.close()

    def autocommit(self, connection: Any, on: bool) -> None:
        """Switch it as the driver spells it."""
        if self.driver == "sqlite3":
            connection.isolation_level = None if on else ""
        elif self.driver in ("pymysql", "MySQLdb"):
            connection.autocommit(on)
        else:
            connection.autocommit = on

    async def text(self, statement: str) -> None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement)
            while self.store.dialect == MYSQL and cursor.nextset():
                pass
        finally:
            cursor.close()

    async def commit(self) -> None:
        await done(self.connection.commit())

    async def rollback(self) -> None:
        await done(self.connection.rollback())

    async def close(self) -> None:
        try:
            await done(self.connection.close())
        finally:
            self.forget()

    async def driver_connection(self) -> Any:
        return self.real

    def left(self) -> None:
        if self.lent:
            self.forget()


@contextmanager
def _checked_out(real: Any) -> Iterator[Any]:
    """Lend a connection as a pool does: committed or rolled back, then taken back, all beneath a proxy."""
    try:
        yield real
        real.commit()
    except BaseException:
        real.rollback()
        raise
    finally:
        real.close()


# ---------------------------------------------------------------- ways to begin


one("open connection", lambda app: app.proxied(app.database.connect()), "dbapi", opens=True)


@verb("dbapi", weight=2, opens=True)
async def open_with_connection(app: Connections) -> None:
    app.proxied(app.database.connect())
    if hasattr(app.real, "__enter__"):
        await app.enter(app.connection)
        app.lent = True


@verb("dbapi", opens=True)
async def open_in_a_transaction(app: Connections) -> None:
    """A connection that has run statements before it is wrapped."""
    real = app.connect()
    real.cursor().execute("INSERT INTO machine_effect VALUES ('before')")
    app.wrap(real)


@verb("dbapi", opens=True)
async def open_autocommit(app: Connections) -> None:
    real = app.connect()
    app.autocommit(real, True)
    app.wrap(real)


one("open from a pool", lambda app: app.borrow(_checked_out(app.connect())), "dbapi", weight=2, opens=True)
one("open from psycopg pool", lambda app: app.borrow(app.pool().connection()), "dbapi", "psycopg", weight=2, opens=True)
one("switch autocommit on", lambda app: app.autocommit(app.connection, True), "dbapi")
one("switch autocommit off", lambda app: app.autocommit(app.connection, False), "dbapi")
one("switch autocommit on beneath", lambda app: app.autocommit(app.real, True), "dbapi")

if sys.version_info >= (3, 12):
    one("open with the attribute autocommit", lambda app: app.wrap(app.connect(autocommit=True)), "sqlite3", opens=True)
    one("set the attribute autocommit", lambda app: setattr(app.connection, "autocommit", True), "sqlite3")


# ---------------------------------------------------------------- beneath the proxy


one("commit beneath", lambda app: app.real.commit(), "dbapi")
one("rollback beneath", lambda app: app.real.rollback(), "dbapi")
one("close beneath", lambda app: app.real.close(), "dbapi")
one("run savepoint beneath", lambda app: app.real.cursor().execute("SAVEPOINT a"), "dbapi")
one("undo savepoint beneath", lambda app: app.real.cursor().execute("ROLLBACK TO SAVEPOINT a"), "dbapi")
one("enter with connection", lambda app: hasattr(app.real, "__enter__") and app.enter(app.connection), "dbapi")


# ---------------------------------------------------------------- sqlite3


_SCRIPT = "INSERT INTO machine_effect VALUES ('script')"
one("executescript of the connection", lambda app: app.connection.executescript(_SCRIPT), "sqlite3")
one("executescript that begins", lambda app: app.connection.executescript(f"BEGIN; {_SCRIPT}"), "sqlite3")
# after its implicit commit
one("executescript that fails", lambda app: app.connection.cursor().executescript(f"{_SCRIPT}; SELEC 1"), "sqlite3")
one("execute of the connection", lambda app: app.connection.execute("COMMIT"), "sqlite3")


# ---------------------------------------------------------------- PostgreSQL


_UNDO = sql.SQL("ROLLBACK TO {}").format(sql.Identifier("a"))
one("enter transaction", lambda app: app.enter(app.connection.transaction()), "transactions", weight=2)
one("enter transaction to be rolled back", lambda app: app.enter(app.connection.transaction(force_rollback=True)), "psycopg")
one("enter transaction beneath", lambda app: app.enter(app.real.transaction()), "transactions")
one("enter pipeline", lambda app: app.enter(app.connection.pipeline()), "psycopg")
one("composed rollback to", lambda app: app.connection.execute(_UNDO), "psycopg")
one("composed commit", lambda app: app.connection.execute(sql.SQL("COMMIT")), "psycopg")
one("begin two phase", lambda app: app.connection.tpc_begin("machine"), "dbapi", dialects=(POSTGRESQL,))
one("reset connection", lambda app: app.connection.reset(), "psycopg2")


@verb("dbapi", dialects=(POSTGRESQL,))
async def two_phase_commit(app: Connections) -> None:
    app.connection.tpc_prepare()
    app.connection.tpc_commit()


# ---------------------------------------------------------------- MariaDB


one("ping", lambda app: app.connection.ping(reconnect=True), "pymysql")  # reconnects where the connection was killed
one("ping of the driver", lambda app: app.connection.ping(), "MySQLdb")
one("query of the connection", lambda app: app.connection.query("COMMIT"), "pymysql")
one("query", lambda app: app.connection.query("COMMIT"), "MySQLdb")
one("begin of the connection", lambda app: app.connection.begin(), "dbapi", dialects=(MYSQL,))


@verb("mariadb")
async def reconnect(app: Connections) -> None:
    """The session that the driver opens commits each statement by itself until it is told again not to."""
    app.connection.reconnect()
    app.autocommit(app.real, True)
    app.autocommit(app.real, False)


@verb("dbapi")
async def executemany(app: Connections) -> None:
    """With a row that is there already: MariaDB keeps the rows before it."""
    place = "?" if app.driver in ("sqlite3", "mariadb") else "%s"
    app.connection.cursor().executemany(f"INSERT INTO machine_unique VALUES ({place})", [(90,), (1,)])
