"""No effect twice, with SQLAlchemy: Connections of an engine, and what coroutines are lent."""

from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events.sqlalchemy import provider
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import async_maker, dispatch, engine, mailed, write
from tests.events.real_databases import for_asyncio

__all__ = ["engine"]

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")


def test_an_engine_lends_its_connections(engine):
    message = stored("EC_PAID")
    for attempt in (1, 2):
        assert dispatch(write, engine).consume(message, attempt).consumed

    assert mailed(engine) == [message.msg_id]


def test_a_provider_with_a_stated_engine_lends_the_sessions_of_its_sessionmaker(engine):
    kinds, message = [], stored("EC_PAID")

    def handle(event, context):
        kinds.append(type(context.session).__mro__[1])
        write(event, context)

    for attempt in (1, 2):
        assert dispatch(handle, provider(sessionmaker(engine), bind=engine)).consume(message, attempt).consumed

    assert kinds == [Session]
    assert mailed(engine) == [message.msg_id]


async def test_coroutine_functions_work_in_an_async_session(engine, database_url):
    async def handle(event, context):
        await context.session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": event.id})
        if event.payload == "fails" and context.attempt == 1:
            context.set_rollback_only("not yet")

    good, bad = stored("EC_PAID", "works"), stored("EC_PAID", "fails")
    async with async_maker(database_url) as maker:
        mine = dispatch(handle, maker)
        first = [await mine.consume_async(one, 1) for one in (good, good, bad)]
        after_the_first = mailed(engine)
        again = await mine.consume_async(bad, 2)

    assert [one.consumed for one in first] == [True, True, False]
    assert after_the_first == [good.msg_id]
    assert again.consumed
    assert sorted(mailed(engine)) == sorted([good.msg_id, bad.msg_id])


async def test_a_coroutine_that_commits_by_itself_and_fails_then_gets_the_event_again(engine, database_url):
    async def handle(event, context):
        await context.session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": event.id})
        await context.session.commit()
        if context.attempt == 1:
            raise ConnectionError("no mail server")

    message = stored("EC_PAID")
    async with async_maker(database_url) as maker:
        outcomes = [await dispatch(handle, maker).consume_async(message, attempt) for attempt in (1, 2, 3)]

    assert [one.consumed for one in outcomes] == [False, True, True]
    assert mailed(engine) == [message.msg_id] * 2


async def test_coroutines_that_get_the_same_event_at_once_have_one_effect(engine, database_url):
    calls = []

    async def handle(event, context):
        calls.append(event.id)
        await context.session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": event.id})
        await asyncio.sleep(0.2)

    message = stored("EC_PAID")
    async with async_maker(database_url) as maker:
        mine = dispatch(handle, maker)
        outcomes = await asyncio.gather(*(mine.consume_async(message, 1) for _ in range(4)))

    assert [one.consumed for one in outcomes] == [True] * 4
    assert calls == mailed(engine) == [message.msg_id]


async def test_an_async_engine_lends_its_connections(engine, database_url):
    async def handle(event, context):
        await context.session.execute(text("INSERT INTO mails VALUES (:id)"), {"id": event.id})

    message = stored("EC_PAID")
    found = create_async_engine(for_asyncio(database_url), poolclass=NullPool)
    mine = dispatch(handle, found)
    outcomes = [await mine.consume_async(message, attempt) for attempt in (1, 2)]
    await found.dispose()

    assert [one.consumed for one in outcomes] == [True, True]
    assert mailed(engine) == [message.msg_id]
