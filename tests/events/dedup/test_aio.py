"""No effect twice, with connections of asyncpg and psycopg's asyncio connections."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest

from halfmoon.errors import UsageError
from halfmoon.events.aio import provider
from halfmoon.events.dedup import create_tables
from tests.events.consuming.shop import stored
from tests.events.dedup.mails import dispatch
from tests.events.real_databases import plain


@pytest.fixture(params=["asyncpg", "psycopg"])
def database(request: pytest.FixtureRequest, postgres_url: str) -> Any:
    connect: Any = asyncpg.connect if request.param == "asyncpg" else psycopg.AsyncConnection.connect
    made = provider(lambda: connect(plain(postgres_url)))
    create_tables(made)
    with made.fresh() as rows:
        rows.run("CREATE TABLE mails (event_id VARCHAR(64) PRIMARY KEY)")
    yield made
    made.release()


def mailed(database: Any) -> list[str]:
    with database.fresh() as rows:
        return [row[0] for row in rows.all("SELECT event_id FROM mails")]


async def mail(event: Any, context: Any) -> None:
    await context.session.execute(f"INSERT INTO mails VALUES ('{event.id}')")
    if event.payload == "fails" and context.attempt == 1:
        raise ConnectionError("no mail server")
    if event.payload == "swallows" and context.attempt == 1:
        with suppress(asyncpg.PostgresError, psycopg.Error):
            await context.session.execute(f"INSERT INTO mails VALUES ('{event.id}')")


def test_an_event_takes_effect_once_and_one_that_failed_again(database: Any) -> None:
    good, bad, odd = stored("EC_PAID", "works"), stored("EC_PAID", "fails"), stored("EC_PAID", "swallows")
    mine = dispatch(mail, database)

    async def main() -> None:
        first = [(await mine.consume_async(one, 1)).consumed for one in (good, good, bad, odd)]
        assert first == [True, True, False, False]
        assert mailed(database) == [good.msg_id]
        again = [(await mine.consume_async(one, 2)).consumed for one in (good, bad, odd)]
        assert again == [True, True, True]

    asyncio.run(main())
    assert mailed(database) == [good.msg_id, bad.msg_id, odd.msg_id]


def test_of_two_that_process_an_event_at_once_one_waits_and_finds_it_done(database: Any) -> None:
    event, mine, calls = stored("EC_PAID", "works"), None, []

    async def slow(event: Any, context: Any) -> None:
        calls.append(event.id)
        await asyncio.sleep(0.05)
        await mail(event, context)

    mine = dispatch(slow, database)

    async def main() -> None:
        both = await asyncio.gather(mine.consume_async(event, 1), mine.consume_async(event, 1))
        assert [one.consumed for one in both] == [True, True]

    asyncio.run(main())
    assert calls == mailed(database) == [event.msg_id]


def test_a_plain_function_cannot_have_it(database: Any) -> None:
    with pytest.raises(UsageError, match="event loop"):
        dispatch(lambda event, context: None, database)
