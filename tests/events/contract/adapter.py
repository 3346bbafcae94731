"""A database with its provider and a publisher: what an application does with its transactions, and what a promise looks at.

Promises are functions that block. Those of an asyncio provider run in a greenlet of SQLAlchemy's, in one task of an event loop.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from sqlalchemy import make_url

from halfmoon.events import Event, Published, Publisher
from halfmoon.events.databases.database import Busy, Provider, Values
from halfmoon.events.testing import MemoryBus
from halfmoon.events.transaction import LocalTransaction, Status, active_transactions
from tests.events.hearing import Heard
from tests.events.real_databases import connects

T, C = "TP_ORDER", "EC_PAID"
_TABLES = ["CREATE TABLE orders (id INT PRIMARY KEY)"]
_DEFERRED = ["CREATE TABLE lines (id INT PRIMARY KEY, order_id INT REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)"]
KILLS = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({}, 5000)"),
    "mysql": ("SELECT CONNECTION_ID()", "KILL {}"),
}


class Lost(Exception):
    """The answer to a COMMIT did not come."""


class Interrupted(BaseException):
    """As KeyboardInterrupt, which an event loop would take for one."""


class Adapter:
    """A database with its provider, and a publisher on a bus. ``traits`` say which promises it can be asked for."""

    traits: ClassVar[frozenset[str]] = frozenset()
    lost: ClassVar[type[Exception]] = Lost
    """What a driver raises when its connection breaks."""
    killed: ClassVar[tuple[type[Exception], ...]] = (Busy,)
    """What a statement of the provider's own raises whose connection the server has ended."""
    provider: Provider

    def __init__(self, url: str, name: str = "") -> None:
        self.url, self.name = url, name
        self.dialect = make_url(url).get_backend_name()
        self.bus, self.events = MemoryBus(), None
        self.marks: dict[int, Heard] = {}
        self._look()
        self.connect()
        for statement in _TABLES + ([] if self.dialect == "mysql" else _DEFERRED):
            self.beside(statement)
        Publisher("P_tables", transport=self.bus, provider=self.provider).create_tables()

    def _look(self) -> None:
        """Open the connection of `beside`."""
        self._beside = connects(self.url)()
        if self.dialect == "sqlite":
            prepared(self._beside)

    def run(self, promise: Callable[[], None]) -> None:
        """Run a promise on empty tables, in a context of its own; another test may have killed the server since the last one."""
        self._beside.close()
        self._look()
        for table in ["orders", "halfmoon_event", "halfmoon_outbox"] + ([] if self.dialect == "mysql" else ["lines"]):
            self.beside(f"DELETE FROM {table}")
        self.marks.clear()
        self.publisher()
        try:
            contextvars.copy_context().run(self._within, promise)
        finally:
            self.events.close()
            self.shut()

    def _within(self, promise: Callable[[], None]) -> None:
        promise()

    def publisher(self, **options: Any) -> Publisher:
        """Make a publisher on a new bus the one that `mark` uses."""
        if self.events is not None:
            self.events.close()
        self.bus = MemoryBus()
        self.events = Publisher("P_shop", transport=self.bus, provider=self.provider, timeout_ms=500, **options)
        return self.events

    # ------------------------------------------------------------ what an application does; of a subclass

    def connect(self) -> None:
        """Make the provider."""
        raise NotImplementedError

    def block(self) -> AbstractContextManager[Any]:
        """Return a block that is a transaction; it gives the handle."""
        raise NotImplementedError

    def savepoint(self, handle: Any) -> AbstractContextManager[Any]:
        """Return a block that is a savepoint."""
        raise NotImplementedError

    def execute(self, handle: Any, statement: str) -> Any:
        """Run a statement in the handle's transaction; return the first value of its first row, if there is one."""
        raise NotImplementedError

    def open(self) -> Any:
        """Open a handle whose first statement begins a transaction."""
        raise NotImplementedError

    def commit(self, handle: Any) -> None:
        handle.commit()

    def rollback(self, handle: Any) -> None:
        handle.rollback()

    def close(self, handle: Any) -> None:
        handle.close()

    def committing(self, handle: Any, commit: Callable[[Callable[[], None]], None]) -> None:
        """Have ``commit(plain)`` stand for the driver's commit of this handle."""
        raise NotImplementedError

    def shut(self) -> None:
        """Give connections back at the end of a promise."""

    # ------------------------------------------------------------ what a promise looks at

    def mark(self, number: int, handle: Any = None, *, named: bool = False) -> Heard:
        """Write a row, publish a transactional and a plain event of it, and listen, all in the transaction that is open here.

        ``named``: in the one of the handle.
        """
        session = handle if named else None
        local = self.provider.current(session)
        assert local is not None, "no transaction is found"
        local.register(heard := Heard())
        self.execute(handle, f"INSERT INTO orders VALUES ({number})")
        self.publish(number, session=session)
        self.publish(number, session=session, transactional=False)
        self.marks[number] = heard
        return heard

    def publish(self, payload: Any, *, by: Any = None, **options: Any) -> str:
        """Publish an event, ``by`` the publisher or another; return its delivery."""
        given = (payload,) if isinstance(payload, Event) else (T, C, payload)
        return str(self._published(by or self.events, *given, **options).delivery)

    def _published(self, events: Any, *given: Any, **options: Any) -> Published:
        return events.publish(*given, **options)  # type: ignore[no-any-return]

    def run_in(self, local: LocalTransaction, statement: str, values: Values | None = None) -> int:
        """Run a statement of events in a transaction of the user's."""
        return self.provider.rows(local).run(statement, values)

    def seen(self) -> list[Any]:
        """The payloads that consumers see now, in order."""
        return [one.payload for one in self.bus.events()]

    def agree(self, *numbers: int, unknown: bool = False) -> None:
        """Check that of the marks exactly these were committed: rows, both events, and what was told.

        ``unknown``: nobody can know that they were, and their plain events are dropped.
        """
        self.bus.check_now()
        assert self.rows() == sorted(numbers)
        plain = 0 if unknown else 1
        assert sorted(self.seen()) == sorted([number for number in numbers for _ in range(1 + plain)])
        assert not self.bus.pending
        for number, heard in self.marks.items():
            committed = Status.UNKNOWN if unknown else Status.COMMITTED
            rolled_back = {Status.ROLLED_BACK, committed} - {Status.COMMITTED}
            assert heard.status is committed if number in numbers else heard.status in rolled_back, (number, heard.told)
        assert not active_transactions()

    def rows(self) -> list[int]:
        """The orders that are committed."""
        return self.beside("SELECT id FROM orders ORDER BY id")

    def beside(self, statement: str) -> list[Any]:
        """Run a statement on a connection that has nothing to do with the provider; return the first column."""
        cursor = self._beside.cursor()
        cursor.execute(statement)
        found = [row[0] for row in cursor.fetchall()] if cursor.description else []
        self._beside.commit()
        return found

    def kill(self, handle: Any) -> None:
        """Have the server end the connection of a handle."""
        asks, ends = KILLS[self.dialect]
        self.beside(ends.format(self.execute(handle, asks)))


def prepared(connection: Any) -> Any:
    """Set up a connection to SQLite: keys are checked, and no disk is waited for."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = OFF")
    return connection
