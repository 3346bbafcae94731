"""No effect twice, with a driver of PEP 249: the connection that its provider lends."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from halfmoon.events import dbapi
from tests.events.dedup.mails import check_that_no_effect_comes_twice, engine
from tests.events.real_databases import connects, plain

__all__ = ["engine"]

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def opened(url: str, how: str):
    """Return what opens connections of the database's own driver."""
    if url.startswith("sqlite"):
        return lambda: sqlite3.connect(plain(url), isolation_level=None if how == "autocommit" else "DEFERRED")
    if url.startswith("mysql"):
        return connects(url, autocommit=how == "autocommit")
    return lambda: psycopg.connect(plain(url), autocommit=how == "autocommit")


@pytest.mark.parametrize("how", ["autocommit", "transactions"])
def test_events_take_effect_once_in_a_connection_that_a_provider_lends(engine, database_url, how):
    database = dbapi.provider(opened(database_url, how))
    check_that_no_effect_comes_twice(engine, database, lambda connection, statement: connection.cursor().execute(statement))
    database.release()
