"""Transactions of AsyncSession and of async engines, over aiosqlite and psycopg's asyncio side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.events.checks import tokens
from halfmoon.events.sqlalchemy import SessionProvider, provider
from halfmoon.events.testing import MemoryBus
from halfmoon.events.transaction import Status, transaction_active
from halfmoon.model import LocalTransactionState
from tests.events.hearing import Heard
from tests.events.real_databases import for_asyncio
from tests.events.sqlalchemy.shops import Base, Order
from tests.waiting import until


class AsyncShop:
    """A database with an async_sessionmaker and its provider."""

    def __init__(self, url: str, **options: Any) -> None:
        self.engine = create_async_engine(for_asyncio(url), **options)
        self.Session = async_sessionmaker(self.engine)
        found = provider(self.Session)
        assert isinstance(found, SessionProvider)
        self.provider = found

    def listen(self, handle: Any = None) -> Heard:
        local = self.provider.current(handle)
        assert local is not None
        local.register(heard := Heard())
        return heard

    async def make(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await asyncio.to_thread(tokens.create_tables, self.provider)

    async def ids(self) -> list[int]:
        async with self.engine.connect() as connection:
            return sorted((await connection.execute(select(Order.id))).scalars())

    async def answer(self, event_id: str) -> LocalTransactionState:
        return await asyncio.to_thread(tokens.answer, self.provider, event_id, 1_000, 1_000, lock_wait_ms=100)


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[AsyncShop]:
    shop = AsyncShop(database_url)
    await shop.make()
    yield shop
    await shop.engine.dispose()


async def test_its_hooks_may_not_wait_for_the_network(shop):
    async with shop.Session.begin() as session:
        await session.execute(select(Order))
        assert not shop.provider.current().waits
    later = async_sessionmaker()
    found = provider(later)
    async with later(bind=shop.engine) as session, session.begin():
        assert not found.current().waits


def transactions(engine: Engine) -> list[str | None]:
    """What each transaction of the others in this database waits for now; None: nothing."""
    others = "backend_type = 'client backend' AND datname = current_database() AND pid <> pg_backend_pid()"
    with engine.connect() as connection:
        return list(connection.scalars(text(f"SELECT wait_event FROM pg_stat_activity WHERE state <> 'idle' AND {others}")))


async def test_a_commit_that_is_cancelled_on_its_way_is_never_told_wrongly(postgres_url):
    """A trigger has the commit wait; the task is cancelled meanwhile, and the driver may or may not finish it."""
    shop = AsyncShop(postgres_url)
    await shop.make()
    async with shop.engine.begin() as connection:
        doze = "CREATE FUNCTION doze() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(0.7); RETURN NULL; END' LANGUAGE plpgsql"
        await connection.execute(text(doze))
        late = "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
        await connection.execute(text(f"{late} FOR EACH ROW EXECUTE FUNCTION doze()"))
    heard: list[Heard] = []

    async def shopping() -> None:
        async with shop.Session.begin() as session:
            session.add(Order(id=1))
            heard.append(shop.listen())

    task = asyncio.create_task(shopping())
    watching = create_engine(postgres_url)
    await asyncio.to_thread(until, lambda: "PgSleep" in transactions(watching))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await asyncio.to_thread(until, lambda: not transactions(watching))
    watching.dispose()
    certain = {Status.COMMITTED: [1], Status.ROLLED_BACK: []}
    assert heard[0].status is Status.UNKNOWN or certain[heard[0].status] == await shop.ids()
    await shop.engine.dispose()


# ---------------------------------------------------------------- tasks


async def test_a_transaction_that_begins_below_in_a_greenlet_is_active_in_its_coroutine(shop):
    """SQLAlchemy runs its blocking side in greenlets; what they bind is to be seen outside."""
    session = shop.Session()
    assert not transaction_active()
    await session.execute(select(Order))
    assert transaction_active()
    await session.run_sync(lambda below: below.commit())
    assert not transaction_active()
    await session.run_sync(lambda below: below.connection())
    assert shop.provider.current() is shop.provider.current(session)
    await session.close()
    assert not transaction_active()


async def test_a_session_that_is_used_by_another_task_is_active_there(shop):
    """As with FastAPI: a dependency opens the session, the endpoint's own task uses it."""
    session = shop.Session()

    async def opening() -> None:
        await session.begin()

    await asyncio.create_task(opening())
    assert shop.provider.current() is None
    session.add(Order(id=1))
    assert shop.provider.current() is shop.provider.current(session)
    await session.close()


