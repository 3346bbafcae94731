"""Consumers on a bus in memory, fed by a real publisher: the same functions, without a broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from halfmoon.events import Consumers, Publisher, on
from halfmoon.events.consuming.on import Handler
from halfmoon.events.testing import MemoryBus


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@pytest.fixture
def events(bus):
    with Publisher("P_shop", transport=bus) as found:
        yield found


def handler(function, code="EC_PAID", group="S_mail", **options) -> Handler:
    return Handler(group=group, topic="TP_ORDER", code=code, function=function, **options)


async def test_coroutine_functions_run_though_the_test_s_own_loop_waits(bus, events):
    seen = []

    async def handle(event, context):
        await asyncio.sleep(0)
        seen.append(event.payload)

    async with Consumers(handler(handle), bus=bus):
        await events.publish_async("TP_ORDER", "EC_PAID", 7)
        bus.deliver()

    assert seen == [7]


def test_closed_consumers_are_given_nothing_more(bus, events):
    seen = []
    with Consumers(handler(lambda event: seen.append(event.payload)), bus=bus) as consumers:
        events.publish("TP_ORDER", "EC_PAID", 1)
        bus.deliver()
    events.publish("TP_ORDER", "EC_PAID", 2)
    bus.deliver()

    assert seen == [1]
    assert consumers.assignment() == {"S_mail": []}


def test_what_a_consumer_publishes_belongs_to_its_own_transaction(bus, tmp_path: Path):
    """With dedup and a publisher on the same sessions, an event in and an event out are one step: both, or neither."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    maker = sessionmaker(engine)
    with Publisher("P_mail", transport=bus, session=maker) as events:
        events.create_tables()
        sent = []

        def handle(event, context):
            context.session.execute(text("CREATE TABLE IF NOT EXISTS mails (number INTEGER)"))
            events.publish("TP_MAIL", "EC_SENT", event.payload, transactional=True, session=context.session)
            if context.attempt == 1:
                raise ConnectionError("the mail server hung up")

        handlers = [
            handler(handle, dedup=maker),
            Handler(group="S_count", topic="TP_MAIL", code="EC_SENT", function=lambda event: sent.append(event.payload)),
        ]
        consumers = Consumers(handlers, bus=bus)
        consumers.create_tables()
        with consumers:
            events.publish("TP_ORDER", "EC_PAID", 42)
            bus.deliver()
            first = (list(sent), len(bus.rolled_back))
            bus.redeliver()
            bus.deliver()
    engine.dispose()

    assert first == ([], 1)
    assert sent == [42]


def test_a_coroutine_may_have_the_bus_deliver_what_it_published(bus, events):
    seen = []

    @on("S_mail", "TP_ORDER", "EC_PAID")
    async def outer(event, context):
        events.publish("TP_ORDER", "EC_INNER")
        bus.deliver()
        seen.append("outer")

    @on("S_other", "TP_ORDER", "EC_INNER")
    async def inner(event, context):
        seen.append("inner")

    with Consumers([outer, inner], bus=bus):
        events.publish("TP_ORDER", "EC_PAID")
        bus.deliver()

    assert seen == ["inner", "outer"]
