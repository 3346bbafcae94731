"""A database with a table of mails, each the effect of an event, and consumers that write them: what tests of dedup share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import dedup
from halfmoon.events.consuming.dispatch import Dispatch
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup import ledger_of
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.sqlalchemy import provider
from tests.events.real_databases import for_asyncio


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    found = create_engine(database_url)
    with found.begin() as connection:
        connection.execute(text("CREATE TABLE mails (event_id VARCHAR(64))"))
    dedup.create_tables(provider(sessionmaker(found)))
    yield found
    found.dispose()


@pytest.fixture
def maker(engine: Engine) -> sessionmaker[Session]:
    return sessionmaker(engine)


def mailed(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT event_id FROM mails")))


def noted(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(text("SELECT consumer_group, event_id FROM halfmoon_consumed"))]


def write(event, context) -> None:
    context.session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": event.id})


def dispatch(function: Callable, ledger: object, group: str = "S_mail", topics: tuple[str, ...] = ("TP_ORDER",)) -> Dispatch:
    handlers = [Handler(group=group, topic=one, code="EC_PAID", function=function, dedup=ledger) for one in topics]
    return Dispatch(group, handlers, Codecs(), {id(ledger): ledger_of(ledger)})


@contextlib.asynccontextmanager
async def async_maker(url: str):
    found = create_async_engine(for_asyncio(url), poolclass=NullPool)
    yield async_sessionmaker(found)
    await found.dispose()
