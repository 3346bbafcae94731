"""Events in the transactions of any driver of PEP 249, through a thin proxy around its connections.

::

    database = provider(lambda: sqlite3.connect("shop.db"))
    events = Publisher(group="P_shop", nameserver="127.0.0.1:9876", provider=database)

    with database.connect() as connection:
        connection.execute("INSERT INTO orders VALUES (42)")
        events.publish("TP_ORDER", "EC_PAID", {"order_id": 42})

``with database.connection(pool) as connection`` takes one of a psycopg_pool, ``database.proxied(connection)`` wraps one
that is open already. `halfmoon.events.aio` serves asyncio connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.events.databases import sqlite
from halfmoon.events.databases.database import Busy, Lent, Rows, Values, bounding
from halfmoon.events.databases.given import check_connect, described
from halfmoon.events.databases.listening import CannotListen, ListeningConnection, blocking
from halfmoon.events.databases.own_connections import OwnConnections
from halfmoon.events.databases.provider import DatabaseProvider, mapped
from halfmoon.events.databases.unused_sessions import unused_sessions
from halfmoon.events.dbapi.driver import autocommits, dialect_of, in_transaction, paramstyle_of, plain_row, with_plain_rows, written
from halfmoon.events.dbapi.proxy import Noticed, ProxyConnection
from halfmoon.events.errors import NoTransaction, TransactionEnded
from halfmoon.events.tables import check_schema, in_schema, known_dialect
from halfmoon.events.transaction import LocalTransaction, Status

__all__ = ["DbapiProvider", "ProxyConnection", "provider"]


def provider(connect: Callable[[], Any], *, dialect: str = "", paramstyle: str = "", schema: str = "") -> DbapiProvider:
    """Return a provider for one database. ``connect`` opens a connection of the driver's own.

    ``dialect`` (``sqlite``, ``postgresql``, ``mysql`` or ``mariadb``) and ``paramstyle`` are derived from a driver that is known.
    ``schema`` is that of the tables of events; empty: the one in which the database finds them.

    Raises UsageError for another dialect, and for what is no schema.
    """
    return DbapiProvider(connect, dialect=known_dialect(dialect) if dialect else "", paramstyle=paramstyle, schema=schema)


class ProxyProvider(DatabaseProvider):
    """Base class of the providers of proxies: finds the transaction of a publish, and has connections of its own."""

    def __init__(self, connect: Callable[[], Any], *, dialect: str = "", paramstyle: str = "", schema: str = "") -> None:
        super().__init__()
        check_connect(connect)
        self._connect = connect
        self.schema = check_schema(schema, dialect)
        self._dialect = dialect
        self._paramstyle = paramstyle
        self._own: OwnConnections[Any] = OwnConnections(connect, keeps=lambda _: self.dialect != "sqlite")
        self._alone: Any = None
        """The connection of a database in memory, which no other reaches."""

    @property
    def dialect(self) -> str:
        """Dialect that was given, or that of the first connection."""
        return self._dialect

    # ------------------------------------------------------------ what publishers ask

    def _unused(self, after: int) -> list[Noticed]:
        handles = [session.handle for session in unused_sessions() if session.number > after]
        return [one for one in handles if isinstance(one, Noticed) and one.belongs_to(self) and one.has_next_transaction]

    def _begun(self, handle: Noticed) -> LocalTransaction:
        return handle.begun()

    def _runs(self, local: LocalTransaction) -> bool:
        """Return whether the driver has a transaction open, or opens one for the next statement; else its end was not seen."""
        reference = local.facts.get("connection")
        connection = reference() if reference is not None else None
        if local.active and connection is not None and not connection.has_next_transaction:
            connection.leave(Status.UNKNOWN)
        return local.active

    def _of(self, handle: object) -> LocalTransaction:
        if not isinstance(handle, Noticed) or not handle.belongs_to(self):
            raise UsageError(
                f"session= is {described(handle)}: give a connection from the provider's connection(), connect() or proxied()"
            )
        if handle.local is not None and self._runs(handle.local):
            return handle.local
        if not handle.unused or not handle.has_next_transaction:
            raise NoTransaction("the connection has no transaction: publish after its first statement and before its commit")
        return handle.begun()

    @contextmanager
    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Iterator[Rows]:
        """Return a block with a transaction of its own, on a connection of the provider's own."""
        if self._alone is not None:
            if in_transaction(self._alone):
                raise Busy("the database is in memory, and a transaction is open in its only connection")
            with self._committed(self._alone) as rows:
                yield rows
            return

        def begin(connection: Any) -> None:
            self._learn(connection)
            rows = self._rows(connection, self._style(connection))
            self._begin(rows, lock_wait_ms, explicit=autocommits(connection, self.dialect))

        with ExitStack() as stack:
            with mapped():
                connection = stack.enter_context(self._own.use(begin))
            yield stack.enter_context(self._committed(connection))

    def listening(self) -> ListeningConnection:
        """Open a connection for notifications, as `connect` opens one."""
        if self.dialect not in ("postgresql", ""):
            raise CannotListen(f"{self.dialect} sends no notifications")
        connection = self._connect()
        self._learn(connection)
        return blocking(connection)

    @property
    def inline(self) -> bool:
        """Whether the database is one in memory, of one connection."""
        return self._alone is not None

    def release(self) -> None:
        """Close the connections of its own that are idle."""
        self._own.release()

    # ------------------------------------------------------------ below

    @contextmanager
    def _committed(self, connection: Any) -> Iterator[Rows]:
        rows = self._rows(connection, self._style(connection))
        try:
            yield rows
            with mapped():
                if autocommits(connection, self.dialect):
                    if in_transaction(connection) is not False:
                        rows.run("COMMIT")
                else:
                    connection.commit()
        except BaseException:
            with suppress(Exception):
                connection.rollback()
            raise

    def _rows(self, connection: Any, paramstyle: str) -> DbapiRows:
        return DbapiRows(connection.cursor, self.dialect, paramstyle, self.schema)

    def _connection(self, transaction: LocalTransaction) -> Any:
        reference = transaction.facts.get("connection")
        connection = reference() if reference is not None else None
        if connection is None or not transaction.active or connection.local is not transaction:
            raise TransactionEnded("the connection's transaction has ended: publish before its commit or rollback")
        return connection

    def _begin(self, rows: DbapiRows, lock_wait_ms: int | None, *, explicit: bool) -> None:
        before, inside = bounding(self.dialect, lock_wait_ms)
        # the level of the next transaction: no old snapshot, no locked gaps
        level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED" if self.dialect == "mysql" else ""
        for statement in (before, level, "BEGIN" if explicit else "", inside):
            if statement:
                rows.run(statement)

    def _learn(self, connection: Any) -> None:
        self._dialect = self._dialect or dialect_of(connection)

    def _style(self, connection: Any) -> str:
        if not self._paramstyle:
            self._paramstyle = paramstyle_of(connection)
        return self._paramstyle


