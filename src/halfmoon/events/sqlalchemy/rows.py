"""Statements of events over SQLAlchemy: in a connection that is given, or in a short transaction of their own on an engine.

Engines may be async: their connections live on an event loop, so the short transactions run on one that this module keeps, in a
thread of its own, with connections of its own. Binds no transactions to contexts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, TextClause, text
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.util import greenlet_spawn
from sqlalchemy.util.concurrency import in_greenlet

from halfmoon.errors import UsageError
from halfmoon.events.databases import sqlite
from halfmoon.events.databases.database import Busy, Rows, Values, bounding
from halfmoon.events.databases.listening import CannotListen, ListeningConnection
from halfmoon.events.databases.own_loop import LOOP
from halfmoon.events.databases.provider import mapped
from halfmoon.events.dbapi.driver import autocommits, driver_of, in_transaction
from halfmoon.events.errors import NoTransaction
from halfmoon.events.forks import hear_of_forks
from halfmoon.events.sqlalchemy.listening import listening
from halfmoon.events.tables import in_schema

P = ParamSpec("P")
T = TypeVar("T")

_OURS, _WAIT, _LEVEL = "halfmoon_own", "halfmoon_wait", "halfmoon_level"

_OR_PLAIN = ", or publish(…, transactional=False)"

_BLOCKING = "this transaction is one of an event loop: use `await publish_async(…)` in it"


class ConnectionRows:
    """`Rows` in the transaction of a connection. ``get`` returns it, at each statement; ``on_loop``: it is one of an event loop.

    ``schema`` is that of the tables, unless the connection's ``schema_translate_map`` has another in its place. ``call`` calls a
    function where the connection lives.
    """

    def __init__(
        self,
        get: Callable[[], Connection],
        dialect: str,
        schema: str = "",
        *,
        on_loop: bool = False,
        call: Callable[[Callable[[], Any]], Any] = lambda function: function(),
    ) -> None:
        self._get, self._call = get, call
        self.dialect, self._schema = dialect, schema
        self._on_loop = on_loop

    def run(self, statement: str, values: Values | None = None) -> int:
        """Run a statement and return the number of rows it touched; 0 for one that touches none."""
        with mapped(statement):
            count: int = self._call(lambda: self._execute(statement, values).rowcount)
            return max(0, count)

    def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows."""
        with mapped(statement):
            rows: list[tuple[Any, ...]] = self._call(lambda: [tuple(row) for row in self._execute(statement, values)])
            return rows

    def _execute(self, statement: str, values: Values | None) -> CursorResult[Any]:
        if self._on_loop and not in_greenlet():
            raise UsageError(_BLOCKING)
        connection = self._get()
        translated: Mapping[str | None, str | None] = connection.get_execution_options().get("schema_translate_map") or {}
        schema = translated.get(self._schema or None, self._schema) or ""
        return connection.execute(_text(in_schema(statement, schema, self.dialect)), dict(values or {}))


def dialect_of(engine: Engine) -> str:
    """Return the dialect of an engine as `Rows.dialect` has it: MariaDB's is MySQL's."""
    return "mysql" if engine.dialect.name == "mariadb" else engine.dialect.name


