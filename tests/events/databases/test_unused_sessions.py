"""Which transaction a publish belongs to: one that is known for certain, or none, and then it is refused before anything is sent.

The sessions here are SQLAlchemy's. A session that was opened and has had no statement yet is the trap: what is
published in it must go with it.
"""

import gc
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from halfmoon.events import Publisher
from halfmoon.events.databases.unused_sessions import UNUSED_MAX
from halfmoon.events.errors import AmbiguousTransaction, NoTransaction
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from halfmoon.events.testing import MemoryBus
from tests.events.sqlalchemy.shops import Base, Order

T, C = "TP_ORDER", "EC_PAID"


class Shop:
    """A database with a sessionmaker and its publisher on a bus."""

    def __init__(self, url: str, **options: Any) -> None:
        self.engine = create_engine(url)
        self.Session = sessionmaker(self.engine)
        self.bus = MemoryBus()
        Base.metadata.create_all(self.engine)
        self.events = Publisher("P_shop", transport=self.bus, session=self.Session, **options)
        self.events.create_tables()

    def publish(self, payload: int = 1, **options: Any) -> DeliveryMode:
        return self.events.publish(T, C, payload, **{"transactional": True, **options}).delivery

    def seen(self) -> list[int]:
        return [one.payload for one in self.bus.events()]

    def ids(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(select(Order.id)).scalars())


@pytest.fixture
def shop(sqlite_url: str) -> Iterator[Shop]:
    found = Shop(sqlite_url)
    yield found
    found.events.close()
    found.engine.dispose()


def nothing_was_sent(bus: MemoryBus) -> bool:
    return not (bus.pending or bus.committed or bus.rolled_back)


# ---------------------------------------------------------------- a session without a statement


def test_a_scoped_session_that_is_named_need_not_have_begun(sqlite_url: str):
    shop = Shop(sqlite_url)
    scoped = scoped_session(shop.Session)
    shop.publish(1, session=scoped)
    scoped.add(Order(id=1))
    scoped.commit()
    assert shop.seen() == shop.ids() == [1]
    scoped.remove()
    with pytest.raises(NoTransaction):
        shop.publish(2)
    scoped()
    shop.publish(3)
    scoped.remove()
    assert shop.seen() == [1]
    shop.engine.dispose()


def test_a_session_whose_publish_was_all_that_happened_says_that_it_is_dropped(shop: Shop, caplog: pytest.LogCaptureFixture):
    with shop.Session():
        shop.publish(transactional=False)
    assert shop.seen() == []
    assert "ended without a commit or any statement" in caplog.text


# ---------------------------------------------------------------- what is not certain is refused


def test_a_session_opened_inside_a_transaction_makes_it_ambiguous(shop: Shop):
    with shop.Session.begin() as outer:
        outer.add(Order(id=1))
        with shop.Session(), pytest.raises(AmbiguousTransaction):
            shop.publish()
        shop.publish(2)
    assert shop.seen() == [2]


def test_an_outer_session_without_a_statement_is_not_meant_inside_a_transaction(shop: Shop):
    with shop.Session() as outer:
        with shop.Session.begin() as inner:
            inner.add(Order(id=1))
            shop.publish(1)
        assert shop.seen() == [1]
        shop.publish(2)
        outer.rollback()
    assert shop.seen() == [1]


@pytest.mark.parametrize("ending", ["close", "invalidate", "garbage"])
def test_a_session_that_is_gone_is_not_meant(shop: Shop, ending: str):
    session: Session | None = shop.Session()
    if ending == "garbage":
        session = None
        gc.collect()
    else:
        getattr(session, ending)()
    with pytest.raises(NoTransaction):
        shop.publish()
    if session is not None:
        with pytest.raises(NoTransaction):
            shop.publish(session=session)
    assert nothing_was_sent(shop.bus)


def test_a_session_that_waits_for_its_begin_is_not_meant(shop: Shop):
    with shop.Session(autobegin=False) as session:
        for options in ({}, {"session": session}):
            with pytest.raises(NoTransaction):
                shop.publish(**options)
        with session.begin():
            shop.publish(2)
    assert shop.seen() == [2]


def test_a_publisher_that_is_not_strict_still_finds_the_session(sqlite_url: str):
    shop = Shop(sqlite_url, strict=False)
    with shop.Session() as session:
        shop.publish(1)
        session.rollback()
    assert shop.publish(2) is DeliveryMode.SENT
    assert shop.seen() == [2]
    shop.engine.dispose()


def test_what_a_context_remembers_of_idle_sessions_is_bounded(shop: Shop):
    kept = [shop.Session() for _ in range(3 * UNUSED_MAX)]
    with pytest.raises(AmbiguousTransaction, match=f"{UNUSED_MAX} sessions"):
        shop.publish()
    for one in kept:
        one.close()


# ---------------------------------------------------------------- asyncio, FastAPI


async def test_the_session_that_a_dependency_of_fastapi_yields_is_known_or_the_publish_is_refused(shop: Shop):
    app, bus = FastAPI(), shop.bus

    def blocking() -> Iterator[Session]:  # runs in another thread than the endpoint, with a context of its own
        with shop.Session() as session:
            yield session

    async def on_loop() -> AsyncIterator[Session]:
        with shop.Session() as session:
            yield session

    def bound(session: Annotated[Session, Depends(blocking)]) -> Any:
        return shop.events.bound_to(session)

    @app.get("/refused")
    def refused(session: Annotated[Session, Depends(blocking)]) -> bool:
        with pytest.raises(NoTransaction, match="bound_to"):
            shop.publish()
        return nothing_was_sent(bus)

    @app.get("/known/{commits}")
    def known(commits: bool, session: Annotated[Session, Depends(on_loop)]) -> None:
        shop.publish(1 + commits)
        if commits:
            session.commit()

    @app.get("/bound/{commits}")
    def also(commits: bool, session: Annotated[Session, Depends(blocking)], events: Annotated[Any, Depends(bound)]) -> None:
        events.publish(T, C, 3 + commits, transactional=True)
        if commits:
            session.commit()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://host") as client:
        for path in ("/refused", "/known/false", "/known/true", "/bound/false", "/bound/true"):
            (await client.get(path)).raise_for_status()
    assert shop.seen() == [2, 4]
