"""A first attempt that is made by itself, and what goes on behind it: the same attempts, results and errors as the operation's."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.linger import LingeringSender
from halfmoon.client.core.produce.send_result import send_result
from halfmoon.effects import Call
from halfmoon.errors import (
    BrokerError,
    ConnectionLost,
    HalfmoonError,
    MessageIllegal,
    NetworkError,
    RequestTimeout,
    SendFailed,
    UsageError,
)
from halfmoon.model import Message, MessageQueue
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import SendMessageReply, SendMessageV2
from tests.client.core.produce.orders import ORDER, TWO
from tests.client.scripted import SILENT, Reply, Scripted, producer, route, routes, stored

QUEUE = MessageQueue("orders", "broker-b", 1)


def begun(sender, script, message=ORDER, *, queue=None, selector=None, key=None, timeout_ms=None):
    return sender.first(message, queue, selector, key, timeout_ms, script.steady, script.now)


def by_itself(sender, script, message, *, asynchronous, **chosen):
    """Send as the asyncio producer does."""
    first = begun(sender, script, message, **chosen)
    assert first is not None
    header = sender.header(first.outgoing, first.queue, script.now)
    try:
        reply = yield Call(first.address, header, first.outgoing.body, first.wait_ms)
        return send_result(reply, first.outgoing, first.queue, first.address, sender.settings.namespace)
    except (NetworkError, BrokerError) as exc:
        error = exc
    return (yield from sender.continue_send(first, error, asynchronous=asynchronous))


def by_operation(sender, script, message, *, asynchronous, **chosen):
    return (sender.send_async if asynchronous else sender.send)(message, **chosen)


def told(way, answers, chosen, *, asynchronous, **settings):
    """Return what was asked, and the results or errors of two sends."""
    script = Scripted()
    sender = producer(script, TWO, **settings)
    script.on(GetRouteinfoByTopic, routes(**{"orders": route(TWO), "N%orders": route(TWO)}))
    script.run(sender.queues("orders"))
    script.on(SendMessageV2, *answers())
    found = []
    for _ in range(2):
        try:
            found.append(script.run(way(sender, script, ORDER, asynchronous=asynchronous, **chosen)))
        except HalfmoonError as exc:
            found.append((type(exc), str(exc)))
    return [(seen.address, seen.fields, seen.body, seen.timeout_ms, seen.at) for seen in script.seen], found


ANSWERS = {
    "stored": lambda: [stored()],
    "stored, but not synced in time": lambda: [stored(10)],
    "refused for good": lambda: [Reply(16, remark="no")],
    "refused, then stored": lambda: [Reply(14, remark="busy"), stored()],
    "refused for now, always": lambda: [Reply(2, remark="busy")],
    "lost, then stored": lambda: [ConnectionLost("gone", "b"), stored()],
    "lost, then refused for good": lambda: [ConnectionLost("gone", "b"), Reply(13, remark="no")],
    "lost, always": lambda: [ConnectionLost("gone", "b")],
    "late, then stored": lambda: [RequestTimeout("late", "b"), stored()],
    "silent": lambda: [SILENT],
    "an answer without its fields": lambda: [Reply(0), stored()],
    "another queue than was asked for": lambda: [Reply(0, SendMessageReply(msg_id="id", queue_id=7, queue_offset=3))],
}
CHOSEN = {"any queue": {}, "a queue": {"queue": QUEUE}, "a key": {"key": "k"}, "a time": {"timeout_ms": 50}}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("chosen", CHOSEN.values(), ids=CHOSEN)
@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)
def test_the_attempts_and_their_end_are_those_of_the_operation(answers, chosen, asynchronous):
    expected = told(by_operation, answers, chosen, asynchronous=asynchronous)

    assert told(by_itself, answers, chosen, asynchronous=asynchronous) == expected
    assert expected[0]


def test_so_they_are_in_a_namespace():
    expected = told(by_operation, ANSWERS["lost, then stored"], {}, asynchronous=False, namespace="N")

    assert told(by_itself, ANSWERS["lost, then stored"], {}, asynchronous=False, namespace="N") == expected
    assert [result.queue.topic for result in expected[1]] == ["orders", "orders"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_that_could_not_be_made_at_once_is_made_by_the_operation(asynchronous):
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.queues("orders"))
    for chosen in ({}, {"queue": QUEUE}):
        first = begun(sender, script, **chosen)

        result = script.run(sender.continue_send(first, None, asynchronous=asynchronous))

        assert (result.queue, result.msg_id) == (first.queue, first.outgoing.msg_id)
    assert len(script.asked(SendMessageV2)) == 2


def test_after_a_lost_answer_the_same_message_goes_to_the_broker_that_may_have_it():
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.queues("orders"))
    once = Message("orders", b"paid", msg_id="once")
    first = begun(sender, script, once)
    script.on(SendMessageV2, RequestTimeout("late", "b"))
    with pytest.raises(SendFailed):
        script.run(sender.continue_send(first, RequestTimeout("late", first.address), asynchronous=False))
    last = script.asked(SendMessageV2)[-1]

    again = begun(sender, script, Message("orders", b"paid", msg_id="once", attempt=2))

    assert again.address == last.address


def test_what_became_of_it_is_told_where_the_topic_lost_its_masters_meanwhile():
    script = Scripted()
    sender = producer(script, TWO)
    script.run(sender.queues("orders"))
    first = begun(sender, script)
    script.on(GetRouteinfoByTopic, routes(orders=route(TWO, slaves_only=tuple(TWO))))
    script.run(sender.routes.refresh("orders"))

    with pytest.raises(SendFailed) as caught:
        script.run(sender.continue_send(first, ConnectionLost("gone", first.address), asynchronous=False))

    assert len(caught.value.brokers) == 3


@pytest.mark.parametrize(
    ("settings", "message", "timeout_ms"),
    [
        ({"latency_avoidance": True}, ORDER, None),
        ({"retry_not_stored": True}, ORDER, None),
        ({"compress_over_bytes": 4}, ORDER, None),
        ({}, Message("unknown", b"x"), None),
        ({}, ORDER, 0),
        ({"linger_ms": 1, "kind": LingeringSender}, ORDER, None),
    ],
    ids=["slow brokers are noted", "another status is tried again", "compressed", "no route", "no time", "waits for others"],
)
def test_what_asks_for_more_is_left_to_the_operation(settings, message, timeout_ms):
    script = Scripted()
    sender = producer(script, TWO, **settings)
    script.run(sender.queues("orders"))

    assert begun(sender, script, message, timeout_ms=timeout_ms) is None


def test_so_is_every_message_while_attempts_are_traced():
    script = Scripted()
    sender = producer(script)
    script.run(sender.queues("orders"))
    assert begun(sender, script) is not None

    sender.tracer = object()

    assert begun(sender, script) is None


def test_what_cannot_be_sent_is_said_at_once():
    script = Scripted()
    sender = producer(script)
    script.run(sender.queues("orders"))

    with pytest.raises(MessageIllegal, match="the message body length is zero"):
        begun(sender, script, Message("orders", b""))
    with pytest.raises(UsageError, match="message topic not equal"):
        begun(sender, script, queue=MessageQueue("others", "broker-a", 0))
    with pytest.raises(UsageError, match="select message queue return null"):
        begun(sender, script, selector=lambda queues, message, key: None)
