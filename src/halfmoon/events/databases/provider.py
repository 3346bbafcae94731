"""What providers have in common: they take the base class, and say only what is particular about theirs. Knows no driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from halfmoon.events.databases import error_classification
from halfmoon.events.databases.database import Busy, Refused, Rows, Values
from halfmoon.events.tables import TableMissing, TableOutdated, named_in
from halfmoon.events.transaction import LocalTransaction

P = ParamSpec("P")
T = TypeVar("T")


class DatabaseProvider:
    """The part of a `Provider` that is alike for most: its statements block, wherever they run, and no test stands in for it."""

    schema = ""
    """Of the tables of events; empty: the one in which the database finds them."""

    def rows(self, transaction: LocalTransaction) -> Rows:
        """Return what runs statements in the user's own transaction. Of a subclass."""
        raise NotImplementedError

    def awaiting(self) -> Callable[[Awaitable[Any]], Any] | None:
        """Return None: nothing of it runs on an event loop."""
        return None

    def standing_in(self, transaction: LocalTransaction) -> Rows | None:
        """Return None: transactions of tests are ended as any."""
        return None

    async def run_async(self, transaction: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """As ``rows(transaction).run(…)``, called from an event loop."""
        return await self._called(transaction, self.rows(transaction).run, statement, values)

    async def all_async(
        self, transaction: LocalTransaction, statement: str, values: Values | None = None
    ) -> Sequence[Sequence[Any]]:
        """As ``rows(transaction).all(…)``, called from an event loop."""
        return await self._called(transaction, self.rows(transaction).all, statement, values)

    async def _called(self, transaction: LocalTransaction, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function, which runs a statement, where the transaction lives."""
        return function(*args, **kwargs)


@contextmanager
def mapped(statement: str = "") -> Iterator[None]:
    """Turn the errors of drivers into Refused, Busy, TableMissing and TableOutdated, where they are that for certain."""
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
