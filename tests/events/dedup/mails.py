"""A database with a table of mails, each the effect of an event, and consumers that write them: what tests of dedup share."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from halfmoon.events import dedup
from halfmoon.events.consuming.dispatch import Dispatch, Outcome
from halfmoon.events.consuming.on import Handler
from halfmoon.events.dedup import ledger_of
from halfmoon.events.dedup.ledger import ConsumedLedger
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.sqlalchemy import provider
from halfmoon.model import StoredMessage
from tests.events.consuming.shop import stored
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


def dispatch(
    function: Callable, dedup: object, group: str = "S_mail", topics: tuple[str, ...] = ("TP_ORDER",), **options: Any
) -> Dispatch:
    """Return consumers with a ``dedup``; ``options`` are those of its `ConsumedLedger`."""
    handlers = [Handler(group=group, topic=one, code="EC_PAID", function=function, dedup=dedup) for one in topics]
    return Dispatch(group, handlers, Codecs(), {id(dedup): ConsumedLedger(ledger_of(dedup).provider, **options)})


def async_maker(url: str) -> async_sessionmaker[AsyncSession]:
    return async_sessionmaker(create_async_engine(for_asyncio(url), poolclass=NullPool))


def in_text(session: Any, statement: str) -> Any:
    """Run a statement in a Session or Connection of SQLAlchemy."""
    return session.execute(text(statement))


class Mailing:
    """Consumers of one ledger that write a mail for each event: plain functions, or coroutines where the ledger is for those.

    ``execute(session, statement)`` runs a statement in what they are lent; ``then(event, context)`` does the rest.
    """

    def __init__(
        self,
        ledger: object,
        execute: Callable[[Any, str], Any] = in_text,
        then: Callable[[Any, Any], Any] = lambda event, context: None,
    ) -> None:
        self.calls: list[str] = []
        self.is_async = ledger_of(ledger).is_async

        def steps(event: Any, context: Any) -> Iterator[Any]:
            self.calls.append(event.id)
            yield execute(context.session, f"INSERT INTO mails VALUES ('{event.id}')")
            yield then(event, context)

        def mail(event: Any, context: Any) -> None:
            for _ in steps(event, context):
                pass

        async def mail_async(event: Any, context: Any) -> None:
            for step in steps(event, context):
                if inspect.isawaitable(step):
                    await step

        self._dispatch = dispatch(mail_async if self.is_async else mail, ledger)

    def consume(self, message: StoredMessage, attempt: int) -> Outcome:
        """Consume an event, to the end."""
        if self.is_async:
            return asyncio.run(self._dispatch.consume_async(message, attempt))
        return self._dispatch.consume(message, attempt)

    async def consume_at_once(self, message: StoredMessage, count: int) -> list[Outcome]:
        """Consume an event in several tasks at once."""
        return await asyncio.gather(*(self._dispatch.consume_async(message, 1) for _ in range(count)))


def fail_as_told(event: Any, context: Any) -> None:
    """Fail the first attempt in the way that the payload says."""
    if context.attempt == 1 and event.payload == "raises":
        raise ConnectionError("no mail server")
    if context.attempt == 1 and event.payload == "refuses":
        context.set_rollback_only("no mail server")


def check_that_no_effect_comes_twice(engine: Engine, ledger: object, execute: Callable[[Any, str], Any] = in_text) -> None:
    """Check that an event which comes again is not processed again, and one that failed was undone whole and is."""
    works, raises, refuses = (stored("EC_PAID", how) for how in ("works", "raises", "refuses"))
    mine = Mailing(ledger, execute, fail_as_told)
    first = [mine.consume(one, 1) for one in (works, works, raises, refuses)]
    after_the_first = (mailed(engine), noted(engine))
    again = [mine.consume(one, 2) for one in (works, raises, refuses)]

    assert [one.consumed for one in first] == [True, True, False, False]
    assert all(one.reason.endswith("no mail server") for one in first[2:])
    assert after_the_first == ([works.msg_id], [("S_mail", works.msg_id)])
    assert [one.consumed for one in again] == [True, True, True]
    assert sorted(mailed(engine)) == sorted(one.msg_id for one in (works, raises, refuses))
    assert mine.calls == [one.msg_id for one in (works, raises, refuses, raises, refuses)]
