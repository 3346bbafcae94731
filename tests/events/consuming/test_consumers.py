"""Consumers of a bus and of a real broker: what is called, what comes again, and why."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from dataclasses import dataclass

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import sessionmaker

from halfmoon import Admin, MessageQueue
from halfmoon.events.consuming.consumers import Consumers
from halfmoon.events.consuming.on import Handler, on
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.event import Event
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.events.testing import MemoryBus
from halfmoon.model import RECONSUME_REASON
from tests.events.consuming.shop import TOPIC, BusShop, Seen
from tests.waiting import until


@pytest.mark.mission("002-17", "002-18")
def test_a_function_gets_the_event_and_a_context_and_once_it_returned_the_event_is_consumed(place, topic):
    seen, before = Seen(), place.given_back()
    with place.consumers(seen.handler(topic, group="S_once")):
        sent = place.publish("EC_PAID", {"order_id": 42}, topic=topic, headers={"shop": "north"}, key="order-42")
        place.until(lambda: len(seen))
    ((event, context, _),) = seen.calls

    assert place.given_back() == before
    assert isinstance(event, Event)
    assert (event.id, event.type, event.payload) == (sent, (topic, "EC_PAID"), {"order_id": 42})
    assert (event.headers, event.key, event.group) == ({"shop": "north"}, "order-42", "P_shop")
    assert (context.event, context.message.msg_id, context.group, context.attempt) == (event, sent, "S_once", 1)
    with place.consumers(seen.handler(topic, group="S_once")):
        later = place.publish("EC_PAID", topic=topic)
        place.until(lambda: len(seen) == 2)
    assert [event.id for event, _, _ in seen.calls] == [sent, later]


@pytest.mark.mission("002-19")
def test_rollback_only_has_the_event_delivered_again_and_its_reason_is_kept(place, topic):
    def refuse_twice(event, context):
        if context.attempt == 1:
            context.set_context_desc("the mail server rests")
            context.set_rollback_only()
        if context.attempt == 2:
            context.set_rollback_only("it still rests")

    seen = Seen(refuse_twice)
    with place.consumers(seen.handler(topic)):
        place.publish("EC_PAID", 1, topic=topic)
        place.until(lambda: len(seen) == 3)

    assert [(context.attempt, reason) for _, context, reason in seen.calls] == [
        (1, ""),
        (2, "the mail server rests"),
        (3, "it still rests"),
    ]
    assert len({event.id for event, _, _ in seen.calls}) == 1


@pytest.mark.mission("002-20")
@pytest.mark.parametrize("error", [ConnectionError("no mail server"), SystemExit("leaving"), KeyboardInterrupt("stop")], ids=repr)
def test_an_exception_has_the_event_delivered_again_with_its_text_as_the_reason(place, topic, error):
    def raise_once(event, context):
        if context.attempt == 1:
            context.set_rollback_only("a reason that the exception replaces")
            raise error

    seen = Seen(raise_once)
    with place.consumers(seen.handler(topic)):
        place.publish("EC_PAID", 1, topic=topic)
        place.until(lambda: len(seen) == 2)

    assert [(context.attempt, reason) for _, context, reason in seen.calls] == [(1, ""), (2, f"{type(error).__name__}: {error}")]


@pytest.mark.slow
def test_events_of_one_key_are_consumed_in_order_and_one_that_fails_too_often_lets_the_others_go_on(shared, topic):
    calls = []

    @on("S_ordered", topic, "EC_PAID", ordered=True, retries=2)
    def take(event, context):
        calls.append((event.payload, context.attempt))
        if event.payload == 2:
            raise ConnectionError("no stock server")

    with Publisher("P_ordered", shared.nameserver) as events, shared.consumers(take, suspend_queue_ms=100):
        for number in range(1, 6):
            events.publish(topic, "EC_PAID", number, key="order-42")
        until(lambda: len(calls) >= 7)

    assert calls == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (5, 1)]
    assert [letter.message.body for letter in shared.admin.dead_letters("S_ordered")] == [b"2"]


def test_the_block_around_a_plain_function_is_left_also_when_it_fails(place, topic):
    steps = []

    @contextlib.contextmanager
    def around():
        steps.append("entered")
        try:
            yield
        finally:
            steps.append("left")

    def handle(event, context):
        steps.append("called")
        assert context.attempt > 1

    with place.consumers(Handler(group="S_around", topic=topic, code="EC_PAID", function=handle), around=around):
        place.publish("EC_PAID", topic=topic)
        place.until(lambda: steps == ["entered", "called", "left"] * 2)


def test_coroutine_functions_and_methods_consume_too(place, topic):
    threads, attempts = [], []

    class Listener:
        @on("S_mixed", topic, "EC_PAID")
        async def paid(self, event, context):
            await asyncio.sleep(0)
            threads.append(threading.current_thread().name)
            attempts.append(context.attempt)
            if context.attempt == 1:
                raise ValueError("not yet")

        @on("S_mixed", topic, "EC_SENT")
        def sent(self, event):
            threads.append(threading.current_thread().name)
            attempts.append(event.payload)

    with place.consumers(Listener()):
        place.publish("EC_PAID", topic=topic)
        place.until(lambda: attempts == [1, 2])
        place.publish("EC_SENT", "a box", topic=topic)
        place.until(lambda: attempts == [1, 2, "a box"])

    assert threads[0] == threads[1] == "halfmoon-consumers"
    assert threads[2] != threads[0]


def test_a_coroutine_that_is_cancelled_from_inside_fails_like_any_other(place, topic):
    attempts = []

    async def cancelled(event, context):
        attempts.append((context.attempt, context.message.properties.get(RECONSUME_REASON, "")))
        if context.attempt == 1:
            raise asyncio.CancelledError("by a task it waited for")

    with place.consumers(Handler(group="S_mail", topic=topic, code="EC_PAID", function=cancelled)):
        place.publish("EC_PAID", topic=topic)
        place.until(lambda: len(attempts) == 2)

    assert attempts[1] == (2, "CancelledError: by a task it waited for")


@pytest.mark.slow
def test_all_functions_of_a_group_share_one_member_and_get_what_they_asked_for(shared, topic):
    first, second = f"{topic}_A", f"{topic}_B"
    paid, sent, other, rest = Seen(), Seen(), Seen(), Seen()
    handlers = [
        paid.handler(first, "EC_PAID"),
        sent.handler(first, "EC_SENT"),
        other.handler(second, "EC_NEW", group="S_other"),
        rest.handler(second, "*"),
    ]
    with shared.consumers(handlers) as consumers:
        assert consumers.groups == ["S_mail", "S_other"]
        for code in ("EC_PAID", "EC_SENT", "EC_UNASKED"):
            shared.publish(code, code, topic=first)
            shared.publish(code, code, topic=second)
        shared.publish("EC_NEW", "EC_NEW", topic=second)
        until(lambda: len(rest) == 4 and len(paid) == len(sent) == len(other) == 1)
        queues = consumers.assignment()["S_mail"]

    assert (paid.payloads, sent.payloads, other.payloads) == (["EC_PAID"], ["EC_SENT"], ["EC_NEW"])
    assert sorted(rest.payloads) == ["EC_NEW", "EC_PAID", "EC_SENT", "EC_UNASKED"]
    assert {queue.topic for queue in queues} >= {first, second}
    assert isinstance(queues[0], MessageQueue)


@pytest.mark.mission("002-07")
def test_the_same_code_in_two_topics_is_two_types(place, topic):
    first, second = f"{topic}_A", f"{topic}_B"
    here, there = Seen(), Seen()
    with place.consumers(here.handler(first), there.handler(second)):
        place.publish("EC_PAID", "first", topic=first)
        place.publish("EC_PAID", "second", topic=second)
        place.until(lambda: len(here) == len(there) == 1)

    assert (here.payloads, there.payloads) == (["first"], ["second"])


@pytest.mark.slow
def test_an_event_whose_function_is_gone_comes_again_and_says_so(shared, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    failing = Seen(lambda event, context: context.set_rollback_only("first release"))
    with shared.consumers(failing.handler(topic, "EC_OLD", group="S_gone")):
        shared.publish("EC_OLD", topic=topic)
        until(lambda: "error=first release" in caplog.text)
    other, again = Seen(), Seen()
    with shared.consumers(other.handler(topic, "EC_NEW", group="S_gone")):  # a release that knows it no more
        until(lambda: "nothing of group S_gone consumes" in caplog.text)
    with shared.consumers(again.handler(topic, "EC_OLD", group="S_gone")):
        until(lambda: len(again))

    assert len(other) == 0
    assert again.calls[0][2].endswith(f"nothing of group S_gone consumes {topic}/EC_OLD")


def test_what_does_not_decode_comes_again_with_the_reason_and_the_consumer_goes_on(place, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    newer = Codecs()
    newer.accept(2)
    seen, late = Seen(), Seen()
    with place.consumers(seen.handler(topic, group="S_version")):
        place.publish("EC_PAID", "new form", topic=topic, version=2)
        place.publish("EC_PAID", "old form", topic=topic)
        place.until(lambda: len(seen) and "version 2 is not understood" in caplog.text)
    with place.consumers(late.handler(topic, group="S_version", codecs=newer)):
        place.until(lambda: len(late))

    assert seen.payloads == ["old form"]
    assert "version 2 is not understood here" in late.calls[0][2]


def test_a_payload_is_decoded_into_the_type_that_was_asked_for(place, topic):
    @dataclass
    class Paid:
        order_id: int

    seen, before = Seen(), place.given_back()
    with place.consumers(seen.handler(topic, group="S_typed", payload=Paid)):
        place.publish("EC_PAID", {"order_id": 7}, topic=topic)
        place.publish("EC_PAID", {"order_id": "seven"}, topic=topic)
        place.until(lambda: len(seen) and place.given_back() > before)

    assert seen.payloads == [Paid(7)]


@pytest.mark.mission("002-08")
def test_each_step_is_a_log_line_that_names_the_event(place, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    seen = Seen(lambda event, context: context.attempt == 1 and context.set_rollback_only("no mail server"))
    with place.consumers(seen.handler(topic)):
        sent = place.publish("EC_PAID", topic=topic)
        place.until(lambda: len(seen) == 2)
        place.until(lambda: "decision=consumed" in caplog.text)

    lines = [
        one.getMessage() for one in caplog.records if one.name == "halfmoon.events" and one.getMessage().startswith("consume:")
    ]
    names = f"event={sent} topic={topic} code=EC_PAID message={sent} group=S_mail"
    assert lines == [
        f"consume: {names} attempt=1 decision=redeliver error=no mail server",
        f"consume: {names} attempt=2 decision=consumed",
    ]


@pytest.mark.mission("002-19")
@pytest.mark.slow
@pytest.mark.parametrize("how", ["rollback-only", "exception"])
def test_what_was_given_up_is_a_dead_letter_with_its_last_reason_and_operators_see_it(shared, topic, how):
    def refuse(event, context):
        if how == "exception":
            raise ConnectionError(f"no mail server at attempt {context.attempt}")
        context.set_rollback_only(f"no mail server at attempt {context.attempt}")

    group = f"S_dead_{how}"
    with shared.consumers(Seen(refuse).handler(topic, group=group), reconsume_max=1), Admin(nameserver=shared.nameserver) as admin:
        sent = shared.publish("EC_PAID", topic=topic)
        (letter,) = until(lambda: admin.dead_letters(group))
        trace = admin.trace(sent, topic)

    assert letter.message.msg_id == sent
    assert letter.reason.endswith("no mail server at attempt 2")
    told = [one.detail for one in trace.events]
    assert any("no mail server at attempt 1" in one for one in told)
    assert any("no mail server at attempt 2" in one for one in told)


# ---------------------------------------------------------------- what only a bus has


async def test_coroutine_functions_run_though_the_test_s_own_loop_waits():
    seen, shop = [], BusShop()

    async def handle(event, context):
        await asyncio.sleep(0)
        seen.append(event.payload)

    async with shop.consumers(Handler(group="S_mail", topic=TOPIC, code="EC_PAID", function=handle)):
        shop.publish("EC_PAID", 7)
        shop.bus.deliver()

    assert seen == [7]


def test_closed_consumers_are_given_nothing_more():
    seen, shop = Seen(), BusShop()
    with shop.consumers(seen.handler(TOPIC)) as consumers:
        shop.publish("EC_PAID", 1)
        shop.bus.deliver()
    shop.publish("EC_PAID", 2)
    shop.bus.deliver()

    assert seen.payloads == [1]
    assert consumers.assignment() == {"S_mail": []}


def test_a_coroutine_may_have_the_bus_deliver_what_it_published():
    seen, shop = [], BusShop()

    @on("S_mail", TOPIC, "EC_PAID")
    async def outer(event, context):
        shop.publish("EC_INNER")
        shop.bus.deliver()
        seen.append("outer")

    @on("S_other", TOPIC, "EC_INNER")
    async def inner(event, context):
        seen.append("inner")

    with shop.consumers([outer, inner]):
        shop.publish("EC_PAID")
        shop.bus.deliver()

    assert seen == ["inner", "outer"]


def test_what_a_consumer_publishes_belongs_to_its_own_transaction(tmp_path):
    """With dedup and a publisher on the same sessions, an event in and an event out are one step: both, or neither."""
    engine, bus = create_engine(f"sqlite:///{tmp_path / 'shop.db'}"), MemoryBus()
    maker = sessionmaker(engine)
    with Publisher("P_mail", transport=bus, session=maker) as events:
        events.create_tables()
        sent = []

        def handle(event, context):
            context.session.execute(text("CREATE TABLE IF NOT EXISTS mails (number INTEGER)"))
            events.publish("TP_MAIL", "EC_SENT", event.payload)
            if context.attempt == 1:
                raise ConnectionError("the mail server hung up")

        handlers = [
            Handler(group="S_mail", topic="TP_ORDER", code="EC_PAID", function=handle, dedup=maker),
            Handler(group="S_count", topic="TP_MAIL", code="EC_SENT", function=lambda event: sent.append(event.payload)),
        ]
        consumers = Consumers(handlers, bus=bus)
        consumers.create_tables()
        with consumers:
            events.publish("TP_ORDER", "EC_PAID", 42, transactional=False)
            bus.deliver()
            first = (list(sent), len(bus.rolled_back))
            bus.redeliver()
            bus.deliver()
    engine.dispose()

    assert first == ([], 1)
    assert sent == [42]
