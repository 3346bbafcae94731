# ruff: noqa: PT012 (what stands in the block is what is tested)
"""Which way an event goes, and what happens to it when its transaction ends. Over a transport that records."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import pytest

from halfmoon.errors import UsageError
from halfmoon.events import (
    NoTransaction,
    Publisher,
    PublishFailed,
    Status,
    Synchronization,
    TransactionEnded,
    local_transaction,
    register,
)
from halfmoon.events.publishing.delivery_modes import DeliveryMode
from tests.events.fakes import FakeTransport, lost

T, C = "TP_ORDER", "EC_PAID"


# ---------------------------------------------------------------- no transaction


@pytest.mark.mission("002-31")
def test_a_plain_event_without_a_transaction_is_sent_at_once(events: Publisher, transport: FakeTransport) -> None:
    published = events.publish(T, C, 1)
    assert transport.kinds == ["send"]
    assert published.delivery is DeliveryMode.SENT
    assert published.result is not None
    assert published.result.msg_id == published.event_id == transport.messages[0].msg_id


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


def test_a_transactional_event_without_a_transaction_is_refused_before_anything_is_sent(transport: FakeTransport) -> None:
    publisher = Publisher("P_shop", transport=transport)
    publisher.check()(lambda event, context: None)
    with pytest.raises(NoTransaction, match=r"TP_ORDER/EC_PAID.*local_transaction.*bound_to.*at_once=True"):
        publisher.publish(T, C, 1, transactional=True, raise_on_failure=False)
    assert transport.calls == []
    publisher.publish(T, C, 1)
    assert transport.kinds == ["send"]


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


def test_a_hook_that_publishes_after_the_commit_sends_at_once(events: Publisher, transport: FakeTransport) -> None:
    class Publishes(Synchronization):
        def after_commit(self) -> None:
            assert events.publish(T, C, "from a hook").delivery is DeliveryMode.SENT

    with local_transaction():
        register(Publishes())
    assert transport.kinds == ["send"]


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


def test_a_transaction_that_ends_while_an_event_is_prepared_takes_no_event(events: Publisher, transport: FakeTransport) -> None:
    def end(_: object) -> None:
        transaction.end(Status.COMMITTED)

    with pytest.raises(TransactionEnded), local_transaction() as transaction:
        transport.before = end
        events.publish(T, C, 1, transactional=True)
    assert [commit for _, commit in transport.decisions] == [False]


async def test_on_an_event_loop_both_phases_are_awaited_or_not_waited_for(events: Publisher, transport: FakeTransport) -> None:
    async with local_transaction():
        published = await events.publish_async(T, C, 1, transactional=True)
        with pytest.raises(UsageError, match="publish_async"):
            events.publish(T, C, 2, transactional=True)
    assert transport.kinds == ["prepare_async"]
    assert transport.decisions == [(published.event_id, True)]


@pytest.mark.mission("002-54")
async def test_a_task_that_outlives_its_transaction_publishes_outside_of_it(events: Publisher, transport: FakeTransport) -> None:
    ended = asyncio.Event()

    async def later() -> DeliveryMode:
        await ended.wait()
        return (await events.publish_async(T, C, 1)).delivery

    async with local_transaction():
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
    ended.set()
    assert await task is DeliveryMode.SENT
    assert transport.kinds == ["send_async"]


# ---------------------------------------------------------------- fork


def _in_child(function: Callable[[], bool]) -> bool:
    """Run a function in a forked child; return what it returned."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_opens_anew_and_leaves_the_parents_transaction_alone(events: Publisher, transport: FakeTransport) -> None:
    with local_transaction() as transaction:
        events.publish(T, C, 1, transactional=True)
        events.publish(T, C, 2)

        def child() -> bool:
            transaction.end(Status.ROLLED_BACK)
            untouched = transport.decisions == [] and transport.kinds == ["prepare"]
            events.publish(T, C, 3)
            return untouched and transport.life == ["start", "start"] and transport.kinds == ["prepare", "send"]

        assert _in_child(child)

        def child_that_commits() -> bool:
            transaction.end(Status.COMMITTED)
            return transport.decisions == [] and transport.kinds == ["prepare"]

        assert _in_child(child_that_commits)
    assert [commit for _, commit in transport.decisions] == [True]
    assert transport.life == ["start"]
