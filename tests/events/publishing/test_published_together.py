# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Many events of one call: half messages at once, their rows in one statement, all of them or none."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.events import NoTransaction, Published, PublishedBefore, Publisher, PublishFailed, event
from halfmoon.events.publishing import publisher as module
from halfmoon.events.tables import IDENTITY
from halfmoon.events.testing import MemoryBus
from tests.events.fakes import Blocks, FakeTransport, lost

T, C = "TP_ORDER", "EC_PAID"


@event(T, C, key="order_id")
@dataclass
class Paid:
    order_id: int


def rows(database: Blocks, table: str = "halfmoon_event", column: str = "id") -> list[str]:
    with sqlite3.connect(database.path) as connection:
        found = [row[0] for row in connection.execute(f"SELECT {column} FROM {table} ORDER BY rowid")]
        return [one for one in found if one != IDENTITY]


def counted(database: Blocks) -> list[str]:
    """Record the statements that are run in the user's transactions."""
    statements: list[str] = []
    plain = database.rows

    def watched(transaction: Any) -> Any:
        made = plain(transaction)
        run = made.run
        made.run = lambda statement, values=None: (statements.append(statement), run(statement, values))[1]  # queries not
        return made

    database.rows = watched  # type: ignore[method-assign]
    return statements


def test_events_of_a_transaction_are_prepared_together_and_their_rows_are_one_statement(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    statements = counted(database)
    transport.script.extend([None, lost()])  # the second one, which succeeds when it is repeated
    with database.begin():
        built = shop.event(T, "EC_SENT", 7)
        published = shop.publish_many([Paid(1), built, Paid(2)], transactional=True)
    assert [one.delivery for one in published] == ["prepared"] * 3
    assert published[1].event_id == built.id
    assert [message.tag for message in transport.messages] == [C, "EC_SENT", C, "EC_SENT"]
    assert [one.partition(" ")[0] for one in statements] == ["INSERT"]
    assert rows(database) == [one.event_id for one in published]
    assert sorted(transport.decisions) == sorted((one.event_id, True) for one in published)


def test_when_one_fails_the_others_are_rolled_back_at_once_and_the_error_names_it(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    made = [shop.event(T, C, number) for number in range(3)]
    transport.script.extend([None, lost(), None, lost()])  # the second one, and its repeat
    with database.begin(), pytest.raises(PublishFailed, match="none of the call is published") as failed:
        shop.publish_many(made, transactional=True)
    assert (failed.value.event_id, failed.value.event_ids) == (made[1].id, (made[1].id,))
    assert [call.attempt for call in transport.calls] == [1, 1, 1, 2]
    assert sorted(transport.decided) == [(made[0].id, False), (made[2].id, False)]
    assert rows(database) == []


def test_a_message_that_the_client_refuses_is_raised_as_it_came(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    transport.script.extend([None, MessageIllegal("too large")])
    with database.begin(), pytest.raises(MessageIllegal):
        shop.publish_many([Paid(1), Paid(2)], transactional=True)
    assert len(transport.decided) == 1


def test_when_the_database_refuses_a_row_nothing_is_sent(shop: Publisher, transport: FakeTransport, database: Blocks) -> None:
    made = [shop.event(T, C, number) for number in range(2)]
    with database.fresh() as own:
        own.run("INSERT INTO halfmoon_event VALUES (:id, 0, 1)", {"id": made[1].id})
    with database.begin(), pytest.raises(PublishFailed, match="already exists") as failed:
        shop.publish_many(made, transactional=True)
    assert failed.value.in_database
    assert failed.value.event_ids == (made[0].id, made[1].id)
    assert transport.calls == []


def test_a_rollback_takes_all_back_and_plain_events_of_the_call_are_sent_after_the_commit(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    with pytest.raises(ZeroDivisionError), database.begin():
        shop.publish_many([Paid(1), Paid(2)], transactional=True)
        shop.publish_many([Paid(3)], transactional=False)
        1 / 0  # noqa: B018
    assert [commit for _, commit in transport.decisions] == [False, False]
    assert transport.kinds == ["prepare", "prepare"]
    with database.begin():
        assert [one.delivery for one in shop.publish_many([Paid(1), Paid(2)], transactional=False)] == ["deferred"] * 2
        assert len(transport.calls) == 2
    assert transport.kinds[2:] == ["send", "send"]


def test_the_outbox_gets_one_statement_in_the_order_of_the_events(transport: FakeTransport, database: Blocks) -> None:
    with Publisher("P_shop", transport=transport, provider=database, mode="outbox", relay=False) as shop:
        shop.create_tables()
        statements = counted(database)
        with database.begin():
            published = shop.publish_many([Paid(number) for number in range(30)])
    assert len(statements) == 1
    assert rows(database, "halfmoon_outbox", "event_id") == [one.event_id for one in published]


def test_outside_of_a_transaction_plain_events_are_sent_together_and_others_refused(
    shop: Publisher, transport: FakeTransport
) -> None:
    with pytest.raises(NoTransaction, match="transactional=False"):
        shop.publish_many([Paid(1)])
    assert transport.calls == []
    assert [one.delivery for one in shop.publish_many([Paid(1), Paid(2)], transactional=False)] == ["sent"] * 2
    transport.script.extend([lost(), None, lost()])
    made = [shop.event(T, C, number) for number in range(2)]
    with pytest.raises(PublishFailed, match="the other events were sent") as failed:
        shop.publish_many(made, at_once=True)
    assert failed.value.event_ids == (made[0].id,)


def test_what_cannot_be_published_together_is_refused_before_anything_is_sent(
    shop: Publisher, transport: FakeTransport, database: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = shop.event(T, C, 1)
    with pytest.raises(PublishedBefore):
        shop.publish_many([twice, twice])
    with pytest.raises(UsageError, match="is no event"):
        shop.publish_many([Paid(1), object()])
    monkeypatch.setattr(module, "EVENTS_MAX", 3)
    with pytest.raises(UsageError, match="more than 3 events"):
        shop.publish_many(Paid(number) for number in range(4))
    assert shop.publish_many([]) == []
    with database.begin():
        shop.publish_many([twice], transactional=True)
        with pytest.raises(PublishedBefore):
            shop.publish_many([Paid(1), twice], transactional=True)
    assert len(transport.calls) == 1


def test_on_an_event_loop_statements_are_awaited(shop: Publisher, transport: FakeTransport, database: Blocks) -> None:
    async def publish() -> list[Published]:
        with database.begin(waits=False) as connection:
            return await shop.bound_to(connection).publish_many_async([Paid(number) for number in range(5)], transactional=True)

    published = asyncio.run(publish())
    assert database.awaited == 2
    assert rows(database) == [one.event_id for one in published]


def test_one_who_is_cancelled_leaves_nothing_that_nobody_decides(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    def cancelled(call: object) -> None:
        raise asyncio.CancelledError

    transport.before = cancelled

    async def publish() -> None:
        with database.begin(waits=False), pytest.raises(asyncio.CancelledError):
            await shop.publish_many_async([Paid(1), Paid(2)], transactional=True)

    asyncio.run(publish())
    assert rows(database) == []  # a check finds no row, whatever the broker has stored


@pytest.mark.parametrize(
    "publish", [Publisher.publish_many, lambda shop, events, **plain: asyncio.run(shop.publish_many_async(events, **plain))]
)
def test_a_bus_in_memory_takes_them_too(database: Blocks, publish: Callable[..., list[Published]]) -> None:
    bus = MemoryBus()
    with Publisher("P_shop", transport=bus, provider=database, tries_max=0) as shop:
        shop.create_tables()
        publish(shop, [Paid(1), Paid(2)], transactional=False)
        bus.fail_next("prepare")
        with pytest.raises(PublishFailed), database.begin():
            shop.publish_many([Paid(5), Paid(6)], transactional=True)
    assert [one.payload["order_id"] for one in bus.events(T, C)] == [1, 2]
    assert len(bus.rolled_back) == 1
