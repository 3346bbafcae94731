"""The databases of the tests themselves: fresh for each test, and a killed server keeps what was committed."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, text

from tests.events import databases
from tests.events.databases import Postgres, plain

seen: set[str] = set()


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_an_empty_database_of_its_own(database_url, turn):
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INT)"))
    engine.dispose()
    assert database_url not in seen
    seen.add(database_url)


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
