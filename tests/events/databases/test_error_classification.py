"""What errors of drivers say for certain: those of sqlite3 and psycopg, and the shapes of drivers that are not here."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfmoon.events.databases import error_classification
from tests.events.real_databases import plain


def error_of(module: str, *args: Any, **facts: Any) -> Exception:
    """Return an error as another driver would raise it."""
    made = type("OperationalError", (Exception,), {"__module__": module})(*args)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def state(code: str) -> Exception:
    return error_of("psycopg.errors", "…", sqlstate=code)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (state("23505"), "refused duplicate"),
        (state("23503"), "refused"),
        (state("40001"), "refused busy"),
        (state("40P01"), "refused busy"),
        (state("40003"), ""),
        (state("55P03"), "busy"),
        (state("57P01"), "busy"),
        (state("08006"), "busy"),
        (state("42P01"), "no_table"),
        (state("22012"), ""),
        (error_of("psycopg", "server closed the connection unexpectedly"), "busy"),
        (error_of("psycopg2.errors", "…", pgcode="23505"), "refused duplicate"),
        (error_of("pg8000.exceptions", {"C": "40001", "M": "…"}), "refused busy"),
        (error_of("asyncpg.exceptions", "…", sqlstate="23505"), "refused duplicate"),
        (asyncpg.InterfaceError("connection is closed"), "busy"),
        (asyncpg.InternalClientError("cannot switch to state 11; another operation (2) is in progress"), "busy"),
        (asyncpg.DataError("invalid input for query argument $1"), ""),
        (error_of("pymysql.err", 1062, "Duplicate entry"), "refused duplicate"),
        (error_of("pymysql.err", 1205, "Lock wait timeout"), "refused busy"),
        (error_of("MySQLdb", 2013, "Lost connection"), "busy"),
        (error_of("asyncmy.errors", 1146, "Table doesn't exist"), "no_table"),
        (error_of("somebody.errors", 1062, "Duplicate entry"), ""),
        (error_of("somebody.errors", "wrapped", orig=state("23505")), "refused duplicate"),
        (error_of("sqlalchemy.exc", "lost", connection_invalidated=True), "busy"),
        (KeyboardInterrupt(), ""),
        (None, ""),
    ],
    ids=repr,
)
def test_what_an_error_says(error, said):
    found = [name for name in ("refused", "duplicate", "busy", "no_table") if getattr(error_classification, name)(error)]
    assert found == sorted(said.split(), key=["refused", "duplicate", "busy", "no_table"].index)


def test_the_cause_of_an_error_counts():
    outer = ValueError("outer")
    outer.__cause__ = state("23505")
    assert error_classification.duplicate(outer)


def test_a_circle_of_causes_ends():
    one, two = ValueError(), ValueError()
    one.__cause__, two.__cause__ = two, one
    assert not error_classification.refused(one)


@given(st.one_of(st.text(), st.integers(), st.none(), st.dictionaries(st.text(), st.integers()), st.binary()))
def test_no_error_of_whatever_shape_is_misread_or_raises(fact):
    error = error_of("somebody", fact, sqlstate=fact if not isinstance(fact, str) or len(fact) != 5 else None, orig=fact)
    assert not any(
        ask(error)
        for ask in (
            error_classification.refused,
            error_classification.duplicate,
            error_classification.busy,
            error_classification.no_table,
        )
    )


def raised(connection: Any, *statements: str) -> Exception:
    try:
        for statement in statements:
            connection.execute(statement)
    except (sqlite3.Error, psycopg.Error) as error:
        return error
    raise AssertionError("nothing was raised")


def test_errors_of_sqlite(tmp_path: Path):
    one = sqlite3.connect(tmp_path / "one.db", timeout=0, isolation_level=None)
    two = sqlite3.connect(tmp_path / "one.db", timeout=0, isolation_level=None)
    one.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL, UNIQUE (n))")
    one.execute("INSERT INTO t VALUES (1, 1)")
    one.execute("BEGIN IMMEDIATE")

    assert error_classification.duplicate(raised(one, "INSERT INTO t VALUES (1, 2)"))
    assert error_classification.duplicate(raised(one, "INSERT INTO t VALUES (2, 1)"))
    not_null = raised(one, "INSERT INTO t VALUES (2, NULL)")
    assert error_classification.refused(not_null)
    assert not error_classification.duplicate(not_null)
    locked = raised(two, "BEGIN IMMEDIATE")
    assert error_classification.busy(locked)
    assert error_classification.refused(locked)
    assert error_classification.no_table(raised(one, "SELECT * FROM nowhere"))
    syntax = raised(one, "SELEKT")
    assert not any(ask(syntax) for ask in (error_classification.busy, error_classification.refused, error_classification.no_table))
    one.close()
    two.close()


def test_errors_and_aborted_transactions_of_postgres(postgres_url):
    with psycopg.connect(plain(postgres_url)) as connection:
        assert not error_classification.aborted(connection)
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        assert not error_classification.aborted(connection)
        assert error_classification.duplicate(raised(connection, "INSERT INTO t VALUES (1), (1)"))
        assert error_classification.aborted(connection)
        connection.rollback()
        assert not error_classification.aborted(connection)
        assert error_classification.no_table(raised(connection, "SELECT * FROM nowhere"))
        connection.rollback()


def test_what_other_drivers_say_of_an_aborted_transaction():
    psycopg2 = SimpleNamespace(info=SimpleNamespace(transaction_status=3))
    pg8000 = SimpleNamespace(_transaction_status=b"E")
    assert error_classification.aborted(psycopg2)
    assert error_classification.aborted(pg8000)
    assert not error_classification.aborted(SimpleNamespace(info=SimpleNamespace(transaction_status=2), _transaction_status=b"T"))
    assert not error_classification.aborted(object())
