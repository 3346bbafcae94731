"""A message that an operator has consumed at once (309): what the listener is given, what is answered, and what stays as it was."""

import pytest

from halfmoon.model import ConsumeStatus, MessageModel
from halfmoon.wire.bodies import ConsumeDirectlyResult, from_json
from halfmoon.wire.command import request_command
from halfmoon.wire.headers.client import ConsumeMessageDirectly
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from tests.client.messages import record
from tests.client.queue_of import Queues, listening, poll
from tests.client.scripted import Scripted


def consuming(listener, **values):
    script = Scripted()
    Queues(script)
    return script, listening(script, listener, **values)


def asked(script, core, body, group="C"):
    request = request_command(ConsumeMessageDirectly(consumer_group=group, client_id="c", broker_name="broker-a"), body, opaque=9)
    return script.run(core.instance.asked("broker-a:1", request))


def result(answer):
    assert (answer.code, answer.opaque) == (0, 9)
    return from_json(ConsumeDirectlyResult, answer.body)


def test_the_listener_is_given_the_message_and_progress_stays_where_it_was():
    seen = []
    script, core = consuming(lambda messages, context: seen.append((messages[0], context.queue)))
    before = dict(core.offsets.offsets)

    found = result(asked(script, core, record(7, b"again", tag="A")))

    [(message, queue)] = seen
    assert (message.body, message.tag, message.queue_offset, queue.broker_name) == (b"again", "A", 7, "broker-a")
    assert (found.consume_result, found.order, found.auto_commit) == ("CR_SUCCESS", False, True)
    assert core.offsets.offsets == before
    assert core.consumed_count == 0


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, "CR_SUCCESS"),
        (ConsumeStatus.CONSUME_SUCCESS, "CR_SUCCESS"),
        (ConsumeStatus.RECONSUME_LATER, "CR_LATER"),
        (7, "CR_LATER"),
    ],
)
def test_what_the_listener_returns_is_told_and_nothing_is_given_back(returned, expected):
    script, core = consuming(lambda messages: returned)

    assert result(asked(script, core, record(0))).consume_result == expected
    assert script.asked(ConsumerSendMsgBack) == []


def test_what_the_listener_raises_is_told_and_logged(caplog):
    def broken(messages):
        raise ValueError("no such order")

    script, core = consuming(broken)

    found = result(asked(script, core, record(0)))

    assert (found.consume_result, found.remark) == ("CR_THROW_EXCEPTION", "ValueError: no such order")
    (line,) = [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"]
    facts, _, then = line.partition("; ")
    assert facts == "listener failed: group=C topic=orders queue=broker-a:0 offset=0 message=ID0"
    assert then == "an operator asked for this call, nothing else comes of it"
    assert script.asked(ConsumerSendMsgBack) == []


@pytest.mark.parametrize("namespace", ["", "shop"])
@pytest.mark.parametrize("kind", ["%RETRY%", "%DLQ%"])
def test_a_redelivery_and_a_dead_letter_of_the_group_are_shown_with_their_own_topic(kind, namespace):
    seen, before = [], f"{namespace}%" if namespace else ""
    script, core = consuming(lambda messages: seen.append(messages[0].topic), model=MessageModel.CLUSTERING, namespace=namespace)

    asked(script, core, record(0, topic=f"{kind}{before}C", RETRY_TOPIC=f"{before}orders"), group=f"{before}C")

    assert seen == ["orders"]


def test_a_dead_letter_of_another_group_is_shown_with_the_topic_where_it_lies():
    seen = []
    script, core = consuming(lambda messages: seen.append(messages[0].topic), model=MessageModel.CLUSTERING)

    asked(script, core, record(0, topic="%DLQ%X", RETRY_TOPIC="orders"))

    assert seen == ["%DLQ%X"]


@pytest.mark.parametrize("body", [b"", b"nonsense", record(0)[:-1]])
def test_a_message_that_does_not_decode_is_answered_with_a_reason(body):
    script, core = consuming(lambda messages: None)

    assert asked(script, core, body).code == 1


def test_an_orderly_consumer_says_that_it_is_one():
    script, core = consuming(lambda messages: None, orderly=True)

    assert result(asked(script, core, record(0))).order


def test_another_group_and_a_consumer_without_a_listener_consume_nothing():
    script, core = consuming(lambda messages: None)
    assert asked(script, core, record(0), group="X").code == 1

    script = Scripted()
    Queues(script)
    asking = poll(script)
    assert asked(script, asking, record(0)).remark == "The Consumer Group <C> not exist in this consumer"
