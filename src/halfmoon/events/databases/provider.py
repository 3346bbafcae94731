"""Base class of providers: finds the transaction of a publish, and turns drivers' errors into ours. Knows no driver by name."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from typing import Any, ParamSpec, TypeVar

from halfmoon.events.databases import error_classification
from halfmoon.events.databases.database import Busy, Lent, Provider, Refused, Rows, Values
from halfmoon.events.databases.listening import CannotListen, ListeningConnection
from halfmoon.events.errors import AmbiguousTransaction
from halfmoon.events.tables import TableMissing, TableOutdated, named_in
from halfmoon.events.transaction import LocalTransaction, Status, active_transactions

P = ParamSpec("P")
T = TypeVar("T")


LOCK_WAIT_MS = 10_000
"""Longest time that a consumer waits for a transaction that processes the same event; then the event comes again later."""


class DatabaseProvider:
    """Base class of a `Provider`: its statements block, its database sends no notifications, and no test stands in for it.

    A subclass has ``dialect``, ``ways``, `_of`, `rows` and `fresh`; everything else may stay as it is here.
    """

    schema = ""
    """Schema of the tables of events; empty: the one in which the database finds them."""

    handles = "connections"
    """Plural of the handles that a publish names, for errors."""

    def __init__(self) -> None:
        self._dropped: deque[LocalTransaction] = deque()

    @property
    def dialect(self) -> str:
        """Return the database's dialect; see `Database.dialect`. Of a subclass."""
        raise NotImplementedError

    @property
    def ways(self) -> str:
        """Return how to say which transaction is meant; see `Provider.ways`. Of a subclass."""
        raise NotImplementedError

    @property
    def is_async(self) -> bool:
        """Return False: its transactions are those of threads."""
        return False

    @property
    def inline(self) -> bool:
        """Return False: other connections reach its database."""
        return False

    def current(self, handle: object = None) -> LocalTransaction | None:
        """Return the active transaction of this context, or of a handle; see `Provider.current`.

        Among several, the innermost counts, and those around it that have something to commit. So does a handle that was opened in
        this context and has had no statement: its transaction begins here. One that has had a transaction counts again with its
        next. More than one: AmbiguousTransaction.
        """
        if self._dropped:
            self._end_dropped()
        if handle is not None:
            return self._of(handle)
        active = [local for local in active_transactions() if local.source is self and self._runs(local)]
        unused = self._unused(active[-1].number if active else 0)
        outer = active if unused else active[:-1]
        active = [local for local in outer if self._counts(local)] + ([] if unused else active[-1:])
        if (count := len(active) + len(unused)) > 1:
            raise AmbiguousTransaction(
                f"{count} {self.handles} are open here: say which one (publish(…, session={self.handles[:-1]})), or end the others"
            )
        return self._begun(unused[0]) if unused else active[0] if active else None

    def _of(self, handle: Any) -> LocalTransaction:
        """Return the transaction of a handle, which begins where it has had no statement yet. Of a subclass."""
        raise NotImplementedError

    def _unused(self, after: int) -> list[Any]:
        """Return the handles that were opened in this context after a number, and whose next statement begins a transaction."""
        return []

    def _begun(self, handle: Any) -> LocalTransaction:
        """Begin the first transaction of a handle, as its first statement would."""
        raise NotImplementedError

    def _runs(self, local: LocalTransaction) -> bool:
        """Return whether a transaction has not ended unseen."""
        return True

    def _counts(self, local: LocalTransaction) -> bool:
        """Return whether a transaction around the innermost one has something to commit."""
        return True

    # ------------------------------------------------------------ handles that are dropped

    def dropped(self, local: LocalTransaction) -> None:
        """Note that a handle went away. Called by the garbage collector, wherever that runs."""
        if local.active:
            self._dropped.append(local)

    def _end_dropped(self) -> None:
        """End the transactions of handles that were dropped without an end."""
        with suppress(IndexError):
            while True:
                self._finish(self._dropped.popleft())

    def _finish(self, local: LocalTransaction) -> None:
        local.end(Status.ROLLED_BACK)

    # ------------------------------------------------------------ statements

    def fresh(self, *, lock_wait_ms: int | None = 1_000) -> AbstractContextManager[Rows]:
        """Return a block with a transaction of its own; see `Database.fresh`. Of a subclass."""
        raise NotImplementedError

    def lend(self) -> AbstractContextManager[Lent] | AbstractAsyncContextManager[Lent]:
        """Return a block that lends the `Rows` of a transaction of its own; see `Provider.lend`."""
        return self._lend_rows()

    @contextmanager
    def _lend_rows(self) -> Iterator[Lent]:
        with self.fresh(lock_wait_ms=LOCK_WAIT_MS) as rows:
            yield Lent(rows, rows)

    def lent(self, handle: object) -> Lent:
        """Return a handle, in whose transaction statements run, as a function is lent it."""
        transaction = self.current(handle)
        assert transaction is not None, "it has begun"
        return Lent(handle, RowsOnLoop(self, transaction) if self.is_async else self.rows(transaction))

    def listening(self) -> ListeningConnection:
        """Raise CannotListen."""
        raise CannotListen(f"a {type(self).__name__} opens no connection for notifications")

    def release(self) -> None:
        """Do nothing: it keeps no connections."""

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return the `Rows` of the user's own transaction. Of a subclass."""
        raise NotImplementedError

    def awaiting(self) -> Callable[[Awaitable[Any]], Any] | None:
        """Return None: nothing of it runs on an event loop."""
        return None

    def standing_in(self, transaction: LocalTransaction) -> Rows | None:
        """Return None: transactions of tests are ended as any."""
        return None

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """Run a statement as ``rows(transaction).run(…)`` does, called from an event loop."""
        return await self._called(transaction, self.rows(transaction).run, statement, values)

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run a query as ``rows(transaction).all(…)`` does, called from an event loop."""
        return await self._called(transaction, self.rows(transaction).all, statement, values)

    async def _called(self, transaction: LocalTransaction, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, which runs a statement, where the transaction lives."""
        return function(*args, **kwargs)


class RowsOnLoop:
    """Statements in a transaction of an event loop: the methods of `Rows` as coroutine functions."""

    def __init__(self, provider: Provider, transaction: LocalTransaction) -> None:
        self.dialect = provider.dialect
        self._provider, self._transaction = provider, transaction

    async def run(self, statement: str, values: Values | None = None) -> int:
        """Run a statement; see `Rows.run`."""
        return await self._provider.run_async(self._transaction, statement, values)

    async def all(self, statement: str, values: Values | None = None) -> Sequence[Sequence[Any]]:
        """Run a query; see `Rows.all`."""
        return await self._provider.all_async(self._transaction, statement, values)


@contextmanager
def mapped(statement: str = "") -> Iterator[None]:
    """Turn the errors of drivers into Refused, Busy, TableMissing and TableOutdated, where their facts leave no doubt."""
    try:
        yield
    except (Refused, Busy, TableMissing):
        raise
    except Exception as error:
        said = str(getattr(error, "orig", None) or error)  # SQLAlchemy's own text has the values
        if error_classification.duplicate(error):
            raise Refused(said) from error
        if error_classification.busy(error):
            raise Busy(said) from error
        if error_classification.no_table(error) and (table := named_in(statement)):
            raise TableMissing(table) from error
        if error_classification.no_column(error) and (table := named_in(statement)):
            raise TableOutdated(table) from error
        raise
