"""No effect twice, with a driver of PEP 249: the connection that its provider lends."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from halfmoon.events import dbapi
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import dispatch, engine, mailed
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
def test_a_driver_s_own_connection_is_lent_by_its_provider(engine, database_url, how):
    def handle(event, context):
        context.session.cursor().execute(f"INSERT INTO mails VALUES ('{event.id}')")
        if event.payload == "fails" and context.attempt == 1:
            raise ConnectionError("no mail server")

    good, bad = stored("EC_PAID", "works"), stored("EC_PAID", "fails")
    mine = dispatch(handle, dbapi.provider(opened(database_url, how)))
    first = [mine.consume(one, 1).consumed for one in (good, good, bad)]
    after_the_first = mailed(engine)
    second = [mine.consume(one, 2).consumed for one in (good, bad)]

    assert (first, second) == ([True, True, False], [True, True])
    assert after_the_first == [good.msg_id]
    assert mailed(engine) == [good.msg_id, bad.msg_id]
