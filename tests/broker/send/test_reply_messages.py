"""Request-reply: replies are pushed to the client that asked, stored, and refused in the original's words where they cannot be."""

import pytest

from halfmoon.broker import relay as relay_module
from halfmoon.limits import PROPERTIES_BYTES_MAX
from halfmoon.wire import properties
from halfmoon.wire.bodies import HeartbeatData, ProducerData, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, reply_command
from halfmoon.wire.headers.client import HeartBeat, UnregisterClient
from halfmoon.wire.headers.offset import GetMaxOffset, GetMaxOffsetReply
from halfmoon.wire.headers.send import PushReplyMessageToClient, SendMessageReply, SendReplyMessage, SendReplyMessageV2
from tests.broker.talk import START_MS

TOPIC = "DefaultCluster_REPLY_TOPIC"
ASKER, REPLIER = 1, 2
PROPERTIES = {"CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker@1", "TTL": "3000", "MSG_TYPE": "reply"}


def ask_as(talk, client_id, peer=ASKER, group="P"):
    body = to_json(HeartbeatData(client_id=client_id, producer_data_set=[ProducerData(group_name=group)]))
    assert talk.ask(HeartBeat(), body, peer=peer).code == 0


def reply(talk, body=b"answer", cls=SendReplyMessageV2, serialization=JSON, oneway=False, **changed):
    header = cls(
        producer_group="R", topic=changed.pop("topic", TOPIC), default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=START_MS - 5, flag=7,
        properties=properties.encode({k: v for k, v in (PROPERTIES | changed).items() if v is not None}).decode(),
    )  # fmt: skip
    opaque = talk.post(header, body, peer=REPLIER, serialization=serialization, oneway=oneway)
    talk.turn()
    return opaque


def pushed(talk, peer=ASKER):
    return [command for command in talk.received[peer] if command.code == 326 and not command.is_response]


def take(talk, command, code=0, peer=ASKER):
    talk.feed(peer, encode(reply_command(command, code, None)))
    talk.turn()


def stored(talk):
    return talk.ask(GetMaxOffset(topic=TOPIC, queue_id=0), peer=9).header(GetMaxOffsetReply).offset


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize("cls", [SendReplyMessage, SendReplyMessageV2])
def test_a_reply_is_pushed_to_who_asked_then_stored_and_answered(talk, cls, serialization):
    ask_as(talk, "asker@1")
    opaque = reply(talk, cls=cls, serialization=serialization)

    [push] = pushed(talk)
    header = push.header(PushReplyMessageToClient)
    assert (bytes(push.body), header.topic, header.producer_group, header.flag) == (b"answer", TOPIC, "R", 7)
    assert (header.born_host, header.store_host) == (f"10.0.0.{REPLIER}:5000", "127.0.0.1:10911")
    assert properties.decode(header.properties.encode()) == PROPERTIES | {"PUSH_REPLY_TIME": str(START_MS)}
    assert talk.answer(opaque, peer=REPLIER) is None  # not before the asker has it
    assert stored(talk) == 0

    take(talk, push)
    answer = talk.answer(opaque, peer=REPLIER)
    assert (answer.code, answer.header(SendMessageReply).queue_offset) == (0, 0)
    assert stored(talk) == 1


def test_a_reply_is_only_pushed_where_replies_are_not_to_be_stored(make_talk):
    talk = make_talk(store_replies=False, trace_on=False)
    ask_as(talk, "asker@1")
    opaque = reply(talk)
    take(talk, *pushed(talk))

    answer = talk.answer(opaque, peer=REPLIER)
    assert (answer.code, answer.fields["msgId"], answer.fields["TRACE_ON"]) == (0, "0", "false")
    assert stored(talk) == 0


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"REPLY_TO_CLIENT": None}, "reply message properties[REPLY_TO_CLIENT] is null"),
        ({"REPLY_TO_CLIENT": "nobody@7"}, "push reply message fail, channel of <nobody@7> not found."),
    ],
)
def test_a_reply_to_nobody_is_stored_and_refused(talk, changed, remark):
    opaque = reply(talk, **changed)

    answer = talk.answer(opaque, peer=REPLIER)
    assert (answer.code, answer.remark) == (1, remark)
    assert answer.fields["TRACE_ON"] == "true"
    assert stored(talk) == 1


def test_a_client_that_refuses_leaves_or_is_silent_did_not_get_the_reply(talk):
    for ending in (
        lambda push: take(talk, push, code=1),
        lambda push: talk.lose(ASKER),
        lambda push: talk.wait(relay_module.TIMEOUT_MS),
    ):
        talk.connect(ASKER)
        ask_as(talk, "asker@1")
        opaque = reply(talk)
        ending(pushed(talk)[-1])
        answer = talk.answer(opaque, peer=REPLIER)
        assert (answer.code, answer.remark) == (1, "push reply message to asker@1fail.")
    assert stored(talk) == 3


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_reply_is_stored_although_who_replied_is_gone_before_the_asker_has_it(talk, serialization):
    ask_as(talk, "asker@1")
    reply(talk, serialization=serialization)
    [push] = pushed(talk)

    talk.lose(REPLIER)
    assert stored(talk) == 1
    take(talk, push)
    talk.wait(relay_module.TIMEOUT_MS)
    assert stored(talk) == 1, "once"


def test_what_may_not_be_sent_is_not_pushed(talk):
    ask_as(talk, "asker@1")

    assert talk.answer(reply(talk, topic="RMQ_SYS_TRANS_HALF_TOPIC"), peer=REPLIER).code == 16
    assert talk.answer(reply(talk, b"x" * (4 * 1024 * 1024 + 1)), peer=REPLIER).code == 13
    assert talk.answer(reply(talk, x="x" * PROPERTIES_BYTES_MAX), peer=REPLIER).code == 13
    assert pushed(talk) == []


def test_the_newest_connection_of_a_client_gets_the_reply_whatever_its_groups(talk):
    ask_as(talk, "asker@1", peer=1)
    ask_as(talk, "asker@1", peer=3, group="P2")
    talk.lose(1)
    reply(talk)
    assert len(pushed(talk, peer=3)) == 1


def test_a_client_that_left_all_its_groups_is_not_found(talk):
    ask_as(talk, "asker@1", group="P1")
    ask_as(talk, "asker@1", group="P2")
    talk.ask(UnregisterClient(client_id="asker@1", producer_group="P1"), peer=ASKER)
    reply(talk)
    assert len(pushed(talk)) == 1
    talk.ask(UnregisterClient(client_id="asker@1", producer_group="P2"), peer=ASKER)
    assert "not found" in talk.answer(reply(talk), peer=REPLIER).remark


def test_a_one_way_reply_is_pushed_and_stored_without_an_answer(talk):
    ask_as(talk, "asker@1")
    opaque = reply(talk, oneway=True)
    take(talk, *pushed(talk))
    assert talk.answer(opaque, peer=REPLIER) is None
    assert stored(talk) == 1


def test_replies_that_wait_for_silent_clients_have_a_bound_of_bytes(talk):
    talk.broker.relay.bytes_max = 10_000
    ask_as(talk, "asker@1")
    reply(talk, b"x" * 6_000)
    refused = reply(talk, b"x", x="x" * 6_000)
    assert talk.answer(refused, peer=REPLIER).code == 2
    take(talk, *pushed(talk))
    reply(talk, b"x" * 6_000)
    assert len(pushed(talk)) == 2
