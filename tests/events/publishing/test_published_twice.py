# ruff: noqa: PT012 (what stands in the block is what is tested)
"""One event in one transaction: published again there it is refused, whatever its way, and the transaction keeps it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.events import Event, NoTransaction, PublishedBefore, Publisher, PublishFailed
from halfmoon.events.testing import MemoryBus
from tests.waiting import until

T, C = "TP_ORDER", "EC_PAID"


def itself(event: Event) -> Event:
    return event


def another_with_its_id(event: Event) -> Event:
    return Event(id=event.id, topic=event.topic, code=event.code, payload=3, transactional=event.transactional)


class Shop(NamedTuple):
    """A publisher of one kind of events, in transactions of a real database."""

    bus: MemoryBus
    made: sessionmaker[Session]
    events: Publisher

    def payloads(self) -> list[object]:
        """What consumers see once all that was committed is sent."""
        with self.made() as session:
            until(lambda: session.scalar(text("select count(*) from halfmoon_outbox")) == 0 or session.rollback())
        self.bus.check_now()
        return [one.payload for one in self.bus.events()]


WAYS = {"prepared": ("two-phase", "transactional"), "deferred": ("two-phase", "plain"), "outbox": ("outbox", "plain")}


@pytest.fixture(params=WAYS)
def shop(engine: Engine, request: pytest.FixtureRequest) -> Iterator[Shop]:
    mode, default = WAYS[request.param]
    bus, made = MemoryBus(), sessionmaker(engine)
    events = Publisher("P_shop", transport=bus, session=made, mode=mode, default=default, lazy=True)
    events.create_tables()
    with events:
        yield Shop(bus, made, events)


@pytest.mark.parametrize("second", [itself, another_with_its_id])
def test_an_event_published_again_in_its_transaction_is_refused_and_comes_once(shop: Shop, second: Callable[[Event], Event]):
    event = shop.events.event(T, C, 1)
    with shop.made.begin() as session:
        shop.events.publish(event)
        with pytest.raises(PublishedBefore, match=event.id):
            shop.events.publish(second(event))
        session.execute(text("insert into orders values (2)"))  # the transaction goes on
    assert shop.payloads() == [1]


def test_an_event_of_a_savepoint_that_was_rolled_back_may_be_published_again(shop: Shop):
    event = shop.events.event(T, C, 1)
    with shop.made.begin() as session:
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            shop.events.publish(event)
            raise ZeroDivisionError
        with session.begin_nested():
            shop.events.publish(event)
        with pytest.raises(PublishedBefore):
            shop.events.publish(event)
    assert shop.payloads() == [1]


@pytest.mark.parametrize("shop", ["prepared"], indirect=True)
def test_a_publish_that_failed_may_be_repeated_in_its_transaction(shop: Shop):
    event = shop.events.event(T, C, 1)
    with shop.made.begin():
        shop.bus.fail_next("prepare", times=3)
        with pytest.raises(PublishFailed):
            shop.events.publish(event)
        shop.events.publish(event)
    assert shop.payloads() == [1]


def test_an_event_that_was_sent_at_once_is_as_transactional_as_before_when_it_is_published_again(engine: Engine):
    bus, made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=made, lazy=True) as events:
        events.create_tables()
        event = events.event(T, C, 1)
        assert events.publish(event, at_once=True).delivery == "sent"
        with made.begin():
            assert events.publish(event).delivery == "prepared"


def test_what_cannot_be_transactional_is_refused_without_a_word_about_rows_that_were_never_written(
    engine: Engine, caplog: pytest.LogCaptureFixture
):
    alone = sessionmaker(engine.execution_options(isolation_level="AUTOCOMMIT"))
    with Publisher("P_shop", transport=MemoryBus(), session=alone, lazy=True) as events:
        events.create_tables()
        with alone.begin(), pytest.raises(NoTransaction, match="AUTOCOMMIT"):
            events.publish(T, C, 1)

    assert "token rows" not in caplog.text
