"""An outbox in a real database for tests: rows put in by hand, and what is there now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy
from sqlalchemy.pool import NullPool

from halfmoon.events.checks.tokens import create_tables
from halfmoon.events.databases.database import Rows
from halfmoon.events.databases.provider import DatabaseProvider
from halfmoon.events.event import Event
from halfmoon.events.outbox import write
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.tables import OUTBOX, SENT
from halfmoon.events.transaction import LocalTransaction
from halfmoon.model import Message
from tests.waiting import until

BY_HAND = LocalTransaction("by hand")


class Looked(DatabaseProvider):
    """A relay's provider of an outbox that counts the looks that came to their end."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self.looks, self._real = 0, outbox.provider

    @property
    def dialect(self) -> str:
        return self._real.dialect

    @contextmanager
    def fresh(self, **options: Any) -> Iterator[Rows]:
        try:
            with self._real.fresh(**options) as rows:
                yield rows
        finally:
            self.looks += 1

    def until_more(self, count: int) -> None:
        """Wait until the relay has looked so often again."""
        begun = self.looks
        until(lambda: self.looks >= begun + count, f"{count} looks")


class Outbox:
    """A database with an outbox. ``provider`` is a relay's; rows are put in through connections of their own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sqlalchemy.create_engine(url, poolclass=NullPool)
        self.relays_engine = sqlalchemy.create_engine(url)
        if url.startswith("sqlite"):
            with self.engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        self.provider = provider(self.relays_engine)
        create_tables(self.provider, (OUTBOX, SENT))

    def add(self, connection, event_id: str, *, topic: str = "TP_ORDER", key: str = "", body: bytes = b"", now_ms: int = 0) -> None:
        """Write an event as part of a transaction."""
        event = Event(id=event_id, topic=topic, code="EC_PAID", key=key)
        keys = [event_id, key] if key else [event_id]
        message = Message(topic, body or event_id.encode(), tag="EC_PAID", keys=keys)
        statement, values = write(self.provider, BY_HAND, message, event, now_ms)
        connection.execute(sqlalchemy.text(statement), values)

    def put(self, *event_ids: str, **fields) -> None:
        """Write events in one transaction of their own."""
        with self.engine.begin() as connection:
            for one in event_ids:
                self.add(connection, one, **fields)

    def ask(self, question: str):
        """Return the rows of a query."""
        with self.engine.begin() as connection:
            return connection.execute(sqlalchemy.text(question)).all()

    def tell(self, statement: str) -> None:
        """Run a statement."""
        with self.engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement))

    @property
    def ids(self) -> list[str]:
        """The ids of the events that are there, in order."""
        return [one for (one,) in self.ask("SELECT event_id FROM halfmoon_outbox ORDER BY seq")]

    @property
    def kept(self) -> list[str]:
        """The ids of the events that were sent and are kept, in order."""
        return [one for (one,) in self.ask("SELECT event_id FROM halfmoon_sent ORDER BY seq")]

    def close(self) -> None:
        """Let go of the database."""
        self.engine.dispose()
        self.relays_engine.dispose()
