"""The project's publisher inside Django's transactions: what consumers get is what was committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import AsyncClient, Client, TestCase, TransactionTestCase, override_settings

from halfmoon.events import (
    AmbiguousTransaction,
    Codecs,
    ConsumerContext,
    Consumers,
    Event,
    NoTransaction,
    Publisher,
    PublishFailed,
    on,
    register,
    suspend,
)
from halfmoon.events.django import atomic, events
from halfmoon.events.django.models import Token
from halfmoon.events.django.project import project
from halfmoon.events.encoding.envelope import event_of
from halfmoon.events.testing import MemoryBus
from tests.events.django.orders.models import Line, Order
from tests.events.hearing import Heard
from tests.waiting import until


def numbers(records: Any) -> list[str]:
    """Return the order numbers that events on the bus tell of."""
    return [event_of(record.stored, Codecs()).payload["number"] for record in records]


def publish(number: str, *, transactional: bool = True) -> Event:
    """Build an event and publish it."""
    event = events.event("TP_ORDER", "EC_PAID", {"number": number}, transactional=transactional)
    events.publish(event)
    return event


def test_many_events_of_one_call_are_there_or_none_of_them(using: str, bus: MemoryBus):
    def built(*given: str) -> list[Event]:
        return [events.event("TP_ORDER", "EC_PAID", {"number": number}, transactional=True) for number in given]

    with transaction.atomic(using=using):
        events.publish_many(built("1", "2", "3"))
    bus.fail_next("prepare", times=9)  # each of them, and its two repeats
    with pytest.raises(PublishFailed), transaction.atomic(using=using):
        events.publish_many(built("4", "5", "6"))

    assert numbers(bus.committed) == ["1", "2", "3"]
    assert numbers(bus.pending) == []
    assert Token.objects.using(using).filter(state=1).count() == 3


def test_without_autocommit_a_publish_before_the_connection_is_open_goes_with_the_transaction(
    file_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
):
    connection = connections["default"]
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    for number, end in (("1", transaction.rollback), ("2", transaction.commit)):
        publish(number)
        end()
    connection.close()

    assert (numbers(file_bus.rolled_back), numbers(file_bus.committed)) == (["1"], ["2"])


def test_an_event_published_after_the_commit_by_a_hook_is_sent_at_once(using: str, bus: MemoryBus):
    with transaction.atomic(using=using):
        transaction.on_commit(lambda: publish("late", transactional=False) and None, using=using)
        publish("1")

    assert sorted(numbers(bus.committed)) == ["1", "late"]


@pytest.mark.parametrize("block", [transaction.atomic, atomic], ids=["plain", "ours"])
def test_a_plain_event_in_a_block_of_another_database_is_refused_with_its_alias(file_bus: MemoryBus, block: Callable[..., Any]):
    apart = Publisher("P_apart", transport=file_bus)  # it knows no database at all
    with contextlib.suppress(RuntimeError), block(using="other"):
        for publisher in (events, apart):
            with pytest.raises(AmbiguousTransaction, match=r"atomic\(using='other'\).*at_once=True"):
                publisher.publish("TP_ORDER", "EC_SEEN", {"number": "1"}, transactional=False)
            publisher.publish("TP_ORDER", "EC_SEEN", {"number": "at once"}, at_once=True)
        with pytest.raises(NoTransaction, match=r"using='other'.*using='default'"):
            publish("2")
        with suspend():
            publish("aside", transactional=False)
        with transaction.atomic():
            publish("deferred", transactional=False)
        transaction.on_commit(lambda: publish("never", transactional=False) and None, using="other")
        raise RuntimeError
    with block(using="other"):
        transaction.on_commit(lambda: publish("after", transactional=False) and None, using="other")

    assert numbers(file_bus.committed) == ["at once", "at once", "aside", "deferred", "after"]


def test_the_outbox_carries_events_of_committed_transactions_in_order(using: str, bus: MemoryBus):
    with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus, "DATABASE": using, "MODE": "outbox"}):
        with transaction.atomic(using=using):
            publish("1")
            publish("2")
        with contextlib.suppress(RuntimeError), transaction.atomic(using=using):
            publish("3")
            raise RuntimeError
        until(lambda: len(bus.committed) >= 2, "the relay sends them")
        project.forget()

    assert numbers(bus.committed) == ["1", "2"]


# ---------------------------------------------------------------- checks written by hand


def test_a_check_declared_before_the_publisher_exists_is_asked(using: str, bus: MemoryBus):
    asked: list[str] = []

    @events.check("TP_ORDER", "EC_BY_HAND")
    def by_hand(event: Event, context: Any) -> None:
        asked.append(event.payload["number"])
        if not Order.objects.using(using).filter(number=event.payload["number"]).exists():
            context.set_rollback_only()

    try:
        with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus, "DATABASE": using, "STRICT": True}):
            bus.lose_second_phase()
            with transaction.atomic(using=using):
                Order.objects.using(using).create(number="1")
                events.publish("TP_ORDER", "EC_BY_HAND", {"number": "1"}, transactional=True)
            bus.check_now()
    finally:
        project._checks.remove(("TP_ORDER", "EC_BY_HAND", by_hand))

    assert asked == ["1"]
    assert numbers(bus.committed) == ["1"]


# ---------------------------------------------------------------- requests


def test_a_request_with_its_own_block_publishes(file_bus: MemoryBus):
    assert Client().get("/place/1/").status_code == 200

    assert numbers(file_bus.committed) == ["1"]


def test_with_atomic_requests_a_view_that_fails_later_takes_its_event_along(file_bus: MemoryBus, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    client = Client(raise_request_exception=False)

    assert client.get("/place/1/").status_code == 200
    assert client.get("/place/2/?fail").status_code == 500

    assert numbers(file_bus.committed) == ["1"]
    assert numbers(file_bus.rolled_back) == ["2"]
    assert Order.objects.count() == 1


async def test_an_async_view_publishes_by_sync_to_async_and_awaits_plain_events(file_bus: MemoryBus):
    assert (await AsyncClient().get("/place-async/1/")).status_code == 200

    assert sorted(record.code for record in file_bus.committed) == ["EC_PAID", "EC_SEEN"]


# ---------------------------------------------------------------- consumers


def test_a_consumer_with_dedup_processes_an_event_once_in_its_own_transaction(file_bus: MemoryBus):
    seen: list[Any] = []

    @on("S_lines", "TP_ORDER", "EC_PAID", dedup="default")
    def add_line(event: Event, context: ConsumerContext) -> None:
        seen.append(context.session)
        order = Order.objects.get(number=event.payload["number"])
        Line.objects.create(order=order)
        if context.attempt == 1:
            raise RuntimeError("the first try fails, and its line is undone")

    with Consumers(add_line, bus=file_bus):
        with transaction.atomic():
            Order.objects.create(number="1")
            publish("1")
        file_bus.deliver()
        assert Line.objects.count() == 0
        file_bus.redeliver()
        assert Line.objects.count() == 1

    assert [one.alias for one in seen] == ["default", "default"]


# ---------------------------------------------------------------- users' tests


class AUsersTestCase(TestCase):
    """Inside Django's TestCase nothing commits: events wait for captured callbacks, as everything of on_commit does."""

    def setUp(self) -> None:
        """Carry events in memory."""
        self.bus = MemoryBus()
        self.enterContext(override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": self.bus}))
        events.start()

    def test_without_captured_callbacks_nothing_is_sent(self) -> None:
        with transaction.atomic():
            publish("1")
            publish("2", transactional=False)

        assert numbers(self.bus.committed) == []
        assert numbers(self.bus.pending) == ["1"]

    def test_captured_callbacks_are_the_commit_and_a_block_that_fails_is_a_rollback(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                publish("1")
                publish("2", transactional=False)
            with contextlib.suppress(RuntimeError), transaction.atomic():
                publish("3")
                raise RuntimeError
        with self.captureOnCommitCallbacks(execute=True), atomic():
            publish("4")

        assert sorted(numbers(self.bus.committed)) == ["1", "2", "4"]
        assert numbers(self.bus.rolled_back) == ["3"]

    def test_outside_of_the_programs_own_blocks_there_is_no_transaction_as_in_production(self) -> None:
        with pytest.raises(NoTransaction, match=r"transaction\.atomic\(using='default'\).*transactional=False"):
            publish("1")
        publish("2", transactional=False)
        with transaction.atomic():
            publish("3")
        with pytest.raises(NoTransaction):
            publish("4")

        assert numbers(self.bus.committed) == ["2"]
        assert numbers(self.bus.pending) == ["3"]

    def test_hooks_before_the_commit_are_called_at_the_end_of_our_block(self) -> None:
        with atomic():
            register(heard := Heard())

        assert heard.told == ["begin", "before_commit"]


class AUsersTransactionTestCase(TransactionTestCase):
    """Here transactions commit."""

    def test_events_come_with_the_commit(self) -> None:
        bus = MemoryBus()
        with override_settings(HALFMOON={"GROUP": "P_shop", "TRANSPORT": bus}):
            with transaction.atomic():
                publish("1")
            with contextlib.suppress(RuntimeError), transaction.atomic():
                publish("2")
                raise RuntimeError

        assert numbers(bus.committed) == ["1"]
        assert numbers(bus.rolled_back) == ["2"]
        assert Token.objects.filter(id=bus.committed[0].id).exists()
        assert Token.objects.get(id=bus.rolled_back[0].id).state == 0  # a tombstone: it can never commit

    def test_the_tables_are_emptied_after_each_test(self) -> None:
        Token.objects.create(id="left", state=1, created_ms=5)
        self._fixture_teardown()
        assert Token.objects.count() == 0
