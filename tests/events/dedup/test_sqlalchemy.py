"""No effect twice, with SQLAlchemy: what functions and coroutines are lent of each kind of engine and sessionmaker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events.sqlalchemy import provider
from tests.events.dedup.mails import async_maker, check_that_no_effect_comes_twice, engine, in_text
from tests.events.real_databases import for_asyncio

__all__ = ["engine"]

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def async_engine(url: str) -> AsyncEngine:
    return create_async_engine(for_asyncio(url), poolclass=NullPool)


LENT: dict[str, tuple[Callable[[Engine, str], object], type]] = {
    "a sessionmaker": (lambda engine, url: sessionmaker(engine), Session),
    "a sessionmaker's provider": (lambda engine, url: provider(sessionmaker(engine), bind=engine), Session),
    "an engine": (lambda engine, url: engine, Connection),
    "an engine's provider": (lambda engine, url: provider(engine), Connection),
    "an async_sessionmaker": (lambda engine, url: async_maker(url), AsyncSession),
    "an async engine": (lambda engine, url: async_engine(url), AsyncConnection),
    "an async engine's provider": (lambda engine, url: provider(async_engine(url)), AsyncConnection),
}


@pytest.mark.mission("002-19", "002-20")
@pytest.mark.parametrize("given", LENT)
def test_events_take_effect_once_in_what_is_lent_of(engine: Engine, database_url: str, given: str) -> None:
    made, kind = LENT[given]

    def execute(session: Any, statement: str) -> Any:
        assert isinstance(session, kind)
        return in_text(session, statement)

    check_that_no_effect_comes_twice(engine, made(engine, database_url), execute)
