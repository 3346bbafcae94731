"""Tests inside an outer transaction: events of sessions that commit into it count as committed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import StaticPool

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.events import dedup as ledgers
from halfmoon.events.sqlalchemy.testing import as_committed
from halfmoon.events.testing import MemoryBus
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import dispatch
from tests.events.real_databases import for_asyncio

T, C = "TP_ORDER", "EC_PAID"


class Shop:
    """A sessionmaker, a publisher on a bus, and what the database holds for others."""

    def __init__(self, engine: Engine, bus: MemoryBus) -> None:
        self.engine, self.bus = engine, bus
        self.Session = sessionmaker(engine)
        self.events = Publisher("P_shop", transport=bus, session=self.Session)
        self.events.create_tables()
        with engine.begin() as connection:
            connection.execute(text("create table orders (id integer)"))

    def sell(self, session: Session, number: int) -> None:
        session.execute(text(f"insert into orders values ({number})"))
        self.events.publish(T, C, number, transactional=True, session=session)
        self.events.publish(T, C, -number, transactional=False, session=session)

    def seen(self) -> list[Any]:
        return sorted(event.payload for event in self.bus.events())

    def left(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(
                connection.scalars(text("select id from orders union all select state from halfmoon_event where state < 2"))
            )


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "memory"])
def shop(request: pytest.FixtureRequest) -> Iterator[Shop]:
    if request.param == "memory":
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        engine = create_engine(request.getfixturevalue(f"{request.param}_url"))
    made = Shop(engine, MemoryBus())
    yield made
    made.events.close()
    engine.dispose()


@contextmanager
def joined(shop: Shop) -> Iterator[Connection]:
    """A transaction around everything, which is rolled back in the end."""
    with shop.engine.connect() as connection, connection.begin() as outer, as_committed(shop.Session, connection):
        shop.Session.configure(bind=connection, join_transaction_mode="create_savepoint")
        yield connection
        outer.rollback()
        shop.Session.configure(bind=shop.engine)


@pytest.fixture
def connection(shop: Shop) -> Iterator[Connection]:
    with joined(shop) as connection:
        yield connection


def test_events_of_sessions_that_commit_are_seen_and_of_others_not_and_nothing_stays(shop: Shop) -> None:
    with joined(shop):
        with shop.Session.begin() as session:
            shop.sell(session, 1)
            assert shop.seen() == []
            with suppress(ZeroDivisionError), session.begin_nested():
                shop.sell(session, 2)
                raise ZeroDivisionError
        assert shop.seen() == [-1, 1]
        with suppress(ZeroDivisionError), shop.Session.begin() as session:
            shop.sell(session, 3)
            raise ZeroDivisionError
        with shop.Session() as session:
            shop.sell(session, 4)
            session.commit()
            assert shop.seen() == [-4, -1, 1, 4]
            shop.sell(session, 5)
        shop.Session.configure(join_transaction_mode="rollback_only")
        with shop.Session.begin() as session:
            shop.sell(session, 6)
        assert (shop.seen(), shop.bus.pending) == ([-6, -4, -1, 1, 4, 6], ())
    assert shop.left() == []


def test_a_decision_that_was_lost_is_taken_when_the_bus_asks(shop: Shop, connection: Connection) -> None:
    shop.bus.lose_second_phase()
    with shop.Session.begin() as session:
        shop.sell(session, 1)
    assert len(shop.bus.pending) == 1
    shop.bus.heal()
    with shop.Session() as reading:
        assert list(reading.scalars(text("select id from orders"))) == [1]
        shop.bus.check_now()
    assert shop.seen() == [-1, 1]


def test_a_session_that_only_looks_delays_nothing_and_one_that_published_is_not_read(shop: Shop, connection: Connection) -> None:
    with shop.Session() as reading:
        reading.execute(text("select 1"))
        with shop.Session.begin() as session:
            shop.sell(session, 1)
        assert shop.seen() == [-1, 1]
        shop.sell(reading, 2)
        shop.bus.check_now()
        assert (shop.seen(), len(shop.bus.pending)) == ([-1, 1], 1)
    assert (shop.seen(), shop.bus.pending) == ([-1, 1], ())


def test_consumers_take_effect_once_in_it(shop: Shop, connection: Connection) -> None:
    ledgers.create_tables(shop.events.provider)
    event = stored("EC_PAID", 1)

    def handle(event: Any, context: Any) -> None:
        context.session.execute(text("insert into orders values (7)"))

    mine = dispatch(handle, shop.Session)
    assert [mine.consume(event, 1).consumed for _ in range(2)] == [True, True]
    assert list(connection.scalars(text("select id from orders"))) == [7]


def test_what_is_no_transaction_of_these_sessions_is_refused(shop: Shop, connection: Connection) -> None:
    with pytest.raises(UsageError, match="already"), as_committed(shop.Session, connection):
        pass
    other = sessionmaker(shop.engine)
    for session, outer in ((other, shop.engine), (shop.engine, connection), (other, None)):
        with pytest.raises(UsageError, match="as_committed"):
            as_committed(session, outer)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_on_an_event_loop_it_is_the_same(request: pytest.FixtureRequest, database: str) -> None:
    url = request.getfixturevalue(f"{database}_url")
    shop = Shop(create_engine(url), MemoryBus())

    async def main() -> None:
        engine = create_async_engine(for_asyncio(url))
        Made = async_sessionmaker(engine)
        async with Publisher("P_async", transport=shop.bus, session=Made) as events, engine.connect() as connection:
            outer = await connection.begin()
            Made.configure(bind=connection, join_transaction_mode="create_savepoint")
            with as_committed(Made, connection):
                for number, fails in ((1, False), (2, True), (3, False)):
                    with suppress(ZeroDivisionError):
                        async with Made.begin() as session:
                            await session.execute(text("insert into orders values (1)"))
                            await events.publish_async(T, C, number, transactional=True)
                            await events.publish_async(T, C, 10 + number)
                            assert number not in shop.seen()
                            if fails:
                                raise ZeroDivisionError
                assert (shop.seen(), shop.bus.pending) == ([1, 3, 11, 13], ())
                await outer.rollback()
        await engine.dispose()

    asyncio.run(main())
    assert shop.left() == []
    shop.events.close()
