"""No effect twice, with connections of asyncpg and psycopg's asyncio connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from halfmoon.events.aio import AsyncProvider, provider
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import Mailing, check_that_no_effect_comes_twice, engine, mailed
from tests.events.real_databases import plain

__all__ = ["engine"]


@pytest.fixture
def database_url(postgres_url: str) -> str:
    return postgres_url


@pytest.fixture(params=["asyncpg", "psycopg"])
def database(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[AsyncProvider]:
    connect: Any = asyncpg.connect if request.param == "asyncpg" else psycopg.AsyncConnection.connect
    made = provider(lambda: connect(plain(postgres_url)))
    yield made
    made.release()


async def execute(connection: Any, statement: str) -> None:
    await connection.execute(statement)


def test_events_take_effect_once(engine: Any, database: AsyncProvider) -> None:
    check_that_no_effect_comes_twice(engine, database, execute)


def test_an_event_whose_function_swallowed_an_error_of_the_database_comes_again(engine: Any, database: AsyncProvider) -> None:
    async def swallow(event: Any, context: Any) -> None:
        if context.attempt == 1:
            with suppress(asyncpg.PostgresError, psycopg.Error):
                await context.session.execute("SELECT 1 FROM nowhere")

    message, mine = stored("EC_PAID"), Mailing(database, execute, swallow)

    assert [mine.consume(message, attempt).consumed for attempt in (1, 2)] == [False, True]
    assert mailed(engine) == [message.msg_id]


async def test_of_several_that_process_an_event_at_once_one_has_the_effect(engine: Any, database: AsyncProvider) -> None:
    message, mine = stored("EC_PAID"), Mailing(database, execute, lambda event, context: asyncio.sleep(0.05))

    assert [one.consumed for one in await mine.consume_at_once(message, 2)] == [True, True]
    assert mine.calls == mailed(engine) == [message.msg_id]
