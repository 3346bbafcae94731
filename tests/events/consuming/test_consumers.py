"""Consumers against a real broker: what is called, what comes again, and why."""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import dataclass

import pytest

from halfmoon import Admin, MessageQueue, Producer
from halfmoon.events.consuming.on import Handler, on
from halfmoon.events.encoding.codec import Codecs
from halfmoon.events.event import Event
from halfmoon.events.publishing.publisher import Publisher
from halfmoon.model import RECONSUME_REASON, Message
from tests.events.consuming.shop import Seen, consuming
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.mission("002-17", "002-18")
def test_a_function_gets_the_event_and_a_context_and_once_it_returned_the_event_is_consumed(shared, topic):
    seen, before = Seen(), shared.given_back()
    with consuming(shared, seen.handler(topic, group="S_once")):
        sent = shared.publish("EC_PAID", {"order_id": 42}, topic=topic, headers={"shop": "north"}, key="order-42")
        until(lambda: len(seen))
    ((event, context, _),) = seen.calls

    assert (shared.admin.lag("S_once"), shared.given_back()) == (0, before)  # nothing is left to come to the next process
    assert isinstance(event, Event)
    assert (event.id, event.type, event.payload) == (sent, (topic, "EC_PAID"), {"order_id": 42})
    assert (event.headers, event.key, event.group) == ({"shop": "north"}, "order-42", "P_shop")
    assert (context.event, context.message.msg_id, context.group, context.attempt) == (event, sent, "S_once", 1)
    with consuming(shared, seen.handler(topic, group="S_once")):
        later = shared.publish("EC_PAID", topic=topic)
        until(lambda: len(seen) == 2)
    assert [event.id for event, _, _ in seen.calls] == [sent, later]


@pytest.mark.mission("002-19")
def test_rollback_only_has_the_event_delivered_again_and_its_reason_is_kept(shared, topic):
    def refuse_twice(event, context):
        if context.attempt == 1:
            context.set_context_desc("the mail server rests")
            context.set_rollback_only()
        if context.attempt == 2:
            context.set_rollback_only("it still rests")

    seen, before = Seen(refuse_twice), shared.given_back()
    with consuming(shared, seen.handler(topic, group="S_refuses")):
        shared.publish("EC_PAID", 1, topic=topic)
        until(lambda: len(seen) == 3)

    assert (shared.admin.lag("S_refuses"), shared.given_back()) == (0, before + 2)
    assert [(context.attempt, reason) for _, context, reason in seen.calls] == [
        (1, ""),
        (2, "the mail server rests"),
        (3, "it still rests"),
    ]
    assert len({event.id for event, _, _ in seen.calls}) == 1


@pytest.mark.mission("002-20")
def test_an_exception_has_the_event_delivered_again_with_its_text_as_the_reason(shared, topic):
    def raise_once(event, context):
        if context.attempt == 1:
            context.set_rollback_only("a reason that the exception replaces")
            raise ConnectionError("no mail server")

    seen = Seen(raise_once)
    with consuming(shared, seen.handler(topic)):
        shared.publish("EC_PAID", 1, topic=topic)
        until(lambda: len(seen) == 2)

    assert [(context.attempt, reason) for _, context, reason in seen.calls] == [(1, ""), (2, "ConnectionError: no mail server")]


