"""MariaDB with each driver that is promised: keys that are there, locks, missing tables, statements that commit by themselves."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import Publisher, dbapi, sqlalchemy
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy, Provider, Refused
from halfmoon.events.outbox.claims import skips_locked
from halfmoon.events.tables import TableMissing
from halfmoon.events.testing import MemoryBus
from halfmoon.events.transaction import Status
from halfmoon.model import LocalTransactionState
from tests.events.hearing import Heard
from tests.events.real_databases import mysql_options

DRIVERS = {"pymysql": "mysql+pymysql", "MySQLdb": "mysql+mysqldb", "mariadb": "mariadb+mariadbconnector"}


def driver(name: str) -> ModuleType:
    """Return a driver's module; skip where it is not installed."""
    return pytest.importorskip(name, reason=f"the driver {name} is not installed: tools/debian.sh compiles it")


@pytest.fixture(params=[f"{name}-{way}" for name in DRIVERS for way in ("sqlalchemy", "plain")])
def found(request: pytest.FixtureRequest, mariadb_url: str) -> Any:
    """A provider over each driver, through SQLAlchemy and by itself."""
    name, way = request.param.split("-")
    module = driver(name)
    if way == "plain":
        return dbapi.provider(lambda: module.connect(**mysql_options(mariadb_url)))
    return sqlalchemy.provider(sessionmaker(create_engine(make_url(mariadb_url).set(drivername=DRIVERS[name]), poolclass=NullPool)))


def inserted(event_id: str, now_ms: int = 1) -> tuple[str, dict[str, Any]]:
    return tokens.INSERT, tokens.values(event_id, now_ms)


def test_errors_are_told_apart(found: Provider):
    with pytest.raises(TableMissing), found.fresh() as rows:
        rows.run(*inserted("E1"))
    tokens.create_tables(found)
    tokens.create_tables(found)
    tokens.require(found)
    with found.fresh() as rows:
        assert rows.dialect == "mysql"
        assert rows.run(*inserted("E1")) == 1
    with pytest.raises(Refused), found.fresh() as rows:
        rows.run(*inserted("E1"))
    with found.fresh() as rows:
        rows.run(*inserted("e1"))  # another id: the column's collation is binary, the server's is not


def test_a_lock_is_waited_for_in_bounded_time(found: Provider):
    tokens.create_tables(found)
    with found.fresh() as rows:
        rows.run(*inserted("E1"))
        begun = time.monotonic()
        with pytest.raises(Busy), found.fresh(lock_wait_ms=1_000) as others:
            others.run(*inserted("E1"))
        assert time.monotonic() - begun < 20


def test_two_that_wait_for_each_other_are_told_that_they_may_try_again(found: Provider):
    tokens.create_tables(found)
    with found.fresh() as rows:
        rows.run(*inserted("A"))
        rows.run(*inserted("B"))

    def touch(rows: Any, event_id: str) -> None:
        rows.run("UPDATE halfmoon_event SET created_ms = created_ms + 1 WHERE id = :id", {"id": event_id})

    def other() -> None:
        with found.fresh(lock_wait_ms=20_000) as rows:
            touch(rows, "B")
            go_on.set()
            touch(rows, "A")

    go_on = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            other()
        except BaseException as error:
            failed.append(error)

    try:
        with found.fresh(lock_wait_ms=20_000) as rows:
            touch(rows, "A")
            thread = threading.Thread(target=run)
            thread.start()
            assert go_on.wait(60)
            touch(rows, "B")
    except Busy as busy:
        failed.append(busy)
    thread.join(60)

    assert [type(one) for one in failed] == [Busy]


