# ruff: noqa: PT012 (what stands in the block is what is tested)
"""One event in one transaction: published again there it is refused, whatever its way, and the transaction keeps it once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Event, PublishedBefore, Publisher, PublishFailed
from halfmoon.events.testing import MemoryBus

T, C = "TP_ORDER", "EC_PAID"
WAYS = pytest.mark.parametrize(
    ("mode", "transactional"), [("two-phase", True), ("two-phase", False), ("outbox", True)], ids=["prepared", "deferred", "outbox"]
)


def itself(event: Event) -> Event:
    return event


def another_with_its_id(event: Event) -> Event:
    return Event(id=event.id, topic=event.topic, code=event.code, payload=3, transactional=event.transactional)


def payloads(bus: MemoryBus) -> list[object]:
    bus.check_now()
    return [one.payload for one in bus.events()]


@WAYS
@pytest.mark.parametrize("second", [itself, another_with_its_id])
def test_an_event_published_again_in_its_transaction_is_refused_and_comes_once(
    engine: Engine, mode: str, transactional: bool, second: Callable[[Event], Event]
):
    bus, Made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made, mode=mode) as events:
        events.create_tables()
        event = events.event(T, C, 1, transactional=transactional)
        with Made.begin() as session:
            session.execute(text("insert into orders values (1)"))
            events.publish(event)
            with pytest.raises(PublishedBefore, match=event.id):
                events.publish(second(event))
            session.execute(text("insert into orders values (2)"))  # the transaction goes on
        events.close()
        assert payloads(bus) == [1]
    with engine.connect() as connection:
        assert connection.scalars(text("select id from orders")).all() == [1, 2]


@WAYS
def test_an_event_of_a_savepoint_that_was_rolled_back_may_be_published_again(engine: Engine, mode: str, transactional: bool):
    bus, Made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made, mode=mode) as events:
        events.create_tables()
        event = events.event(T, C, 1, transactional=transactional)
        with Made.begin() as session:
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                events.publish(event)
                raise ZeroDivisionError
            with session.begin_nested():
                events.publish(event)
            with pytest.raises(PublishedBefore):
                events.publish(event)
        events.close()
        assert payloads(bus) == [1]


def test_a_publish_that_failed_may_be_repeated_in_its_transaction(engine: Engine):
    bus, Made = MemoryBus(), sessionmaker(engine)
    with Publisher("P_shop", transport=bus, session=Made, tries_max=0) as events:
        events.create_tables()
        event = events.event(T, C, 1, transactional=True)
        with Made.begin():
            bus.fail_next("prepare")
            with pytest.raises(PublishFailed):
                events.publish(event)
            events.publish(event)
    assert payloads(bus) == [1]
