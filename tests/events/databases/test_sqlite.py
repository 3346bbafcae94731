"""A SAVEPOINT as the first statement of SQLite: its RELEASE must not commit, or a rollback recalls the event alone."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.events.dbapi import provider
from halfmoon.events.sqlalchemy import begin
from halfmoon.events.testing import MemoryBus

T, C = "TP_ORDER", "EC_PAID"
INSERT = "insert into orders values (1)"


@pytest.fixture
def file(tmp_path: Path) -> str:
    found = sqlite3.connect(tmp_path / "shop.db")
    found.execute("create table orders (id integer)")
    found.close()
    return str(tmp_path / "shop.db")


def orders(file: str) -> list[int]:
    found = sqlite3.connect(file)
    try:
        return [row[0] for row in found.execute("select id from orders")]
    finally:
        found.close()


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_the_release_of_a_savepoint_that_came_first_as_text_commits_nothing(file: str, commits: bool, kind: str):
    engine, bus = create_engine(f"sqlite:///{file}"), MemoryBus()
    Made = sessionmaker(engine)
    given, opened = (Made, Made.begin) if kind == "session" else (engine, lambda: begin(engine))
    with Publisher("P_shop", transport=bus, session=given) as events:
        events.create_tables()
        with suppress(ZeroDivisionError), opened() as found:
            for statement in ("-- of my own\nsavepoint mine", INSERT, "release mine"):
                found.execute(text(statement))
            for transactional in (True, False):
                events.publish(T, C, 1, transactional=transactional)
            if not commits:
                raise ZeroDivisionError
        bus.check_now()
    assert (orders(file), [one.payload for one in bus.events()]) == (([1], [1, 1]) if commits else ([], []))
    engine.dispose()


def test_a_connection_on_which_nothing_begins_a_transaction_is_refused(file: str):
    bus = MemoryBus()
    engine = create_engine(f"sqlite:///{file}", connect_args={"isolation_level": None})
    Made = sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made) as events:
        events.create_tables()
        with pytest.raises(UsageError, match="isolation_level=None"), Made.begin() as session:
            session.execute(text("select 1"))
            events.publish(T, C, 1, transactional=True)
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))  # SQLAlchemy's own recipe
        with Made.begin() as session:
            with session.begin_nested():
                session.execute(text(INSERT))
            events.publish(T, C, 2, transactional=True)
    assert [one.payload for one in bus.events()] == [2]
    assert orders(file) == [1]
    engine.dispose()


def test_with_autocommit_a_plain_drivers_savepoint_is_the_transaction(file: str):
    bus = MemoryBus()
    database = provider(lambda: sqlite3.connect(file, isolation_level=None))
    with Publisher("P_shop", transport=bus, provider=database) as events:
        events.create_tables()
        connection = database.connect()
        for ending in ("RELEASE mine", "ROLLBACK"):
            connection.execute("SAVEPOINT mine")
            connection.execute(INSERT)
            events.publish(T, C, ending, transactional=True)
            connection.execute(ending)
            assert not connection.in_transaction
        connection.close()
        assert [one.payload for one in bus.events()] == ["RELEASE mine"]
        assert not bus.pending
    assert orders(file) == [1]
