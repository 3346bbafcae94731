"""What differs between drivers: places of values, autocommit, open transactions."""

from __future__ import annotations

import sqlite3
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import psycopg
import pymysql
import pytest

from halfmoon.errors import UsageError
from halfmoon.events.checks import tokens
from halfmoon.events.dbapi import provider
from halfmoon.events.dbapi.driver import autocommits, dialect_of, in_transaction, paramstyle_of, written
from halfmoon.model import LocalTransactionState
from tests.events.real_databases import connects, plain

STATEMENT = "UPDATE t SET a = :a, rate = 5 % 2 WHERE b = :b AND a = :a"


@pytest.mark.parametrize(
    ("style", "statement", "values"),
    [
        ("qmark", "UPDATE t SET a = ?, rate = 5 % 2 WHERE b = ? AND a = ?", [1, 2, 1]),
        ("format", "UPDATE t SET a = %s, rate = 5 %% 2 WHERE b = %s AND a = %s", [1, 2, 1]),
        ("numeric", "UPDATE t SET a = :1, rate = 5 % 2 WHERE b = :2 AND a = :3", [1, 2, 1]),
        ("named", STATEMENT, {"a": 1, "b": 2}),
        ("pyformat", "UPDATE t SET a = %(a)s, rate = 5 %% 2 WHERE b = %(b)s AND a = %(a)s", {"a": 1, "b": 2}),
    ],
)
def test_a_statement_is_written_as_the_driver_takes_it(style, statement, values):
    assert written(STATEMENT, {"a": 1, "b": 2}, style) == (statement, values)


def test_places_may_have_digits_in_their_names_and_without_values_percent_signs_stay():
    statement = "SELECT :t0, :t_1, '{}'::jsonb"
    assert written(statement, {"t0": 1, "t_1": 2}, "qmark") == ("SELECT ?, ?, '{}'::jsonb", [1, 2])
    assert written("SELECT 5 % 2", None, "pyformat") == ("SELECT 5 % 2", {})
    with pytest.raises(UsageError, match="PEP 249"):
        written(statement, {"t0": 1, "t_1": 2}, "roman")


def test_a_driver_is_known_by_its_package(postgres_url):
    here = sqlite3.connect(":memory:")
    with psycopg.connect(plain(postgres_url)) as there:
        assert (dialect_of(here), paramstyle_of(here)) == ("sqlite", "qmark")
        assert (dialect_of(there), paramstyle_of(there)) == ("postgresql", "pyformat")


def test_a_driver_that_is_not_known_is_asked_for_its_paramstyle(monkeypatch):
    package = ModuleType("somedriver")
    monkeypatch.setitem(sys.modules, "somedriver", package)
    connection = type("Connection", (), {"__module__": "somedriver.core"})()
    assert dialect_of(connection) == ""
    with pytest.raises(UsageError, match="paramstyle="):
        paramstyle_of(connection)
    package.paramstyle = "format"  # type: ignore[attr-defined]
    assert paramstyle_of(connection) == "format"


def test_autocommit_is_seen_where_each_driver_keeps_it():
    assert not autocommits(sqlite3.connect(":memory:"), "sqlite")
    assert autocommits(sqlite3.connect(":memory:", isolation_level=None), "sqlite")
    assert autocommits(SimpleNamespace(autocommit=True), "postgresql")
    assert not autocommits(SimpleNamespace(autocommit=False), "postgresql")
    assert autocommits(SimpleNamespace(get_autocommit=lambda: True), "mysql")
    assert not autocommits(SimpleNamespace(), "")


def test_an_open_transaction_is_seen_where_the_driver_says_it(postgres_url):
    connection = sqlite3.connect(":memory:")
    assert in_transaction(connection) is False
    connection.execute("BEGIN")
    assert in_transaction(connection) is True
    there = psycopg.connect(plain(postgres_url))
    assert in_transaction(there) is False
    there.execute("SELECT 1")
    assert in_transaction(there) is True
    there.close()
    assert in_transaction(there) is None
    assert in_transaction(SimpleNamespace(info=SimpleNamespace(transaction_status=0))) is False
    assert in_transaction(SimpleNamespace(info=SimpleNamespace(transaction_status=3))) is True
    assert in_transaction(object()) is None


def factory(url: str) -> dict[str, Any]:
    """Options with which a driver gives rows that are no sequences."""
    if url.startswith("postgresql"):
        return {"row_factory": psycopg.rows.dict_row}
    return {"cursorclass": pymysql.cursors.DictCursor} if url.startswith("mysql") else {}


def test_rows_are_read_whatever_the_user_has_made_of_them(database_url: str) -> None:
    def connect() -> Any:
        connection = connects(database_url, **factory(database_url))()
        if database_url.startswith("sqlite"):
            connection.row_factory = lambda cursor, row: {"id": row[0]}
        return connection

    database = provider(connect)
    tokens.create_tables(database)
    with database.fresh() as rows:
        rows.run(tokens.INSERT, tokens.values("e-1", 1))
    assert tokens.states(database, ["e-1"]) == {"e-1": LocalTransactionState.COMMIT}
    connection = database.connect()
    connection.cursor().execute("SELECT 1")
    local = database.current(connection)
    assert local is not None
    assert database.rows(local).all("SELECT id, state FROM halfmoon_event WHERE state < 2") == [("e-1", 1)]
    connection.close()
    database.release()