# ---------------------------------------------------------------- statements and checks


async def test_a_blocking_publish_on_an_event_loop_is_refused_with_the_remedy(shop):
    async with shop.Session.begin() as session:
        await session.execute(select(Order))
        with pytest.raises(UsageError, match="publish_async"):
            shop.provider.rows(shop.provider.current()).run(tokens.INSERT, tokens.values("a", 1_000))


def test_checks_are_answered_where_no_event_loop_runs(database_url):
    """As in a process that only answers: threads ask at the same time, and loops come and go."""
    shop = AsyncShop(database_url)
    asyncio.run(shop.make())
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: tokens.answer(shop.provider, f"id{n}", 1_000, 1_000, lock_wait_ms=5_000), range(6)))
    asyncio.run(shop.engine.dispose())

    assert found == [LocalTransactionState.ROLLBACK] * 6


async def test_a_checks_own_connections_are_made_as_the_users_are(shop):
    made: list[object] = []
    event.listen(shop.engine.sync_engine, "connect", lambda connection, _: made.append(connection))
    other = async_sessionmaker(shop.engine)
    await asyncio.to_thread(tokens.answer, provider(other), "a", 1_000, 1_000)
    assert made


async def test_one_connection_for_all_is_never_shared_with_an_open_transaction():
    shop = AsyncShop("sqlite://", poolclass=StaticPool)
    await shop.make()
    async with shop.Session() as session:
        session.add(Order(id=1))
        await session.flush()
        assert await shop.answer("a") is LocalTransactionState.OPEN
    assert await shop.answer("a") is LocalTransactionState.ROLLBACK
    assert await shop.ids() == []
    await shop.engine.dispose()


# ---------------------------------------------------------------- what a provider is made of


async def test_hooks_reach_only_the_sessions_of_their_maker(shop):
    async with async_sessionmaker(shop.engine).begin() as session:
        await session.execute(select(Order))
        assert not transaction_active()
    assert provider(async_scoped_session(shop.Session, asyncio.current_task)) is provider(shop.Session) is shop.provider


async def test_a_class_of_async_sessions_needs_a_class_of_its_own_below(shop):
    class Below(Session):
        pass

    class Own(AsyncSession):
        sync_session_class = Below

    found = provider(Own)
    async with Own(shop.engine) as session, session.begin():
        await session.execute(select(Order))
        assert found.current() is found.current(session)
    with pytest.raises(UsageError, match="sessionmaker"):
        provider(AsyncSession)


@pytest.mark.parametrize("hook", ["before_commit", "after_flush", "run_sync"])
async def test_blocking_code_of_an_asyncio_session_publishes_in_its_transaction(shop, hook):
    bus = MemoryBus()
    events = Publisher("P_shop", transport=bus, session=shop.Session)
    await asyncio.to_thread(events.create_tables)

    def publish(session: Session, *_: object) -> None:
        events.publish("TP_ORDER", "EC_PAID", hook, transactional=True, session=session)

    for commits in (True, False):
        async with shop.Session() as session:
            below = session.sync_session
            if hook != "run_sync":
                event.listen(below, hook, publish)
            session.add(Order(id=int(commits)))
            await session.flush()
            if hook == "run_sync":
                await session.run_sync(publish)
            await (session.commit() if commits else session.rollback())

    assert [one.payload for one in bus.events()] == [hook]
    assert bus.pending == ()