class DbapiProvider(ProxyProvider):
    """A `Provider` over proxies of connections. Safe to use from many threads, as far as the driver is."""

    def connect(self) -> ProxyConnection:
        """Open a connection whose transactions count."""
        return self.proxied(self._connect())

    @contextmanager
    def lend(self) -> Iterator[Lent]:
        """Return a block with a connection in a transaction, closed at its end; see `Provider.lend`."""
        with closing(self.connect()) as connection:
            explicit = autocommits(connection, self.dialect)
            if explicit:
                _execute(connection, "BEGIN")
            yield self.lent(connection)
            if explicit:
                _execute(connection, "COMMIT")
            else:
                connection.commit()

    @contextmanager
    def connection(self, pool: Any) -> Iterator[ProxyConnection]:
        """Lend a connection of a pool, such as psycopg_pool's, for a block, at whose end it is committed or rolled back."""
        with pool.connection() as real:
            connection = self.proxied(real)
            try:
                yield connection
                if not real.closed:  # as psycopg has it
                    connection.commit()
            except BaseException:
                with suppress(Exception):
                    connection.rollback()
                raise
            finally:
                connection.leave(Status.ROLLED_BACK)

    def proxied(self, connection: Any) -> ProxyConnection:
        """Return a proxy around an open connection of the driver. Use nothing but the proxy from now on."""
        if isinstance(connection, ProxyConnection):
            raise UsageError("this connection is already a proxy")
        if not hasattr(connection, "cursor") or isinstance(connection, type):
            raise UsageError(f"proxied({described(connection)}): give an open connection of the driver")
        self._learn(connection)
        if self.dialect == "sqlite" and sqlite.in_memory(connection):
            self._alone = connection
        return ProxyConnection(connection, self, self.dialect)

    # ------------------------------------------------------------ what publishers ask

    ways = (
        "Name the connection (publish(…, session=connection), events.bound_to(connection)), or publish where the one that is open "
        "was made (with database.connect() as connection: …, with database.connection(pool) as connection: …); with autocommit, "
        "between BEGIN and COMMIT"
    )

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return the `Rows` of the connection's own transaction."""
        connection = self._connection(transaction)
        return self._rows(connection, self._style(connection.driver_connection))


def _execute(connection: ProxyConnection, statement: str) -> None:
    with closing(connection.cursor()) as cursor:
        cursor.execute(statement)


class DbapiRows:
    """`Rows` over a driver's cursors. ``cursor`` makes one for each statement."""

    def __init__(self, cursor: Callable[[], Any], dialect: str, paramstyle: str, schema: str = "") -> None:
        self._cursor = cursor
        self.dialect = dialect
        self._paramstyle, self._schema = paramstyle, schema

    def run(self, statement: str, values: Values | None = None) -> int:
        """Run a statement and return the number of rows it touched; 0 for one that touches none."""
        with self._executed(statement, values) as cursor:
            return max(0, int(cursor.rowcount))

    def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        """Run a query and return its rows."""
        with self._executed(statement, values) as cursor:
            return [plain_row(row) for row in cursor.fetchall()] if cursor.description else []

    @contextmanager
    def _executed(self, statement: str, values: Values | None) -> Iterator[Any]:
        with mapped(statement):
            cursor = with_plain_rows(self._cursor())
            try:
                text, given = written(in_schema(statement, self._schema, self.dialect), values, self._paramstyle)
                cursor.execute(text, given) if given else cursor.execute(text)
                yield cursor
            finally:
                cursor.close()
