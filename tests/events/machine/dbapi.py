"""Drivers of PEP 249 behind `halfmoon.events.dbapi`, and the verbs that only they have."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from tests.events.machine.application import GROUP, Application
from tests.events.machine.stores import Store
from tests.events.machine.verbs import MYSQL, POSTGRESQL, SERVERS, SQLITE, verb
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

    def __init__(self, store: Store, driver: str) -> None:
        self.traits = frozenset({"dbapi", "blocking", driver})  # type: ignore[misc]  # each object is of one driver
        self.driver, self.connect = driver, connecting(store, driver)
        super().__init__(store)

    def _publisher(self) -> Publisher:
        self.database = provider(self.connect)
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
        """The driver's own connection, where the application has it."""
        self.lent = False
        """Whether the handle ends with its outermost block."""

    async def open(self) -> None:
        self.real = self.connect()
        self.connection = self.database.proxied(self.real)

    async def text(self, statement: str) -> None:
        cursor = self.connection.cursor()
        try:
            cursor.execute(statement)
            while self.store.dialect == MYSQL and cursor.nextset():
                pass
        finally:
            cursor.close()

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def close(self) -> None:
        try:
            self.connection.close()
        finally:
            self.forget()

    async def driver_connection(self) -> Any:
        return self.real if self.real is not None else self.connection

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


@verb("dbapi", opens=True)
async def open_connection(app: Connections) -> None:
    app.connection = app.database.connect()


@verb("dbapi", weight=2, opens=True)
async def open_with_connection(app: Connections) -> None:
    connection = app.database.connect()
    if hasattr(connection._real, "__enter__"):
        await app.enter(connection)
        app.lent = True
    app.connection = connection


@verb("dbapi", weight=2, opens=True)
async def open_from_a_pool(app: Connections) -> None:
    app.real = await app.enter(_checked_out(app.connect()))
    app.lent = True
    app.connection = app.database.proxied(app.real)


@verb("dbapi", opens=True)
async def open_in_a_transaction(app: Connections) -> None:
    """A connection that has run statements before it is wrapped."""
    app.real = app.connect()
    app.real.cursor().execute("INSERT INTO machine_effect VALUES ('before')")
    app.connection = app.database.proxied(app.real)


@verb("dbapi", opens=True)
async def open_autocommit(app: Connections) -> None:
    app.real = app.connect()
    _autocommit(app, app.real, True)
    app.connection = app.database.proxied(app.real)


if sys.version_info >= (3, 12):

    @verb("sqlite3", opens=True)
    async def open_with_the_attribute_autocommit(app: Connections) -> None:
        app.real = app.connect(autocommit=True)
        app.connection = app.database.proxied(app.real)

    @verb("sqlite3")
    async def set_the_attribute_autocommit(app: Connections) -> None:
        app.connection.autocommit = True


@verb("dbapi")
async def switch_autocommit_on(app: Connections) -> None:
    _autocommit(app, app.connection, True)


@verb("dbapi")
async def switch_autocommit_off(app: Connections) -> None:
    _autocommit(app, app.connection, False)


@verb("dbapi")
async def switch_autocommit_on_beneath(app: Connections) -> None:
    if app.real is not None:
        _autocommit(app, app.real, True)


def _autocommit(app: Connections, connection: Any, on: bool) -> None:
    if app.driver == "sqlite3":
        connection.isolation_level = None if on else ""
    elif app.driver in ("pymysql", "MySQLdb"):
        connection.autocommit(on)
    else:
        connection.autocommit = on


# ---------------------------------------------------------------- beneath the proxy


@verb("dbapi")
async def commit_beneath(app: Connections) -> None:
    if app.real is not None:
        app.real.commit()


@verb("dbapi")
async def rollback_beneath(app: Connections) -> None:
    if app.real is not None:
        app.real.rollback()


@verb("dbapi")
async def close_beneath(app: Connections) -> None:
    if app.real is not None:
        app.real.close()


