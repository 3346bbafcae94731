"""Sessions that join a transaction of somebody else's connection: the outer end decides, in every database.

It is SQLAlchemy's recipe for test suites, and every statement of the session is inside a SAVEPOINT there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.events import Publisher
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import for_asyncio

T, C = "TP_ORDER", "EC_PAID"
COMMITS = pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
Make = Callable[[Connection], Session]


def orders(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.scalars(text("select id from orders")))


def savepoint_of_its_own(Made: sessionmaker[Session], connection: Connection) -> Session:
    return Made(bind=connection, join_transaction_mode="create_savepoint")


def savepoint_before_it(Made: sessionmaker[Session], connection: Connection) -> Session:
    connection.begin_nested()
    return Made(bind=connection)


@COMMITS
@pytest.mark.parametrize("joins", [savepoint_of_its_own, savepoint_before_it])
def test_the_end_of_the_outer_transaction_decides_over_a_joined_sessions_event(
    engine: Engine, commits: bool, joins: Callable[[sessionmaker[Session], Connection], Session]
):
    bus, Made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made) as events:
        events.create_tables()
        with engine.connect() as connection:
            outer = connection.begin()
            with joins(Made, connection) as session:
                session.execute(text("insert into orders values (1)"))
                events.publish(T, C, 1, transactional=True)
                session.commit()
            bus.check_now()
            assert not bus.events()
            outer.commit() if commits else outer.rollback()
        bus.check_now()
    assert (orders(engine), [one.payload for one in bus.events()]) == (([1], [1]) if commits else ([], []))
    assert not bus.pending


@COMMITS
def test_so_does_it_where_the_session_was_closed_without_a_commit_and_rolls_nothing_back(engine: Engine, commits: bool):
    bus, Made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made) as events:
        events.create_tables()
        with engine.connect() as connection:
            outer = connection.begin()
            with Made(bind=connection, join_transaction_mode="rollback_only") as session:
                session.execute(text("insert into orders values (1)"))
                events.publish(T, C, 1, transactional=True)
            outer.commit() if commits else outer.rollback()
        bus.check_now()
    assert (orders(engine), [one.payload for one in bus.events()]) == (([1], [1]) if commits else ([], []))
    assert not bus.pending


@COMMITS
async def test_so_does_it_on_an_event_loop(sqlite_url: str, commits: bool):
    engine, bus = create_async_engine(for_asyncio(sqlite_url)), MemoryBus()
    Made = async_sessionmaker(engine)
    async with engine.connect() as connection, Publisher("P_shop", transport=bus, session=Made) as events:
        blocking = create_engine(sqlite_url)
        with blocking.begin() as other:
            other.execute(text("create table orders (id integer)"))
        Publisher("P_other", transport=bus, session=blocking).create_tables()
        outer = await connection.begin()
        async with Made(bind=connection, join_transaction_mode="create_savepoint") as session:
            await session.execute(text("insert into orders values (1)"))
            await events.publish_async(T, C, 1, transactional=True)
            await session.commit()
        await (outer.commit() if commits else outer.rollback())
        bus.check_now()
        assert (orders(blocking), [one.payload for one in bus.events()]) == (([1], [1]) if commits else ([], []))
    blocking.dispose()
    await engine.dispose()
