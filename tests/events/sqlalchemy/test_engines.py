"""Sessions with several engines: the token, the check and its tombstone are of one database, which is stated, or it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Insert, Update, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.events.dedup import ledger_of
from halfmoon.events.sqlalchemy import provider
from halfmoon.events.testing import MemoryBus
from tests.events.real_databases import for_asyncio
from tests.events.sqlalchemy.shops import Base, Line, Order

T, C = "TP_ORDER", "EC_PAID"


class Pair:
    """A database to write to and another one to read from."""

    def __init__(self, directory: Path) -> None:
        self.urls = [f"sqlite:///{directory / name}.db" for name in ("writes", "reads")]
        self.writes, self.reads = (create_engine(url) for url in self.urls)
        for engine in (self.writes, self.reads):
            Base.metadata.create_all(engine)

    def routing(self) -> type[Session]:
        writes, reads = self.writes, self.reads

        class Routing(Session):
            def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Engine:
                return writes if self._flushing or isinstance(clause, Insert | Update | Delete) else reads

        return Routing

    def tokens(self) -> list[list[int]]:
        found = []
        for engine in (self.writes, self.reads):
            with engine.connect() as connection:
                there = connection.execute(text("select 1 from sqlite_master where name = 'halfmoon_event'")).all()
                found.append(list(connection.scalars(text("select state from halfmoon_event where state < 2"))) if there else [])
        return found


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    found = Pair(tmp_path)
    yield found
    found.writes.dispose()
    found.reads.dispose()


def test_a_session_with_its_own_get_bind_is_refused_without_the_engine_of_the_events(pair: Pair):
    routing = pair.routing()
    maker = sessionmaker(class_=routing, bind=pair.reads)

    class OnLoop(AsyncSession):
        sync_session_class = routing

    on_loop = async_sessionmaker(class_=OnLoop)
    given = async_sessionmaker(sync_session_class=routing)
    for session in (maker, scoped_session(maker), routing, OnLoop, on_loop, given, async_scoped_session(on_loop, id)):
        with pytest.raises(UsageError, match=r"get_bind\(\) of its own.*bind=engine"):
            Publisher("P_shop", transport=MemoryBus(), session=session)
    for dedup in (maker, on_loop):
        with pytest.raises(UsageError, match="bind=engine"):
            ledger_of(dedup)


def test_a_session_with_an_engine_for_each_mapper_is_refused_without_the_engine_of_the_events(pair: Pair):
    binds = {Order: pair.writes, Line: pair.reads}
    for maker in (sessionmaker(binds=binds), sessionmaker(pair.writes, binds=binds), async_sessionmaker(binds=binds)):
        with pytest.raises(UsageError, match=r"binds=.*bind=engine"):
            Publisher("P_shop", transport=MemoryBus(), session=maker)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("own", [True, False], ids=["bound to the other", "unbound"])
def test_token_check_and_tombstone_of_a_routing_session_are_of_the_stated_engine(pair: Pair, commits: bool, own: bool):
    maker, bus = sessionmaker(class_=pair.routing(), bind=pair.reads if own else None), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker, bind=pair.writes) as events:
        events.create_tables()
        bus.lose_second_phase()
        with maker() as session:
            session.execute(text("select 1"))  # goes to the other engine
            session.add(Order(id=1))
            events.publish(T, C, 1, transactional=True)
            session.flush()
            if commits:
                session.commit()
        bus.check_now()
        assert [one.payload for one in bus.events()] == [1] * commits
        assert pair.tokens() == [[int(commits)], []]


async def test_token_and_check_of_a_routing_asyncio_session_are_of_the_stated_engine(pair: Pair):
    writes, reads = (create_async_engine(for_asyncio(url)) for url in pair.urls)

    class Routing(Session):
        def get_bind(self, mapper: Any = None, *, clause: Any = None, **options: Any) -> Engine:
            return writes.sync_engine if self._flushing else reads.sync_engine

    maker, bus = async_sessionmaker(sync_session_class=Routing), MemoryBus()
    async with Publisher("P_shop", transport=bus, session=maker, bind=writes) as events:
        await asyncio.to_thread(events.create_tables)
        bus.lose_second_phase()
        async with maker() as session:
            session.add(Order(id=1))
            await session.flush()
            await events.publish_async(T, C, 1, transactional=True)
            await session.commit()
        await asyncio.to_thread(bus.check_now)
        assert [one.payload for one in bus.events()] == [1]
        assert pair.tokens() == [[1], []]
    await writes.dispose()
    await reads.dispose()


def test_a_stated_engine_goes_before_the_sessions_own(pair: Pair):
    maker, bus = sessionmaker(pair.reads), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker, bind=pair.reads) as events:
        events.create_tables()
        with pair.reads.connect() as connection, maker(bind=connection) as session:  # a test's own connection of that engine
            events.publish(T, C, 1, transactional=True)
            session.commit()
    assert pair.tokens() == [[], [1]]


def test_a_session_bound_to_another_database_is_refused_before_anything_is_sent(pair: Pair):
    maker, bus = sessionmaker(pair.writes), MemoryBus()
    with Publisher("P_shop", transport=bus, session=maker) as events:
        events.create_tables()
        with maker(bind=pair.reads) as session, pytest.raises(UsageError, match="checks ask"):
            events.publish(T, C, 1, transactional=True, session=session)
        with maker(bind=pair.writes.execution_options(isolation_level="SERIALIZABLE")) as session:
            events.publish(T, C, 2, transactional=True)
            session.commit()
    assert not bus.pending
    assert [one.payload for one in bus.events()] == [2]


def test_sessions_of_a_maker_without_an_engine_are_all_of_one_database(pair: Pair):
    maker, bus = sessionmaker(), MemoryBus()
    events = Publisher("P_shop", transport=bus, session=maker)
    with maker(bind=pair.writes) as session:
        session.execute(text("select 1"))
        events.create_tables()
        events.publish(T, C, 1, transactional=True)
        session.commit()
    with maker(bind=pair.reads) as session, pytest.raises(UsageError, match="checks ask"):
        events.publish(T, C, 2, transactional=True)
    events.close()
    assert pair.tokens() == [[1], []]


def test_the_engine_is_stated_once(pair: Pair):
    maker = sessionmaker(class_=pair.routing())
    stated = provider(maker, bind=pair.writes)
    assert provider(maker) is provider(maker, bind=pair.writes) is stated
    with pytest.raises(UsageError, match="already"):
        provider(maker, bind=pair.reads)
    late = sessionmaker(pair.writes)
    provider(late)
    with pytest.raises(UsageError, match="already"):
        provider(late, bind=pair.reads)
    with pytest.raises(UsageError, match="needs no bind"):
        provider(pair.writes, bind=pair.reads)
    with pytest.raises(UsageError, match="bind= is a text: give an Engine"):
        provider(sessionmaker(), bind="sqlite:///x")
    with pytest.raises(UsageError, match="give both"):
        Publisher("P_shop", transport=MemoryBus(), bind=pair.writes)
