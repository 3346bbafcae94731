"""Provider for Django's databases: finds the active transaction, and runs statements in it or in a short one of their own.

One provider for each alias of ``DATABASES``. Sends nothing and decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import Atomic, atomic
from django.utils.connection import ConnectionDoesNotExist

from halfmoon.errors import UsageError
from halfmoon.events.databases.database import Busy, Lent, Refused, Values, bounding
from halfmoon.events.databases.given import described
from halfmoon.events.databases.listening import CannotListen, ListeningConnection, blocking
from halfmoon.events.databases.other_blocks import OpenBlock, find_blocks_with
from halfmoon.events.databases.own_connections import OwnConnections
from halfmoon.events.databases.provider import DatabaseProvider, mapped
from halfmoon.events.dbapi import DbapiRows
from halfmoon.events.django.tracking import DjangoTransaction, in_transaction, tracked
from halfmoon.events.errors import TransactionEnded
from halfmoon.events.tables import TableMissing, TableOutdated
from halfmoon.events.transaction import LocalTransaction, adopt, find_with

P = ParamSpec("P")
T = TypeVar("T")


class NotMigrated(TableMissing):
    """A table of events is not in a database of the project, or not in today's form."""

    def __init__(self, table: str, using: str, what: str) -> None:
        super(TableMissing, self).__init__(
            f"the table {table} {what} in the database {using!r}: run manage.py migrate halfmoon_events --database {using}"
        )
        self.table = table