@verb("dbapi")
async def run_savepoint_beneath(app: Connections) -> None:
    if app.real is not None:
        app.real.cursor().execute("SAVEPOINT a")


@verb("dbapi")
async def undo_savepoint_beneath(app: Connections) -> None:
    if app.real is not None:
        app.real.cursor().execute("ROLLBACK TO SAVEPOINT a")


@verb("dbapi")
async def enter_with_connection(app: Connections) -> None:
    if hasattr(await app.driver_connection(), "__enter__"):
        await app.enter(app.connection)


# ---------------------------------------------------------------- sqlite3


@verb("sqlite3")
async def executescript_of_the_connection(app: Connections) -> None:
    app.connection.executescript("INSERT INTO machine_effect VALUES ('script')")


@verb("sqlite3")
async def executescript_that_fails(app: Connections) -> None:
    """After its implicit commit."""
    app.connection.cursor().executescript("INSERT INTO machine_effect VALUES ('script'); SELEC 1")


@verb("sqlite3")
async def executescript_that_begins(app: Connections) -> None:
    app.connection.executescript("BEGIN; INSERT INTO machine_effect VALUES ('script')")


@verb("sqlite3")
async def execute_of_the_connection(app: Connections) -> None:
    app.connection.execute("COMMIT")


# ---------------------------------------------------------------- psycopg


@verb("psycopg", weight=2)
async def enter_transaction(app: Connections) -> None:
    await app.enter(app.connection.transaction())


@verb("psycopg")
async def enter_transaction_to_be_rolled_back(app: Connections) -> None:
    await app.enter(app.connection.transaction(force_rollback=True))


@verb("psycopg")
async def enter_transaction_beneath(app: Connections) -> None:
    if app.real is not None:
        await app.enter(app.real.transaction())


@verb("psycopg")
async def enter_pipeline(app: Connections) -> None:
    await app.enter(app.connection.pipeline())


@verb("psycopg")
async def composed_rollback_to(app: Connections) -> None:
    from psycopg import sql

    app.connection.execute(sql.SQL("ROLLBACK TO {}").format(sql.Identifier("a")))


@verb("psycopg")
async def composed_commit(app: Connections) -> None:
    from psycopg import sql

    app.connection.execute(sql.SQL("COMMIT"))


@verb("dbapi", dialects=(POSTGRESQL,))
async def two_phase_commit(app: Connections) -> None:
    app.connection.tpc_prepare()
    app.connection.tpc_commit()


@verb("dbapi", dialects=(POSTGRESQL,))
async def begin_two_phase(app: Connections) -> None:
    app.connection.tpc_begin("machine")


@verb("psycopg2")
async def reset_connection(app: Connections) -> None:
    app.connection.reset()


# ---------------------------------------------------------------- MariaDB


@verb("dbapi", dialects=(MYSQL,))
async def ping(app: Connections) -> None:
    """Reconnect where the connection was killed."""
    if app.driver == "pymysql":
        app.connection.ping(reconnect=True)
    elif app.driver == "mariadb":
        app.connection.reconnect()
    else:
        app.connection.ping()


@verb("MySQLdb")
async def query(app: Connections) -> None:
    app.connection.query("COMMIT")


@verb("pymysql")
async def query_of_the_connection(app: Connections) -> None:
    app.connection.query("COMMIT")


@verb("dbapi", dialects=(MYSQL,))
async def begin_of_the_connection(app: Connections) -> None:
    app.connection.begin()


@verb("dbapi", dialects=(SQLITE, *SERVERS))
async def executemany(app: Connections) -> None:
    """With a row that is there already: MariaDB keeps the rows before it."""
    cursor = app.connection.cursor()
    place = {"sqlite": "?"}.get(app.store.dialect, "?" if app.driver == "mariadb" else "%s")
    cursor.executemany(f"INSERT INTO machine_unique VALUES ({place})", [(90,), (1,)])