def test_events_of_one_key_are_consumed_in_order_and_one_that_fails_too_often_lets_the_others_go_on(shared, topic):
    calls = []

    @on("S_ordered", topic, "EC_PAID", ordered=True, retries=2)
    def take(event, context):
        calls.append((event.payload, context.attempt))
        if event.payload == 2:
            raise ConnectionError("no stock server")

    with Publisher("P_ordered", shared.nameserver) as events, consuming(shared, take, suspend_queue_ms=100):
        for number in range(1, 6):
            events.publish(topic, "EC_PAID", number, key="order-42")
        until(lambda: len(calls) >= 7)

    assert calls == [(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (5, 1)]
    assert [letter.message.body for letter in shared.admin.dead_letters("S_ordered")] == [b"2"]


def test_even_the_end_of_the_program_does_not_end_the_consumer(shared, topic):
    def leave_once(event, context):
        if context.attempt == 1:
            raise SystemExit("leaving")

    seen = Seen(leave_once)
    with consuming(shared, seen.handler(topic)):
        shared.publish("EC_PAID", 1, topic=topic)
        until(lambda: len(seen) == 2)

    assert seen.calls[1][2] == "SystemExit: leaving"


def test_coroutine_functions_and_methods_consume_too(shared, topic):
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

    with consuming(shared, Listener()):
        shared.publish("EC_PAID", topic=topic)
        until(lambda: attempts == [1, 2])
        shared.publish("EC_SENT", "a box", topic=topic)
        until(lambda: attempts == [1, 2, "a box"])

    assert threads[0] == threads[1] == "halfmoon-consumers"
    assert threads[2].startswith("halfmoon-S_mixed")


def test_a_coroutine_that_is_cancelled_from_inside_fails_like_any_other(shared, topic):
    attempts = []

    async def cancelled(event, context):
        attempts.append((context.attempt, context.message.properties.get(RECONSUME_REASON, "")))
        if context.attempt == 1:
            raise asyncio.CancelledError("by a task it waited for")

    with consuming(shared, Handler(group="S_mail", topic=topic, code="EC_PAID", function=cancelled)):
        shared.publish("EC_PAID", topic=topic)
        until(lambda: len(attempts) == 2)

    assert attempts[1] == (2, "CancelledError: by a task it waited for")


def test_a_plain_function_that_returns_a_coroutine_is_told_how_to_be_declared(shared, topic):
    async def forgotten(event): ...

    seen = []

    def handle(event, context):
        seen.append(context.message.properties.get(RECONSUME_REASON, ""))
        return forgotten(event) if context.attempt == 1 else None

    with consuming(shared, Handler(group="S_mail", topic=topic, code="EC_PAID", function=handle)):
        shared.publish("EC_PAID", topic=topic)
        until(lambda: len(seen) == 2)

    assert "returned an awaitable: declare it with async def" in seen[1]


def test_all_functions_of_a_group_share_one_member_and_get_what_they_asked_for(shared, topic):
    first, second = f"{topic}_A", f"{topic}_B"
    paid, sent, other, rest = Seen(), Seen(), Seen(), Seen()
    handlers = [
        paid.handler(first, "EC_PAID"),
        sent.handler(first, "EC_SENT"),
        other.handler(second, "EC_NEW", group="S_other"),
        rest.handler(second, "*"),
    ]
    with consuming(shared, handlers) as consumers:
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
def test_the_same_code_in_two_topics_is_two_types(shared, topic):
    first, second = f"{topic}_A", f"{topic}_B"
    here, there = Seen(), Seen()
    with consuming(shared, here.handler(first), there.handler(second)):
        shared.publish("EC_PAID", "first", topic=first)
        shared.publish("EC_PAID", "second", topic=second)
        until(lambda: len(here) == len(there) == 1)

    assert (here.payloads, there.payloads) == (["first"], ["second"])


def test_an_event_whose_function_is_gone_comes_again_and_says_so(shared, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    failing = Seen(lambda event, context: context.set_rollback_only("first release"))
    with consuming(shared, failing.handler(topic, "EC_OLD", group="S_gone")):
        shared.publish("EC_OLD", topic=topic)
        until(lambda: "error=first release" in caplog.text)
    other, again = Seen(), Seen()
    with consuming(shared, other.handler(topic, "EC_NEW", group="S_gone")):  # a release that knows it no more
        until(lambda: "nothing of group S_gone consumes" in caplog.text)
    with consuming(shared, again.handler(topic, "EC_OLD", group="S_gone")):
        until(lambda: len(again))

    assert len(other) == 0
    assert again.calls[0][2].endswith(f"nothing of group S_gone consumes {topic}/EC_OLD")


def test_what_does_not_decode_comes_again_with_the_reason_and_the_consumer_goes_on(shared, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    newer = Codecs()
    newer.accept(2)
    seen, late = Seen(), Seen()
    with consuming(shared, seen.handler(topic, group="S_version")):
        shared.publish("EC_PAID", "new form", topic=topic, version=2)
        shared.publish("EC_PAID", "old form", topic=topic)
        until(lambda: len(seen) and "version 2 is not understood" in caplog.text)
    with consuming(shared, late.handler(topic, group="S_version", codecs=newer)):
        until(lambda: len(late))

    assert seen.payloads == ["old form"]
    assert "version 2 is not understood here" in late.calls[0][2]


def test_a_payload_is_decoded_into_the_type_that_was_asked_for(shared, topic):
    @dataclass
    class Paid:
        order_id: int

    seen, before = Seen(), shared.given_back()
    with consuming(shared, seen.handler(topic, group="S_typed", payload=Paid)):
        shared.publish("EC_PAID", {"order_id": 7}, topic=topic)
        shared.publish("EC_PAID", {"order_id": "seven"}, topic=topic)
        until(lambda: len(seen) and shared.given_back() > before)

    assert seen.payloads == [Paid(7)]


def test_a_message_of_another_program_is_an_event_too(shared, topic):
    seen = Seen()
    with consuming(shared, seen.handler(topic)), Producer(group="P_other", nameserver=shared.nameserver) as producer:
        producer.send(Message(topic, b'{"order_id": 1}', tag="EC_PAID", keys=["order-1"], properties={"from": "afar"}))
        until(lambda: len(seen))
    (event, _, _) = seen.calls[0]

    assert (event.payload, event.code, event.key, event.headers["from"]) == ({"order_id": 1}, "EC_PAID", "order-1", "afar")


@pytest.mark.mission("002-08")
def test_each_step_is_a_log_line_that_names_the_event(shared, topic, caplog):
    caplog.set_level(logging.INFO, "halfmoon.events")
    seen = Seen(lambda event, context: context.attempt == 1 and context.set_rollback_only("no mail server"))
    with consuming(shared, seen.handler(topic)):
        sent = shared.publish("EC_PAID", topic=topic)
        until(lambda: len(seen) == 2)
        until(lambda: "decision=consumed" in caplog.text)

    lines = [
        one.getMessage() for one in caplog.records if one.name == "halfmoon.events" and one.getMessage().startswith("consume:")
    ]
    names = f"event={sent} topic={topic} code=EC_PAID message={sent} group=S_mail"
    assert lines == [
        f"consume: {names} attempt=1 decision=redeliver error=no mail server",
        f"consume: {names} attempt=2 decision=consumed",
    ]


@pytest.mark.mission("002-19")
@pytest.mark.parametrize("how", ["rollback-only", "exception"])
def test_what_was_given_up_is_a_dead_letter_with_its_last_reason_and_operators_see_it(shared, topic, how):
    def refuse(event, context):
        if how == "exception":
            raise ConnectionError(f"no mail server at attempt {context.attempt}")
        context.set_rollback_only(f"no mail server at attempt {context.attempt}")

    group = f"S_dead_{how}"
    with consuming(shared, Seen(refuse).handler(topic, group=group), reconsume_max=1), Admin(nameserver=shared.nameserver) as admin:
        sent = shared.publish("EC_PAID", topic=topic)
        (letter,) = until(lambda: admin.dead_letters(group))
        trace = admin.trace(sent, topic)

    assert letter.message.msg_id == sent
    assert letter.reason.endswith("no mail server at attempt 2")
    told = [one.detail for one in trace.events]
    assert any("no mail server at attempt 1" in one for one in told)
    assert any("no mail server at attempt 2" in one for one in told)
