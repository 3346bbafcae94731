"""Connections for notifications of an engine: in no pool, each statement committed, with any driver of PostgreSQL."""

from __future__ import annotations

import select
import threading
from contextlib import closing

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from halfmoon.events.databases.listening import CannotListen
from halfmoon.events.sqlalchemy import provider
from tests.events.real_databases import plain
from tests.waiting import until


def take_all(connection):
    """Take in what comes: the server's last words, then the end."""
    for _ in range(9):
        connection.take()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "async psycopg", "asyncpg"])
def test_a_listening_connection_is_told_and_takes_no_place_in_the_pool(postgres_url, driver):
    make = create_async_engine if driver.startswith("async") else sqlalchemy.create_engine
    engine = make(postgres_url.replace("+psycopg:", f"+{driver.split()[-1]}:"), pool_size=1, max_overflow=0)
    database, nudged = provider(engine), threading.Event()
    with closing(database.listening()) as connection, psycopg.connect(plain(postgres_url), autocommit=True) as other:
        assert connection.run("SELECT pg_backend_pid()") == [(connection.backend_pid,)]
        descriptor = connection.listen("news", nudged.set)
        for _ in range(2):
            other.execute("NOTIFY news")
            until(lambda: nudged.is_set() if descriptor is None else select.select([descriptor], [], [], 0)[0])
            nudged.clear()
            connection.take()
            connection.run("CREATE TABLE IF NOT EXISTS made ()")
            other.execute("SELECT 1 FROM made")
        with database.fresh() as rows:
            assert rows.all("SELECT 1") == [(1,)]
        nudged.clear()
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.backend_pid])
        until(lambda: nudged.is_set() if descriptor is None else select.select([descriptor], [], [], 0)[0])
        with pytest.raises(Exception, match=r"connection|terminat"):
            take_all(connection)
    database.release()


def test_where_there_is_one_connection_or_another_database_nobody_listens(postgres_url, sqlite_url):
    alone, elsewhere = sqlalchemy.create_engine(postgres_url, poolclass=StaticPool), sqlalchemy.create_engine(sqlite_url)
    with pytest.raises(CannotListen, match="share one connection"):
        provider(alone).listening()
    with pytest.raises(CannotListen, match="sqlite sends no notifications"):
        provider(elsewhere).listening()
    alone.dispose()
