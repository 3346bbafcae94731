"""MariaDB with each driver that is promised: keys that are there, locks, missing tables, statements that commit by themselves."""

from __future__ import annotations

from contextlib import suppress
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import Publisher, dbapi
from halfmoon.events.checks import tokens
from halfmoon.events.outbox.claims import skips_locked
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import mysql_options

DRIVERS = {"pymysql": "mysql+pymysql", "MySQLdb": "mysql+mysqldb", "mariadb": "mariadb+mariadbconnector"}


def driver(name: str) -> ModuleType:
    """Return a driver's module; skip where it is not installed."""
    return pytest.importorskip(name, reason=f"the driver {name} is not installed: tools/debian.sh compiles it")


def inserted(event_id: str, now_ms: int = 1) -> tuple[str, dict[str, Any]]:
    return tokens.INSERT, tokens.values(event_id, now_ms)


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
