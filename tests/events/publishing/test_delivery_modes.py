# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Which way an event goes, and what happens to it when its transaction ends. Over a transport that records."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import LocalTransaction, Publisher, PublishFailed, Status, TransactionEnded, local_transaction
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from halfmoon.events.tables import TableMissing
from tests.events.fakes import Blocks, FakeTransport, lost
from tests.events.forking import in_child

T, C = "TP_ORDER", "EC_PAID"


# ---------------------------------------------------------------- no transaction


@pytest.mark.mission("002-42")
def test_a_publisher_that_is_not_strict_sends_a_transactional_event_without_a_transaction_with_one_warning(
    transport: FakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    events = Publisher("P_shop", transport=transport, strict=False)
    events.check()(lambda event, context: None)
    for number in range(3):
        assert events.publish(T, C, number, transactional=True).delivery is DeliveryMode.SENT
    assert transport.kinds == ["send"] * 3
    warnings = [record for record in caplog.records if "none is known here" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].levelno == logging.WARNING


def test_what_is_published_at_once_belongs_to_no_transaction(events: Publisher, transport: FakeTransport) -> None:
    built = events.event(T, C, 1, transactional=True)
    with pytest.raises(ZeroDivisionError), local_transaction():
        assert events.publish(built, at_once=True).delivery is DeliveryMode.SENT
        raise ZeroDivisionError
    assert transport.kinds == ["send"]
    with local_transaction() as transaction:
        for options in ({"transactional": True}, {"session": transaction}):
            with pytest.raises(UsageError, match="at_once"):
                events.publish(T, C, 1, at_once=True, **options)
    assert transport.kinds == ["send"]


# ---------------------------------------------------------------- plain, inside a transaction


@pytest.mark.mission("002-29", "002-30", "002-49")
def test_a_plain_event_inside_a_transaction_goes_out_after_the_commit(events: Publisher, transport: FakeTransport) -> None:
    order: list[str] = []
    transport.before = lambda call: order.append(call.kind)
    with local_transaction(commit=lambda: order.append("commit")):
        published = events.publish(T, C, 1)
        assert published.delivery is DeliveryMode.DEFERRED
        assert transport.calls == []
    assert order == ["commit", "send"]
    assert transport.messages[0].msg_id == published.event_id
    assert transport.decisions == []


def test_the_payload_of_a_deferred_event_is_the_one_of_its_publish(events: Publisher, transport: FakeTransport) -> None:
    basket = {"books": 1}
    with local_transaction():
        events.publish(T, C, basket)
        basket["books"] = 2
    assert transport.messages[0].body == b'{"books":1}'


# ---------------------------------------------------------------- transactional, inside a transaction


@pytest.mark.mission("002-14", "002-26", "002-43", "002-45", "002-46", "002-50")
def test_a_transactional_event_is_prepared_at_once_and_committed_after_the_commit(
    events: Publisher, transport: FakeTransport
) -> None:
    order: list[str] = []
    transport.before = lambda call: order.append(call.kind)
    with local_transaction(commit=lambda: order.append(f"commit, {len(transport.decisions)} decisions before")):
        published = events.publish(T, C, 1, transactional=True)
        assert published.delivery is DeliveryMode.PREPARED
        assert published.result is not None
        assert published.result.msg_id == published.event_id
        assert transport.kinds == ["prepare"]
    assert order == ["prepare", "commit, 0 decisions before"]
    assert transport.decisions == [(published.event_id, True)]
    assert transport.left == []


@pytest.mark.mission("002-44")
def test_nothing_is_registered_when_the_first_phase_failed(events: Publisher, transport: FakeTransport) -> None:
    transport.script.extend([lost()] * 3)
    with local_transaction() as transaction:
        with pytest.raises(PublishFailed):
            events.publish(T, C, 1, transactional=True)
        assert transaction._count == 0
    assert transport.kinds == ["prepare"] * 3
    assert transport.decisions == []
    assert transport.left == []


def test_repeats_of_the_first_phase_keep_the_id_and_say_that_they_are_repeats(events: Publisher, transport: FakeTransport) -> None:
    transport.script.extend([lost(), lost(), None])
    with local_transaction():
        published = events.publish(T, C, 1, transactional=True)
    assert published.attempts == 3
    assert [(call.message.msg_id, call.attempt) for call in transport.calls] == [(published.event_id, n) for n in (1, 2, 3)]
    assert transport.decisions == [(published.event_id, True)]


def test_the_age_before_which_brokers_do_not_ask_is_of_the_publisher_or_of_the_event(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport, check_after_s=30)
    publisher.check()(lambda event, context: None)
    with local_transaction():
        publisher.publish(T, C, 1, transactional=True)
        publisher.publish(T, C, 2, transactional=True, check_after_s=600)
    assert [call.check_after_s for call in transport.calls] == [30, 600]


async def test_on_an_event_loop_both_phases_are_awaited_or_not_waited_for(events: Publisher, transport: FakeTransport) -> None:
    async with local_transaction():
        published = await events.publish_async(T, C, 1, transactional=True)
        with pytest.raises(UsageError, match="publish_async"):
            events.publish(T, C, 2, transactional=True)
    assert (transport.kinds, transport.awaited) == (["prepare"], 1)
    assert transport.decisions == [(published.event_id, True)]


# ---------------------------------------------------------------- fork


@pytest.mark.parametrize("status", [Status.COMMITTED, Status.ROLLED_BACK])
def test_a_forked_child_opens_anew_and_leaves_the_parents_transaction_alone(
    events: Publisher, transport: FakeTransport, status: Status
) -> None:
    def child(transaction: LocalTransaction) -> None:
        transaction.end(status)
        assert (transport.decisions, transport.kinds) == ([], ["prepare"])
        events.publish(T, C, 3)
        assert (transport.life, transport.kinds) == (["start", "start"], ["prepare", "send"])

    with local_transaction() as transaction:
        events.publish(T, C, 1, transactional=True)
        events.publish(T, C, 2)
        assert in_child(lambda: child(transaction))
    assert [commit for _, commit in transport.decisions] == [True]
    assert transport.life == ["start"]


# ---------------------------------------------------------------- where there is a database


def test_the_row_is_written_before_the_first_phase_and_commits_with_the_data(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    def count() -> int:
        return int(connection.execute("SELECT count(*) FROM halfmoon_event WHERE state < 2").fetchone()[0])

    with database.begin() as connection:
        shop.publish(T, C, 0, transactional=False)  # plain events write none
        seen: list[int] = []
        transport.before = lambda call: seen.append(count())
        event_id = shop.publish(T, C, 1, transactional=True).event_id
        assert (seen, count()) == ([1], 1)
        transport.before = lambda call: None
        assert transport.messages[0].properties["EVENT_CHECK"] == "token"
    with sqlite3.connect(database.path) as later:
        assert later.execute("SELECT id, state FROM halfmoon_event WHERE state < 2").fetchall() == [(event_id, 1)]


def test_without_the_table_nothing_is_sent(transport: FakeTransport, database: Blocks) -> None:
    publisher = Publisher("P_shop", transport=transport, provider=database)
    with pytest.raises(TableMissing, match="halfmoon_event"), database.begin():
        publisher.publish(T, C, 1, transactional=True, raise_on_failure=False)
    assert transport.calls == []


def test_an_event_whose_transaction_ended_meanwhile_follows_its_row(
    shop: Publisher, transport: FakeTransport, database: Blocks
) -> None:
    def end(_: object) -> None:
        transaction = shop.provider.current()
        assert transaction is not None
        transaction.end(Status.COMMITTED)

    with database.begin():
        transport.before = end
        with pytest.raises(TransactionEnded):
            shop.publish(T, C, 1, transactional=True)
        transport.before = lambda call: None
    with sqlite3.connect(database.path) as later:
        found = later.execute("SELECT state FROM halfmoon_event WHERE state < 2").fetchall()
    assert [commit for _, commit in transport.decisions] == [found == [(1,)]]


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
        with local_transaction():
            assert events.publish(T, C, 1).delivery is DeliveryMode.DEFERRED
            assert shop.publish(T, C, 2, transactional=False).delivery is DeliveryMode.DEFERRED
        assert [message.body for message in transport.messages] == [b"1"]
    assert [message.body for message in transport.messages] == [b"1", b"2"]
