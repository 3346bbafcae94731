"""What the broker passes on to consumers: a message to consume at once (309), and the question for their offsets (221 for 223)."""

import pytest

from halfmoon.broker import relay as relay_module
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import ConsumeDirectlyResult, ConsumerStatus, from_json, to_json
from halfmoon.wire.command import encode, reply_command
from halfmoon.wire.headers.client import (
    ConsumeMessageDirectly,
    GetConsumerRunningInfo,
    InvokeBrokerToGetConsumerStatus,
)
from halfmoon.wire.headers.send import SendMessageReply
from halfmoon.wire.record import decode_record

T = "orders"
QUEUE = MessageQueue(T, "broker-a", 0)


def asked(talk, peer, code):
    return [command for command in talk.received[peer] if command.code == code and not command.is_response]


def give(talk, peer, command, body=b"", code=0):
    talk.feed(peer, encode(reply_command(command, code, None, body=body)))
    talk.turn()


def test_a_message_to_consume_at_once_travels_with_the_request_and_the_result_comes_back(talk):
    talk.consume(T, peer=1)
    msg_id = talk.send(T, b"again").header(SendMessageReply).msg_id
    opaque = talk.post(ConsumeMessageDirectly(consumer_group="G", client_id="client-1", msg_id=msg_id), peer=2)
    talk.turn()

    [request] = asked(talk, 1, 309)
    assert decode_record(bytes(request.body)).body == b"again"
    assert request.fields["brokerName"] == "broker-a"
    give(talk, 1, request, to_json(ConsumeDirectlyResult(consume_result="CR_LATER")))
    assert from_json(ConsumeDirectlyResult, talk.answer(opaque, peer=2).body).consume_result == "CR_LATER"


@pytest.mark.parametrize("msg_id", [None, "", "nonsense", "7F00000100002A9F00000000000FFFFF", "7F00000100002A9F8000000000000000"])
def test_a_message_that_is_not_there_is_not_passed_on(talk, msg_id):
    talk.consume(T, peer=1)

    reply = talk.ask(ConsumeMessageDirectly(consumer_group="G", client_id="client-1", msg_id=msg_id), peer=2)

    assert reply.code == 1
    assert asked(talk, 1, 309) == []


def test_a_consumer_that_is_not_there_consumes_nothing(talk):
    msg_id = talk.send(T).header(SendMessageReply).msg_id

    assert talk.ask(ConsumeMessageDirectly(consumer_group="G", client_id="nobody", msg_id=msg_id)).code == 1
    assert talk.ask(ConsumeMessageDirectly(consumer_group="G", msg_id=msg_id)).code == 1


def status(talk, **fields):
    opaque = talk.post(InvokeBrokerToGetConsumerStatus(topic=T, group="G", **fields), peer=9)
    talk.turn()
    return opaque


def test_the_offsets_of_all_members_come_as_one_answer(talk):
    talk.consume(T, peer=1)
    talk.consume(T, peer=2)
    opaque = status(talk)

    give(talk, 1, asked(talk, 1, 221)[0], to_json(ConsumerStatus({QUEUE: 3})))
    assert talk.answer(opaque, peer=9) is None
    give(talk, 2, asked(talk, 2, 221)[0], to_json(ConsumerStatus({})))

    found = from_json(ConsumerStatus, talk.answer(opaque, peer=9).body)
    assert found.consumer_table == {"client-1": {QUEUE: 3}, "client-2": {}}


def test_one_member_may_be_asked_alone(talk):
    talk.consume(T, peer=1)
    talk.consume(T, peer=2)
    opaque = status(talk, client_addr="client-2")

    assert asked(talk, 1, 221) == []
    give(talk, 2, asked(talk, 2, 221)[0], to_json(ConsumerStatus({QUEUE: 7})))
    assert from_json(ConsumerStatus, talk.answer(opaque, peer=9).body).consumer_table == {"client-2": {QUEUE: 7}}


def test_who_does_not_answer_in_time_is_lost_or_answers_nonsense_is_left_out(talk):
    for peer in (1, 2, 3, 4):
        talk.consume(T, peer=peer)
    opaque = status(talk)

    give(talk, 1, asked(talk, 1, 221)[0], to_json(ConsumerStatus({QUEUE: 1})))
    give(talk, 2, asked(talk, 2, 221)[0], b"\xff nonsense")
    talk.lose(3)
    assert talk.answer(opaque, peer=9) is None
    talk.wait(relay_module.STATUS_TIMEOUT_MS)

    assert from_json(ConsumerStatus, talk.answer(opaque, peer=9).body).consumer_table == {"client-1": {QUEUE: 1}}


def test_nobody_to_ask_is_said(talk):
    talk.connect(9)
    assert talk.answer(status(talk), peer=9).remark == "No Any Consumer online in the consumer group: [G]"
    talk.consume(T, peer=1)
    assert from_json(ConsumerStatus, talk.answer(status(talk, client_addr="nobody"), peer=9).body).consumer_table == {}


def test_what_waits_shorter_is_given_up_first_whatever_was_asked_before(talk):
    talk.consume(T, peer=1)
    long = talk.post(GetConsumerRunningInfo(consumer_group="G", client_id="client-1"), peer=9)
    short = status(talk)

    talk.wait(relay_module.STATUS_TIMEOUT_MS)
    assert talk.answer(short, peer=9).code == 0
    assert talk.answer(long, peer=9) is None
    talk.wait(relay_module.TIMEOUT_MS)
    assert talk.answer(long, peer=9).code == 207


def test_more_members_than_may_be_under_way_are_not_asked(talk):
    talk.broker.relay.in_progress_max = 2
    for peer in (1, 2, 3):
        talk.consume(T, peer=peer)

    opaque = status(talk)

    assert talk.answer(opaque, peer=9).code == 2
    assert asked(talk, 1, 221) == []
