"""Statements over an engine of SQLAlchemy: short transactions of their own, how long they wait, and what errors become."""

# ruff: noqa: PT012 - what is refused is the end of the block

from __future__ import annotations

import asyncio
import gc

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import NoTransaction, Publisher
from halfmoon.events.checks import tokens
from halfmoon.events.databases.database import Busy
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.testing import MemoryBus
from tests.events.forking import in_child
from tests.events.sqlalchemy.test_connections import engine, ids

__all__ = ["engine"]


def test_a_short_transaction_leaves_the_users_own_wait_as_it_was(sqlite_url):
    engine = create_engine(sqlite_url, connect_args={"timeout": 7}, pool_size=1, max_overflow=0)
    tokens.create_tables(provider(engine))
    with provider(engine).fresh(lock_wait_ms=200) as rows:
        assert rows.all("PRAGMA busy_timeout") == [(200,)]
    with engine.connect() as connection:
        assert connection.scalar(text("PRAGMA busy_timeout")) == 7_000
    engine.dispose()


def test_a_database_that_is_not_there_is_busy(postgres_url):
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    with pytest.raises(Busy), provider(engine).fresh():
        pass


def test_a_pool_without_a_free_connection_hinders_no_question(sqlite_url):
    engine = create_engine(sqlite_url, pool_size=1, max_overflow=0, pool_timeout=0.1)
    with engine.connect(), provider(engine).fresh() as rows:
        assert rows.all("SELECT 1") == [(1,)]
    provider(engine).release()
    engine.dispose()


def test_an_autocommit_engine_has_short_transactions_all_the_same(postgres_url):
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
    tokens.create_tables(provider(engine))
    with pytest.raises(ZeroDivisionError), provider(engine).fresh() as rows:
        rows.run(tokens.INSERT, tokens.values("a", 1))
        raise ZeroDivisionError
    assert ids(engine) == []
    engine.dispose()


@pytest.mark.parametrize("driver", ["blocking psycopg", "psycopg", "asyncpg"])
def test_a_child_of_a_fork_asks_over_connections_of_its_own(postgres_url, driver):
    if driver.startswith("blocking"):
        engine = create_engine(postgres_url)
    else:
        engine = create_async_engine(postgres_url.replace("psycopg", driver))

    def backend() -> int:
        with provider(engine).fresh() as rows:
            return rows.all("SELECT pg_backend_pid()")[0][0]

    def child() -> None:
        assert backend() != parents
        gc.collect()  # what the child drops of the parent's says nothing to the server, and stops nobody from hearing it

    parents = backend()
    assert getattr(engine, "sync_engine", engine).pool.checkedin() == 0  # the user's pool is the user's
    assert in_child(child)
    assert backend() == parents
    provider(engine).release()


def test_a_child_of_a_fork_publishes_on_an_event_loop_of_its_own(postgres_url):
    bus = MemoryBus()
    engine = create_async_engine(postgres_url)
    Session = async_sessionmaker(engine)
    events = Publisher("P_shop", transport=bus, session=Session)
    events.create_tables()

    async def publish():
        async with Session.begin() as session:
            await events.publish_async("TP_ORDER", "EC_PAID", 1, transactional=True, session=session)
        await engine.dispose()  # the loop ends, and connections of the user's with it

    def child() -> None:
        asyncio.run(publish())
        assert len(bus.events()) == 2

    asyncio.run(publish())
    assert len(bus.events()) == 1
    assert in_child(child)
    events.close()


@pytest.mark.parametrize(
    "options",
    [{"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"autocommit": True}}],
    ids=["of SQLAlchemy", "of the driver"],
)
@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_session_whose_statements_commit_by_themselves_is_in_no_transaction(database, options, request):
    """Else the token row would commit before the others, and the event be delivered whatever becomes of them."""
    engine, bus = create_engine(request.getfixturevalue(f"{database}_url"), **options), MemoryBus()
    Session = sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Session) as events:
        events.create_tables()
        with Session.begin() as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(NoTransaction, match=r"publish\(…, transactional=False\)"):
                events.publish("TP_ORDER", "EC_PAID", 1)
            assert not bus.pending
            assert events.publish("TP_ORDER", "EC_PAID", 2, transactional=False).delivery == "deferred"
    assert [event.payload for event in bus.events()] == [2]
    engine.dispose()


@pytest.mark.parametrize("listens_to", ["connect", "checkout"])
def test_what_a_listener_of_the_users_begins_keeps_no_look_from_the_database(postgres_url, listens_to):
    engine = create_engine(postgres_url, poolclass=NullPool)
    event.listen(engine, listens_to, lambda connection, *_: connection.cursor().execute("SET search_path TO public"))
    tokens.create_tables(provider(engine))
    for lock_wait_ms in (None, 100, None):
        with provider(engine).fresh(lock_wait_ms=lock_wait_ms) as rows:
            assert rows.all("SHOW search_path") == [("public",)]


def test_a_look_makes_no_serializable_transaction_of_the_users_fail(postgres_url):
    engine = create_engine(postgres_url, connect_args={"options": "-c default_transaction_isolation=serializable"})
    usual = create_engine(postgres_url)
    for one, level, alone in ((engine, "read committed", False), (usual, "read committed", True)):
        with provider(one).fresh(lock_wait_ms=None) as rows:
            assert rows.all("SHOW transaction_isolation") == [(level,)]
            assert (rows.all("SELECT now() = statement_timestamp()") == [(True,)]) is alone
        one.dispose()