def refuse_autocommit(connection: Connection) -> None:
    """Raise UsageError for a connection that commits each statement by itself: its rows and events would not end together."""
    level = connection.get_execution_options().get("isolation_level")
    if (level or getattr(connection.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT":
        raise NoTransaction(
            f"there is no transaction: the engine has isolation_level='AUTOCOMMIT'; use an engine without it{_OR_PLAIN}"
        )
    if connection.dialect.name == "sqlite" and sqlite.commits_by_itself(connection.connection.driver_connection):
        raise NoTransaction(
            "there is no transaction: the driver's connection has isolation_level=None (or autocommit=True), and nothing sends a "
            f"BEGIN; leave that out, or send it when SQLAlchemy's event 'begin' says so{_OR_PLAIN}"
        )
    if _commits_by_itself(connection):
        raise NoTransaction(
            f"there is no transaction: the driver's connection has autocommit on; open it without autocommit{_OR_PLAIN}"
        )


def _commits_by_itself(connection: Connection) -> bool:
    """Return whether the driver says that each statement commits by itself. asyncpg and SQLite's drivers always say so outside."""
    driver, dialect = connection.connection.driver_connection, dialect_of(connection.engine)
    if dialect == "sqlite" or driver_of(driver) == "asyncpg":
        return False
    return autocommits(driver, dialect) and not in_transaction(driver)


@lru_cache(maxsize=256)
def _text(statement: str) -> TextClause:
    return text(statement)


# ---------------------------------------------------------------- a transaction of its own


class Fresh:
    """Short transactions on connections of the publisher's own. Safe to use from many threads; from none that runs an event loop.

    A pool of the user's may be as small as one connection, belong to an event loop, or to the parent of this process.
    """

    def __init__(self, engine: Engine, open_elsewhere: Callable[[], bool], schema: Callable[[], str]) -> None:
        """``open_elsewhere``: whether a transaction of the user's is open; asked only where all share one connection.

        ``schema`` returns that of the tables.
        """
        self._schema = schema
        self.shared = isinstance(engine.pool, StaticPool | SingletonThreadPool)
        self._users, self._own, self._pid = engine, engine, 0
        self._parents: list[Engine] = []
        self._is_async = engine.dialect.is_async
        self._open_elsewhere = open_elsewhere
        self._one = threading.RLock()
        self._here = threading.local()
        hear_of_forks(self)

    @property
    def _engine(self) -> Engine:
        if not self.shared and self._pid != os.getpid():
            with self._one:
                if self._pid != os.getpid():
                    if self._pid:  # a child leaves the connections to its parent, and never drops them: some would be closed
                        self._parents.append(self._own)
                    users = self._users
                    options = dict(users.get_execution_options())
                    self._own = Engine(users.pool.recreate(), users.dialect, users.url, execution_options=options)
                    self._pid = os.getpid()
        return self._own

    def forked(self) -> None:
        """Replace the lock, which a thread of the parent may hold."""
        self._one = threading.RLock()

    def used_here(self) -> None:
        """Note that a transaction of the user's runs in this thread: of SQLite in memory, others may not see its database."""
        self._here.used = True

    def release(self) -> None:
        """Close the connections that are idle."""
        if not self.shared and self._pid == os.getpid():
            with suppress(Exception):
                self._call(self._own.dispose)

    def listening(self) -> ListeningConnection:
        """Open a connection for notifications, see `Provider.listening`."""
        if self.shared:
            raise CannotListen("all share one connection")
        return listening(self._engine, self._call)

    @contextmanager
    def block(self, lock_wait_ms: int | None) -> Iterator[Rows]:
        """Open a transaction for a block, see `Provider.fresh`."""
        if isinstance(self._engine.pool, SingletonThreadPool) and not getattr(self._here, "used", False):
            raise UsageError(
                "each thread has a SQLite database of its own here, in memory, and no check can see another's: use a file, or "
                "create_engine(…, poolclass=StaticPool, connect_args={'check_same_thread': False})"
            )
        if not self.shared:
            with self._transaction(lock_wait_ms) as rows:
                yield rows
            return
        with self._one:
            if self._open_elsewhere():
                raise Busy("all share one connection, and a transaction is open in it")
            with self._transaction(lock_wait_ms) as rows:
                yield rows

    @contextmanager
    def _transaction(self, lock_wait_ms: int | None) -> Iterator[Rows]:
        with mapped():
            connection = self._call(self._connect, lock_wait_ms)
        try:
            yield ConnectionRows(lambda: connection, dialect_of(self._engine), self._schema(), call=self._call)
            with mapped():
                self._call(connection.commit)
        finally:
            self._call(_close, connection)

    def _connect(self, lock_wait_ms: int | None) -> Connection:
        connection = self._engine.connect()
        try:
            if not self.shared and dialect_of(self._engine) == "postgresql":
                _end_begun(connection)
                if lock_wait_ms is None and _reads_alone(connection):
                    return connection.execution_options(isolation_level="AUTOCOMMIT")
            if not self.shared:
                _bound_waits(connection, lock_wait_ms)
            if connection.dialect.name == "sqlite" and sqlite.commits_by_itself(connection.connection.driver_connection):
                connection.exec_driver_sql(sqlite.BEGIN)
            if self._engine.dialect.driver == "aiosqlite" and not self.shared:
                connection.detach()  # each holds a thread, which should not outlive its use
        except BaseException:
            _close(connection)
            raise
        return connection

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if not self._is_async or (self.shared and in_greenlet()):
            return function(*args, **kwargs)
        return LOOP.run(greenlet_spawn(lambda: function(*args, **kwargs)))


class OuterTransaction:
    """The transaction that a test has put around everything, in place of the database; see `halfmoon.events.sqlalchemy.testing`.

    It is read in the thread that ends a transaction inside it, and asked in the thread that began the test.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._thread = threading.get_ident()

    def rows(self) -> Rows | None:
        """Return what reads in it; None where a connection of an event loop cannot be used."""
        if self.connection.dialect.is_async and not in_greenlet():
            return None
        return ConnectionRows(lambda: self.connection, dialect_of(self.connection.engine))

    @contextmanager
    def block(self, *, unless: bool) -> Iterator[Rows]:
        """Open a savepoint in it for a block, ``unless`` something else uses it. Raises Busy."""
        rows = self.rows()
        if unless or rows is None or threading.get_ident() != self._thread:
            raise Busy("a transaction of a test stands in for the database, and is in use")
        with mapped(), self.connection.begin_nested():
            yield rows


def _close(connection: Connection) -> None:
    """Roll back what was not committed and give a connection back; a broken one is dropped."""
    try:
        connection.rollback()
    except Exception:
        connection.invalidate()
    finally:
        connection.close()


def _end_begun(connection: Connection) -> None:
    """Commit what a listener of the user's has begun on a connection, such as a SET: no driver changes its level inside."""
    if (driver := connection.connection.dbapi_connection) is not None:
        driver.commit()


def _reads_alone(connection: Connection) -> bool:
    """Return whether one query of a connection, without a transaction, makes no serializable transaction of others fail."""
    if _LEVEL not in connection.info:
        connection.info[_LEVEL] = connection.exec_driver_sql("SHOW default_transaction_isolation").scalar_one()
        connection.rollback()
    return bool(connection.info[_LEVEL] != "serializable")


def _bound_waits(connection: Connection, lock_wait_ms: int | None) -> None:
    """Bound the lock waits of a connection of ours, and have it use READ COMMITTED where the database has that level.

    PostgreSQL is told in each transaction: behind a pool of its own, such as PgBouncer, the next one may have another session.
    """
    dialect, noted = dialect_of(connection.engine), connection.info
    if dialect in {"postgresql", "mysql"} and not noted.get(_OURS):
        driver = connection.connection.dbapi_connection
        connection.dialect.set_isolation_level(driver, "READ COMMITTED")  # type: ignore[arg-type]  # it is connected
        noted[_OURS] = dialect == "mysql"  # a look resets it in PostgreSQL
    before, inside = bounding(dialect, lock_wait_ms)
    if dialect == "sqlite":  # before the transaction begins: a BEGIN IMMEDIATE of the user's waits, too
        cursor = connection.connection.cursor()
        cursor.execute(before)
        cursor.close()
    elif before and noted.get(_WAIT) != before:
        noted[_WAIT] = before
        connection.exec_driver_sql(before)
    if inside:
        connection.exec_driver_sql(inside)
