# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Ways of an event where there is a database: token rows, the outbox, and several transactions at once. A real SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from halfmoon.events import (
    Event,
    Publisher,
    PublishFailed,
    Status,
    TransactionEnded,
    local_transaction,
)
from halfmoon.events.publishing.delivery_modes import DeliveryMode, DeliveryModes, DeliveryRules
from halfmoon.events.publishing.flow import drive
from halfmoon.model import Message
from tests.events.fakes import Blocks, FakeTransport
from tests.waiting import until

T, C = "TP_ORDER", "EC_PAID"


@pytest.fixture
def database(tmp_path: Path) -> Blocks:
    found = Blocks(tmp_path / "shop.db")
    with sqlite3.connect(found.path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    return found


@pytest.fixture
def shop(transport: FakeTransport, database: Blocks) -> Iterator[Publisher]:
    """A publisher with a database and token rows."""
    with Publisher("P_shop", transport=transport, provider=database, tries_max=0) as publisher:
        publisher.create_tables()
        yield publisher


def orders(database: Blocks) -> list[int]:
    with sqlite3.connect(database.path) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id")]


# ---------------------------------------------------------------- token rows


def test_the_row_is_written_after_the_first_phase_and_commits_with_the_data(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    def count() -> int:
        return int(connection.execute("SELECT count(*) FROM halfmoon_event WHERE state < 2").fetchone()[0])

    with database.begin() as connection:
        seen: list[int] = []
        transport.before = lambda call: seen.append(count())
        event_id = shop.publish(T, C, 1, transactional=True).event_id
        assert (seen, count()) == ([0], 1)
        assert transport.messages[0].properties["EVENT_CHECK"] == "token"
    with sqlite3.connect(database.path) as later:
        assert later.execute("SELECT id, state FROM halfmoon_event WHERE state < 2").fetchall() == [(event_id, 1)]


def test_without_the_table_nothing_is_sent(transport: FakeTransport, database: Blocks, caplog: pytest.LogCaptureFixture) -> None:
    publisher = Publisher("P_shop", transport=transport, provider=database)
    with pytest.raises(sqlite3.OperationalError, match="no such table"), database.begin() as connection:
        connection.execute("INSERT INTO orders VALUES (42)")
        publisher.publish(T, C, 1, transactional=True, raise_on_failure=False)
    assert transport.calls == []
    assert orders(database) == []


def test_no_row_is_written_where_the_transaction_ended_meanwhile(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    def end(_: object) -> None:
        transaction = shop.provider.current()
        assert transaction is not None
        transaction.end(Status.COMMITTED)

    with database.begin() as connection:
        transport.before = end
        with pytest.raises(TransactionEnded):
            shop.publish(T, C, 1, transactional=True)
        assert connection.execute("SELECT * FROM halfmoon_event WHERE state < 2").fetchall() == []
    assert [commit for _, commit in transport.decisions] == [False]


def test_plain_events_write_no_row(shop: Publisher, transport: FakeTransport, database: Blocks) -> None:
    with database.begin() as connection:
        shop.publish(T, C, 1)
        assert connection.execute("SELECT * FROM halfmoon_event WHERE state < 2").fetchall() == []


def test_an_event_that_another_transaction_published_is_refused_by_its_row(shop: Publisher, database: Blocks) -> None:
    event = shop.event(T, C, 1, transactional=True)
    with database.begin():
        shop.publish(event)
    with pytest.raises(PublishFailed, match="another transaction"), database.begin():
        shop.publish(event)


# ---------------------------------------------------------------- the outbox


@pytest.fixture
def outbox(transport: FakeTransport, database: Blocks) -> Iterator[Publisher]:
    with Publisher("P_shop", transport=transport, provider=database, mode="outbox", relay=False) as publisher:
        publisher.create_tables()
        yield publisher


def test_events_of_both_kinds_become_rows_of_their_transaction(
    outbox: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    with database.begin():
        ids = [outbox.publish(T, C, n, transactional=transactional).event_id for n, transactional in enumerate([False, True])]
    with pytest.raises(ValueError), database.begin():
        assert outbox.publish(T, C, 3).delivery is DeliveryMode.OUTBOX
        raise ValueError
    with sqlite3.connect(database.path) as connection:
        rows = connection.execute("SELECT event_id FROM halfmoon_outbox ORDER BY 1").fetchall()
    assert [row[0] for row in rows] == sorted(ids)
    assert transport.calls == []


def test_a_relay_is_woken_after_each_commit_and_not_before(outbox: Publisher, transport: FakeTransport, database: Blocks) -> None:
    nudges: list[int] = []
    paths = DeliveryModes(DeliveryRules("P_shop", outbox=True), transport, database, wake_relay=lambda: nudges.append(1))
    event = Event(id="1", topic=T, code=C, published_ms=1)
    with database.begin():
        drive(paths.deliver([DeliveryMode.OUTBOX], [event], [Message(T, b"1", msg_id="1")], database.current()), transport)
        assert nudges == []
    assert nudges == [1]


def test_the_relay_of_the_process_sends_what_was_committed(transport: FakeTransport, database: Blocks) -> None:
    with Publisher("P_shop", transport=transport, provider=database, mode="outbox") as publisher:
        publisher.create_tables()
        with database.begin():
            event_id = publisher.publish(T, C, 1, transactional=True).event_id
        until(lambda: transport.calls)
    assert [message.msg_id for message in transport.messages] == [event_id]


# ---------------------------------------------------------------- several at once


def test_several_publishers_share_a_transaction(database: Blocks) -> None:
    transports = [FakeTransport(), FakeTransport()]
    publishers = [Publisher(f"P_{n}", transport=one, provider=database) for n, one in enumerate(transports)]
    publishers[0].create_tables()
    transports[1].new_id = lambda: "F" * 32  # type: ignore[method-assign]
    with database.begin():
        for publisher in publishers:
            publisher.publish(T, C, 1, transactional=True)
    assert [[commit for _, commit in one.decisions] for one in transports] == [[True], [True]]


def test_a_publisher_follows_the_transactions_of_its_own_database_only(
    events: Publisher, shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    with database.begin():
        assert events.publish(T, C, 1).delivery is DeliveryMode.SENT
        with local_transaction():
            assert events.publish(T, C, 2).delivery is DeliveryMode.DEFERRED
            assert shop.publish(T, C, 3).delivery is DeliveryMode.DEFERRED
        assert [message.body for message in transport.messages] == [b"1", b"2"]
    assert [message.body for message in transport.messages] == [b"1", b"2", b"3"]
