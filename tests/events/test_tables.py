"""The tables of events: the statements that make them, on real databases and for those that are not here."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, inspect, text

from halfmoon.errors import UsageError
from halfmoon.events.tables import CONSUMED, OUTBOX, SENT, TOKENS, TableMissing, create, migrate, named_in

ALL = (TOKENS, CONSUMED, OUTBOX, SENT)


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_a_table_is_made_as_it_is_declared_and_making_it_again_does_nothing(database_url, table):
    engine = create_engine(database_url)
    for _ in range(2):
        with engine.begin() as connection:
            for statement in create(table, engine.dialect.name):
                connection.execute(text(statement))

    found = inspect(engine)
    assert [(one["name"], one["nullable"]) for one in found.get_columns(table.name)] == [
        (one.name, one.null) for one in table.columns
    ]
    assert tuple(found.get_pk_constraint(table.name)["constrained_columns"]) == table.key
    indexes = {tuple(one["column_names"]) for one in found.get_indexes(table.name)}
    assert indexes == set(table.indexes)
    engine.dispose()


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_mysql_gets_its_keys_in_one_statement_and_compares_ids_exactly(table):
    statement, *others = create(table, "mysql")
    assert all(one.startswith("INSERT INTO halfmoon_event") for one in others)
    assert statement.count(" KEY ix_") == len(table.indexes)
    assert ("utf8mb4_bin" in statement) == any(one.kind == "text" for one in table.columns)
    assert "IF NOT EXISTS" in statement


@pytest.mark.parametrize(("alias", "dialect"), [("mariadb", "mysql"), ("postgres", "postgresql"), ("PostgreSQL", "postgresql")])
@pytest.mark.parametrize("statements", [create, migrate])
def test_another_name_of_a_dialect_gets_its_statements(statements, alias, dialect):
    for table in ALL:
        assert statements(table, alias) == statements(table, dialect)


@pytest.mark.parametrize("dialect", ["oracle", "mssql", "cockroachdb", ""])
@pytest.mark.parametrize("statements", [create, migrate])
def test_a_dialect_that_is_not_known_is_refused_with_those_that_are(statements, dialect):
    for table in ALL:
        with pytest.raises(UsageError, match=r"sqlite, postgresql, mysql \(mariadb, postgres\)") as refused:
            statements(table, dialect)
        assert repr(dialect) in str(refused.value)


def test_ids_that_differ_in_case_are_two(database_url):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        for statement in create(TOKENS, engine.dialect.name):
            connection.execute(text(statement))
        for event_id in ("ABC", "abc"):
            connection.execute(text("INSERT INTO halfmoon_event VALUES (:id, 1, 1)"), {"id": event_id})
    engine.dispose()


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_a_missing_table_names_who_makes_it(table):
    error = TableMissing(table.name)
    assert error.table == table.name
    assert f"{'Consumers(…)' if table is CONSUMED else 'publisher'}.create_tables()" in str(error)


def test_the_table_of_a_statement_is_found():
    for table in ALL:
        assert named_in(f"SELECT * FROM {table.name} WHERE x = 1") == table.name
    assert named_in("SELECT * FROM orders") == ""
