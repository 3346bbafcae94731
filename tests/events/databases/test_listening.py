"""Connections for notifications over plain drivers: what commits by itself, what is heard, and what is kept of it."""

from __future__ import annotations

import select
from contextlib import closing

import psycopg
import psycopg2
import pytest

from halfmoon.events.databases.listening import CannotListen, blocking
from tests.events.real_databases import connects, plain


@pytest.mark.parametrize("connect", [psycopg.connect, psycopg2.connect], ids=["psycopg", "psycopg2"])
def test_notifications_make_a_connection_readable_and_are_not_kept_in_memory(postgres_url, connect):
    driver = connect(plain(postgres_url))
    driver.cursor().execute("SET search_path = pg_catalog")  # as a function of the user's may do that opens it
    with closing(blocking(driver)) as connection, psycopg.connect(plain(postgres_url), autocommit=True) as other:
        descriptor = connection.listen("news", lambda: None)
        assert not select.select([descriptor], [], [], 0)[0]
        for at in range(3):
            other.execute("SELECT pg_notify('news', %s)", [str(at)])
            assert select.select([descriptor], [], [], 10)[0]
            connection.take()
            assert not select.select([descriptor], [], [], 0)[0]

        assert connection.run("SHOW search_path")[0][0] == "pg_catalog"
        [(state,)] = other.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [connection.backend_pid])
        assert state == "idle", "in no transaction"
        kept = driver.notifies if isinstance(driver.notifies, list) else driver._notifies_backlog
        assert not kept


def test_a_driver_that_is_not_known_is_refused_and_closed(sqlite_url):
    driver = connects(sqlite_url)()
    with pytest.raises(CannotListen, match="sqlite3"):
        blocking(driver)
    with pytest.raises(Exception, match="closed"):
        driver.execute("SELECT 1")
