"""Sessions that join a transaction of somebody else's connection: the outer end decides, in every database.

It is SQLAlchemy's recipe for test suites, and every statement of the session is inside a SAVEPOINT there.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import UsageError
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


def test_a_session_that_joins_a_savepoint_of_an_engine_nobody_knew_is_refused_where_it_cannot_be_known_to_be_a_transaction(
    sqlite_url: str,
):
    bus, Made = MemoryBus(), sessionmaker()
    engine, stranger = create_engine(sqlite_url), create_engine(sqlite_url)
    recipe = create_engine(sqlite_url)
    event.listen(recipe, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))  # SQLAlchemy's own
    with Publisher("P_shop", transport=bus, session=Made, bind=engine) as events:
        events.create_tables()
        for unknown, refused in ((stranger, True), (stranger, False), (recipe, False)):
            with unknown.connect() as connection, connection.begin():
                session = savepoint_before_it(Made, connection)
                if refused:
                    with pytest.raises(UsageError, match="bind=engine"):
                        events.publish(T, C, 1, transactional=True, session=session)
                    assert not bus.pending
                else:
                    assert events.publish(T, C, 2, transactional=True, session=session).delivery == "prepared"
                session.close()
    for one in (engine, stranger, recipe):
        one.dispose()
