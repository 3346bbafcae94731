# ruff: noqa: PT012 (what stands in the block is what is tested)
"""One event in one transaction: published again there it is refused, whatever its way, and the transaction keeps it once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session, sessionmaker

from halfmoon.events import Event, PublishedBefore, Publisher, PublishFailed
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
