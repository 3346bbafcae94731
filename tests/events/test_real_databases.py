"""The databases of the tests themselves: fresh for each test, and a killed server keeps what was committed."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.events import real_databases as databases
from tests.events.real_databases import Postgres, plain


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_database_of_its_own(database_url, turn):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INT)"))  # refused where the other left its own
    engine.dispose()


def test_a_database_that_is_given_back_is_empty_and_nobody_is_connected(postgres_server: Postgres):
    url = postgres_server.create()
    with psycopg.connect(plain(url)) as connection:
        connection.execute("CREATE TABLE orders (id INT)")
        connection.commit()
        connection.execute("SELECT * FROM orders")

        postgres_server.give_back(url)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert postgres_server.create() == url
    with psycopg.connect(plain(url)) as connection:
        connection.execute("CREATE TABLE orders (id INT)")
    postgres_server.give_back(url)


def test_a_killed_server_starts_again_with_what_was_committed(postgres_server: Postgres, postgres_url):
    with psycopg.connect(plain(postgres_url)) as connection:
        connection.execute("CREATE TABLE orders (id INT)")
    before = postgres_server.port

    postgres_server.kill()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(plain(postgres_url))
    postgres_server.start()

    assert postgres_server.port == before
    with psycopg.connect(plain(postgres_url)) as connection:
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_where_postgres_is_missing_the_reason_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(databases, "binaries", lambda: None)
    assert "apt-get install postgresql" in databases.missing()
