"""Any history of a session or a proxied connection: who was told of a commit has its row, and nobody else.

Each step that writes a row also registers a synchronization; at the end the rows of the database and what was told must agree.
"""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from halfmoon.events.dbapi import DbapiProvider, ProxyConnection, provider
from halfmoon.events.transaction import Status, active_transactions
from tests.events.hearing import Heard
from tests.events.real_databases import plain
from tests.events.sqlalchemy.savepoints import Savepoints
from tests.events.sqlalchemy.shops import Order, Shop

INSIDE = st.lists(
    st.sampled_from(["write", "write", "write", "fail", "savepoint", "release", "undo", "block", "broken block"]), max_size=6
)
ENDS = st.sampled_from(["commit", "commit", "commit", "rollback", "close"])
STEPS = st.lists(st.tuples(INSIDE, ENDS), min_size=1, max_size=5).map(
    lambda parts: [step for inside, end in parts for step in [*inside, end]]
)
_numbers = iter(range(1, 10**9))


def agree(heard: dict[int, Heard], rows: set[int]) -> None:
    """Check that exactly those were told of a commit whose rows are there, and that everybody was told of an end."""
    assert {number: one.status for number, one in heard.items()} == {
        number: Status.COMMITTED if number in rows else Status.ROLLED_BACK for number in heard
    }
    assert not active_transactions()


class Sessions(Savepoints):
    """Takes the steps with a session; SQLAlchemy's refusals of a step that is not possible now are part of a history."""

    def __init__(self, shop: Shop) -> None:
        super().__init__()
        self._shop = shop
        self._session: Session = shop.Session()
        self.heard: dict[int, Heard] = {}

    def take(self, step: str) -> None:
        try:
            getattr(self, step.replace(" ", "_"))()
        except SQLAlchemyError:
            self._session.rollback()

    def end(self) -> None:
        self._session.close()

    def write(self) -> None:
        number = next(_numbers)
        if len(self.heard) % 2:
            self._session.add(Order(id=number))
            self._session.flush()
        else:
            self._session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        self.heard[number] = self._shop.listen(self._session)

    def fail(self) -> None:
        """A statement fails, and the user goes on as if nothing had been."""
        with pytest.raises(SQLAlchemyError):
            self._session.execute(text("SELECT * FROM nowhere"))

    def rollback(self) -> None:
        if self._savepoints:
            self._savepoints.pop()
        self._session.rollback()

    def close(self) -> None:
        self._savepoints.clear()
        self._session.close()

    def block(self) -> None:
        with self._session.begin_nested():
            self.write()

    def broken_block(self) -> None:
        with pytest.raises(ZeroDivisionError), self._session.begin_nested():
            self.write()
            raise ZeroDivisionError


class Connections:
    """Takes the steps with a proxied connection of a driver."""

    def __init__(self, database: DbapiProvider) -> None:
        self._database = database
        self._connection: ProxyConnection = database.connect()
        self._savepoints = 0
        self.heard: dict[int, Heard] = {}

    def take(self, step: str) -> None:
        try:
            getattr(self, step.replace(" ", "_"))()
        except (sqlite3.Error, psycopg.Error):
            self.rollback()

    def end(self) -> None:
        self._connection.close()

    def write(self) -> None:
        number = next(_numbers)
        self._connection.execute(f"INSERT INTO orders VALUES ({number})")
        local = self._database.current(self._connection)
        assert local is not None
        local.register(heard := Heard())
        self.heard[number] = heard

    def fail(self) -> None:
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            self._connection.execute("SELECT * FROM nowhere")

    def savepoint(self) -> None:
        if self._savepoints == 0:
            self.write()  # sqlite3 begins no transaction for a savepoint by itself
        self._connection.execute(f"SAVEPOINT s{self._savepoints}")
        self._savepoints += 1

    def release(self) -> None:
        if self._savepoints:
            self._connection.execute(f"RELEASE SAVEPOINT s{self._savepoints - 1}")
            self._savepoints -= 1

    def undo(self) -> None:
        if self._savepoints:
            self._connection.execute(f"ROLLBACK TO s{self._savepoints - 1}")

    def commit(self) -> None:
        self._savepoints = 0
        self._connection.commit()

    def rollback(self) -> None:
        self._savepoints = 0
        self._connection.rollback()

    def close(self) -> None:
        self._savepoints = 0
        self._connection.close()
        self._connection = self._database.connect()

    def block(self) -> None:
        with self._database.connect() as connection:
            connection.execute("SELECT 1")
            assert connection.local is not None
            connection.local.register(heard := Heard())
        assert heard.status is Status.COMMITTED

    def broken_block(self) -> None:
        self._connection.execute("ROLLBACK")  # in SQL, where there may be nothing to roll back
        self._savepoints = 0


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    """With a BEGIN at the begin: pysqlite's own comes too late for savepoints."""
    engine = create_engine(database_url)
    if database_url.startswith("sqlite"):
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    yield Shop(engine)
    engine.dispose()


@pytest.mark.slow
def test_whatever_sessions_do_those_told_of_a_commit_have_their_rows(shop):
    @settings(max_examples=80)
    @given(STEPS)
    def history(steps: list[str]) -> None:
        walker = Sessions(shop)
        for step in steps:
            walker.take(step)
        walker.end()
        agree(walker.heard, set(shop.ids()))

    history()


def test_whatever_connections_do_those_told_of_a_commit_have_their_rows(deferring_url):
    def connect() -> Any:
        return sqlite3.connect(plain(deferring_url)) if "sqlite" in deferring_url else psycopg.connect(plain(deferring_url))

    database = provider(connect)
    with database.fresh() as rows:
        rows.run("CREATE TABLE orders (id INT PRIMARY KEY)")

    @settings(max_examples=50)
    @given(STEPS)
    def history(steps: list[str]) -> None:
        walker = Connections(database)
        for step in steps:
            walker.take(step)
        walker.end()
        with database.fresh() as rows:
            agree(walker.heard, {int(row[0]) for row in rows.all("SELECT id FROM orders")})

    history()