def test_a_check_sees_what_committed_after_it_began_to_look(found: Provider):
    """With MySQL's own isolation, REPEATABLE READ, a second look would be at an old snapshot."""
    tokens.create_tables(found)
    with found.fresh() as rows:
        assert rows.all("SELECT id FROM halfmoon_event WHERE state < 2") == []
        with found.fresh() as others:
            others.run(*inserted("E1"))
        assert [tuple(one) for one in rows.all("SELECT id FROM halfmoon_event WHERE state < 2")] == [("E1",)]
    assert tokens.answer(found, "E1", 1, 1) is LocalTransactionState.COMMIT
    assert tokens.answer(found, "E2", 1, 1) is LocalTransactionState.ROLLBACK


COMMITTING = pytest.mark.parametrize(
    "statement", ["CREATE TABLE other (id INT)", "CREATE TABLE halfmoon_event (id INT)", "/* of mine */ call gone()"],
    ids=["ddl", "ddl that fails", "a procedure that fails"],
)  # fmt: skip


@COMMITTING
@pytest.mark.parametrize("name", DRIVERS)
def test_an_event_is_seen_if_a_statement_committed_its_row_whatever_follows(mariadb_url: str, name: str, statement: str):
    module, bus = driver(name), MemoryBus()
    found = dbapi.provider(lambda: module.connect(**mysql_options(mariadb_url)))
    events = Publisher("P_shop", transport=bus, provider=found)
    events.create_tables()
    connection = found.connect()
    connection.cursor().execute("SELECT 1")
    events.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
    with suppress(Exception):
        connection.cursor().execute(statement)
    connection.rollback()
    connection.close()

    assert len(bus.events()) == ("call" not in statement)
    assert bus.pending == ()


@COMMITTING
def test_so_it_is_in_a_session_that_rolls_back(mariadb_url: str, statement: str):
    Session, bus = sessionmaker(create_engine(mariadb_url, poolclass=NullPool)), MemoryBus()
    events = Publisher("P_shop", transport=bus, session=Session)
    events.create_tables()
    with Session() as session:
        session.execute(text("SELECT 1"))
        events.publish("TP_ORDER", "EC_PAID", 1, transactional=True)
        with suppress(DBAPIError):
            session.execute(text(statement))
        session.rollback()

    assert len(bus.events()) == ("call" not in statement)
    assert bus.pending == ()


@pytest.mark.parametrize("address", ["mariadb_url", "postgres_url"])
async def test_aiomysql_and_asyncpg_carry_events_of_asyncio_sessions(request: pytest.FixtureRequest, address: str):
    url = make_url(request.getfixturevalue(address))
    name = {"mysql+pymysql": "mysql+aiomysql", "postgresql+psycopg": "postgresql+asyncpg"}[url.drivername]
    engine = create_async_engine(url.set(drivername=name), poolclass=NullPool)
    Session = async_sessionmaker(engine)
    found = sqlalchemy.provider(Session)
    await asyncio.to_thread(tokens.create_tables, found)
    async with Session.begin() as session:
        await session.execute(text("SELECT 1"))
        local = found.current(session)
        assert local is not None
        await found.run_async(local, *inserted("E1"))
        local.register(heard := Heard())
        assert await asyncio.to_thread(tokens.answer, found, "E1", 1, 1) is LocalTransactionState.OPEN
    assert await asyncio.to_thread(tokens.answer, found, "E1", 1, 1) is LocalTransactionState.COMMIT
    async with Session() as session:
        await session.execute(text("SELECT 1"))
        with pytest.raises(Refused):
            await found.run_async(found.current(session), *inserted("E1"))
    await engine.dispose()
    assert heard.status is Status.COMMITTED


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("10.11.19-MariaDB-0+deb12u1", True),
        ("10.6.0-MariaDB", True),
        ("10.5.28-MariaDB", False),
        ("5.5.5-10.11.2-MariaDB", True),
        ("8.0.1", True),
        ("8.4.3-log", True),
        ("5.7.44", False),
        ("something", False),
    ],
)
def test_skip_locked_is_asked_of_those_that_know_it(version: str, known: bool):
    assert skips_locked(version) is known
