"""Things of SQLAlchemy in the wrong place are refused with the right one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.errors import UsageError
from halfmoon.events import Publisher
from halfmoon.events.sqlalchemy import begin, begin_async
from tests.events.fakes import FakeTransport

ENGINE, ASYNC_ENGINE = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
Maker, AsyncMaker = sessionmaker(ENGINE), async_sessionmaker(ASYNC_ENGINE)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (Maker(), "a Session of sqlalchemy: it is one session: give the sessionmaker that makes them here"),
        (AsyncMaker(), "an AsyncSession of sqlalchemy: it is one session"),
        (Session, "the class Session of sqlalchemy: all sessions of the process would count"),
        (AsyncSession, "the class AsyncSession of sqlalchemy: all sessions of the process would count"),
        (ENGINE.connect(), "a Connection of sqlalchemy: it is one connection: give its engine here"),
        (ASYNC_ENGINE.connect(), "an AsyncConnection of sqlalchemy: it is one connection"),
        (make_url("sqlite://"), "a URL of sqlalchemy: it is an address: give an engine"),
    ],
)
def test_a_publisher_takes_what_makes_sessions_and_says_what_else_it_was_given(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=f"^session= is {told}"):
        Publisher("P_shop", transport=FakeTransport(), session=given)


@pytest.mark.parametrize("session", [Maker, AsyncMaker, ENGINE, ASYNC_ENGINE])
def test_a_publisher_takes_sessionmakers_and_engines(session: Any) -> None:
    Publisher("P_shop", transport=FakeTransport(), session=session)


@pytest.mark.parametrize(
    ("session", "wanted"),
    [
        (Maker, r"give a session of the publisher's own sessionmaker, as `with Session.begin\(\) as session:` opens one"),
        (ENGINE, r"give a connection of the publisher's own engine, as `with halfmoon.events.sqlalchemy.begin\(engine\)"),
    ],
)
@pytest.mark.parametrize(
    ("handle", "kind"),
    [
        (ENGINE, "an Engine"),
        (ASYNC_ENGINE, "an AsyncEngine"),
        (Maker, "a sessionmaker"),
        (AsyncMaker, "an async_sessionmaker"),
        (Session, "the class Session"),
        (sessionmaker(create_engine("sqlite://"))(), "a Session"),
    ],
)
def test_a_publish_takes_what_has_a_transaction_and_says_what_else_it_was_given(
    session: Any, wanted: str, handle: Any, kind: str
) -> None:
    publisher = Publisher("P_shop", transport=FakeTransport(), session=session)
    with pytest.raises(UsageError, match=f"^session= is {kind} of sqlalchemy: {wanted}"):
        publisher.publish("TP_ORDER", "EC_PAID", 1, session=handle)


@pytest.mark.parametrize("block", [begin, begin_async])
@pytest.mark.parametrize("given", [Maker, ENGINE.connect(), "sqlite://"])
async def test_a_block_is_of_an_engine(block: Callable[[Any], Any], given: Any) -> None:
    with pytest.raises(UsageError, match=r"^begin\(.*\): give an Engine"):
        block(given)


def test_a_bind_is_an_engine() -> None:
    with pytest.raises(UsageError, match=r"^bind= is a sessionmaker of sqlalchemy: give an Engine"):
        Publisher("P_shop", transport=FakeTransport(), session=sessionmaker(), bind=Maker)