class DjangoProvider(DatabaseProvider):
    """`Provider` of one database of ``DATABASES``. Safe to use from many threads.

    A transaction belongs to the connection of its thread, as Django has it; in `atomic`, plain or ours, in a request with
    ``ATOMIC_REQUESTS``, or with autocommit switched off. A handle is the database's alias, or its connection.
    """

    def __init__(self, using: str) -> None:
        super().__init__()
        self.using = using
        try:
            self._dialect: str = connections[using].vendor
        except ConnectionDoesNotExist:
            raise UsageError(f"no database {using!r:.60}: DATABASES of the settings has {sorted(connections)}") from None
        self._own = OwnConnections(self._open, keeps=lambda connection: connection.vendor != "sqlite")

    def _open(self) -> BaseDatabaseWrapper:
        connection = connections.create_connection(self.using)
        connection.inc_thread_sharing()
        return connection

    def __repr__(self) -> str:
        return f"DjangoProvider({self.using!r})"

    @property
    def dialect(self) -> str:
        """Return the database's dialect, as Django calls it."""
        return self._dialect

    @property
    def ways(self) -> str:
        """Return how a publish says which transaction it belongs to; see `Provider.ways`."""
        return (
            f"Publish it inside `with transaction.atomic(using={self.using!r}):`, in the thread that opened the block, or with "
            "autocommit of this database switched off"
        )

    def current(self, handle: object = None) -> LocalTransaction | None:
        """Return the transaction that runs on this thread's connection; None for none. It is followed and bound from now on.

        Raises UsageError for a handle that is another database; TransactionEnded inside `atomic` when the connection was closed.
        """
        if handle is not None and getattr(handle, "alias", handle) != self.using:
            raise UsageError(
                f"session= is {described(handle)}, and these events belong to the database {self.using!r}: leave it out, or give "
                "this alias, or its connection"
            )
        connection = connections[self.using]
        if connection.connection is None and not connection.settings_dict["AUTOCOMMIT"]:
            connection.ensure_connection()  # its first statement would begin a transaction, and so does what is published before it
        if connection.in_atomic_block and all(map(_is_of_testcase, connection.atomic_blocks)):
            return None  # in production there is none, either
        if not in_transaction(connection):
            tracked(connection).is_over()
            return self._of_another_thread(connection)
        if connection.closed_in_transaction:
            raise TransactionEnded(f"the connection to {self.using!r} was closed inside the atomic block: leave the block")
        followed = tracked(connection)
        if (transaction := followed.transaction) is None:
            transaction = followed.begin(self)
        else:
            adopt(transaction)
        return None if transaction.suspended else transaction

    def find(self) -> None:
        """Follow and bind the transaction that runs on this thread's connection, if there is one."""
        if self.using in connections:
            with suppress(TransactionEnded):
                self.current()

    def _of_another_thread(self, connection: BaseDatabaseWrapper) -> LocalTransaction | None:
        """Return the transaction that this context inherited, as a coroutine does that `async_to_sync` runs inside `atomic`."""
        transaction = super().current()
        if isinstance(transaction, DjangoTransaction) and transaction.connection is connection:
            return None  # bound, and over: nobody saw its end
        return transaction

    def rows(self, transaction: LocalTransaction) -> DjangoRows:
        """Return the `Rows` of an active transaction, whose statements commit with it."""
        assert isinstance(transaction, DjangoTransaction)
        return DjangoRows(transaction.connection, transaction)

    def standing_in(self, transaction: LocalTransaction) -> DjangoRows | None:
        """Return `Rows` in the transaction that Django's TestCase has put around a test; None elsewhere."""
        blocks = connections[self.using].atomic_blocks
        return DjangoRows(connections[self.using]) if any(map(_is_of_testcase, blocks)) else None

    async def _called(self, transaction: LocalTransaction, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the thread in which Django runs what is not asynchronous."""
        return await sync_to_async(function, thread_sensitive=True)(*args, **kwargs)

    @contextmanager
    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> Iterator[DjangoRows]:
        """Return a block with a connection and a transaction of its own: committed at its end, rolled back by an exception.

        Raises Busy when a lock or the connection cannot be had.
        """
        if self.inline:
            if in_transaction(connections[self.using]):
                raise Busy("the database is in memory, and a transaction is open in its only connection")
            with atomic(self.using):
                yield DjangoRows(connections[self.using])
            return
        with ExitStack() as stack:
            with mapped():
                connection = stack.enter_context(self._own.use(lambda connection: _begin(connection, lock_wait_ms)))
            yield DjangoRows(connection)
            with mapped():
                connection.commit()

    @contextmanager
    def lend(self) -> Iterator[Lent]:
        """Return a block inside `atomic`: functions use models as usual, and get the connection; see `Provider.lend`."""
        with fresh_connections(), atomic(self.using):
            connection = connections[self.using]
            yield self.lent(connection)
            if (followed := tracked(connection).transaction) is not None and not connection.needs_rollback:
                followed.before_commit()

    def listening(self) -> ListeningConnection:
        """Open a connection for notifications, as the project's settings say, but in no pool of Django's."""
        if self.dialect != "postgresql":
            raise CannotListen(f"{self.dialect} sends no notifications")
        configured = connections[self.using].settings_dict
        options = {name: value for name, value in configured["OPTIONS"].items() if name != "pool"}
        wrapper = type(connections[self.using])({**configured, "OPTIONS": options}, self.using)
        wrapper.connect()
        return blocking(wrapper.connection)

    @property
    def inline(self) -> bool:
        """Whether the database is one in memory, which only the connection of a transaction reaches."""
        connection = connections[self.using]
        return connection.vendor == "sqlite" and connection.settings_dict["NAME"] == ":memory:"

    def release(self) -> None:
        """Close the connections of its own that are idle."""
        self._own.release()


class DjangoRows(DbapiRows):
    """Statements on one connection, whose cursors take ``%(name)s`` on every database."""

    def __init__(self, connection: BaseDatabaseWrapper, transaction: DjangoTransaction | None = None) -> None:
        """``transaction`` is the user's in which they run; None: one of their own."""
        super().__init__(connection.cursor, connection.vendor, "pyformat")
        self._connection = connection
        self._transaction = transaction

    @contextmanager
    def _executed(self, statement: str, values: Values | None) -> Iterator[Any]:
        """Mark a transaction of the user's as to be rolled back where a row is refused, as a refused ``save`` of a model does."""
        if self._transaction is not None and not self._transaction.active:
            raise TransactionEnded("the local transaction has ended")
        try:
            with super()._executed(statement, values) as cursor:
                yield cursor
        except Refused:
            if self._transaction is not None and self._connection.in_atomic_block:
                self._connection.set_rollback(True)
            raise
        except TableMissing as exc:
            what = "has the form of an older release" if isinstance(exc, TableOutdated) else "is not there"
            raise NotMigrated(exc.table, self._connection.alias, what) from exc.__cause__


def provider(using: str = DEFAULT_DB_ALIAS) -> DjangoProvider:
    """Return the provider of a database: one an alias. Raises UsageError for an alias that ``DATABASES`` has not."""
    return _provider(using)


def provider_of(given: Any, *, bind: Any = None, schema: str | None = None) -> DjangoProvider | None:
    """Return the provider of an alias; None for anything else."""
    if not isinstance(given, str) or not given.isidentifier():
        return None
    if bind is not None or schema is not None:
        raise UsageError("bind= and schema= are for sessions: DATABASES says where the database of an alias is")
    return provider(given)


@lru_cache(maxsize=100)
def _provider(using: str) -> DjangoProvider:
    made = DjangoProvider(using)
    find_with(made.find)
    return made


def _is_of_testcase(block: Atomic) -> bool:
    """Return whether Django's TestCase put a block around a test. Follows Django's check of ``durable`` blocks."""
    return bool(getattr(block, "_from_testcase", False))


def _open_blocks() -> Iterator[OpenBlock]:
    """Yield the blocks of `atomic` that are open in this thread, without those of Django's own TestCase."""
    if not settings.configured:
        return
    for connection in connections.all(initialized_only=True):
        if not all(map(_is_of_testcase, connection.atomic_blocks)):
            yield OpenBlock(connection.alias, f"transaction.atomic(using={connection.alias!r})")


find_blocks_with(_open_blocks)


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close database connections that are broken or too old, before and after a block, as Django does around a request."""
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def _begin(connection: BaseDatabaseWrapper, lock_wait_ms: int | None) -> None:
    """Open a connection and begin a transaction on it; see `Database.fresh`."""
    before, inside = bounding(connection.vendor, lock_wait_ms)
    _run(connection, before)
    connection.set_autocommit(False, force_begin_transaction_with_broken_autocommit=True)
    _run(connection, inside)


def _run(connection: BaseDatabaseWrapper, statement: str) -> None:
    if statement:
        with connection.cursor() as cursor:
            cursor.execute(statement)
