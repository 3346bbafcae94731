"""Half messages: what the first phase stores, answers and refuses."""

from __future__ import annotations

import pytest

from halfmoon.broker.names import HALF_TOPIC, OP_TOPIC
from halfmoon.model import java_hash
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.offset import GetMaxOffset
from halfmoon.wire.headers.send import SendMessage, SendMessageReply
from tests.broker.half import GROUP, TOPIC, half_properties, prepare, stored
from tests.broker.talk import OF_THE_BROKER, send_header


@pytest.mark.mission("003-13", "003-17", "003-18", "003-19", "003-20", "003-21", "003-22", "001-16", "001-23")
@pytest.mark.parametrize("road", [JSON, ROCKETMQ, "plain"])
def test_a_half_message_is_stored_apart_with_where_it_belongs(talk, road):
    header = send_header(TOPIC, queue_id=3, properties=half_properties(), sys_flag=4, flag=7)
    if road == "plain":
        header = SendMessage(**{name: getattr(header, name) for name in SendMessage.__struct_fields__})
    reply = talk.ask(header, b"order", serialization=JSON if road == "plain" else road)
    sent = reply.header(SendMessageReply)

    [half] = stored(talk, HALF_TOPIC)
    assert (half.topic, half.queue_id, half.queue_offset, half.body, half.flag) == (HALF_TOPIC, 0, 0, b"order", 7)
    assert half.sys_flag & 0xC == 0
    assert half.properties == {
        "KEYS": "k", "UNIQ_KEY": "u1", "TAGS": "X", "TRAN_MSG": "true", "PGROUP": GROUP, "WAIT": "true",
        **OF_THE_BROKER, "REAL_TOPIC": TOPIC, "REAL_QID": "3",
    }  # fmt: skip
    assert (sent.queue_id, sent.queue_offset, sent.msg_id) == (3, 0, half.offset_msg_id)
    assert stored(talk, TOPIC, 3) == []
    assert stored(talk, OP_TOPIC) == []


@pytest.mark.mission("003-16")
def test_half_messages_of_a_turn_go_through_the_same_store_together_each_answered_for_its_own_queue(talk):
    opaques = [
        talk.post(send_header(TOPIC, queue_id=k % 3, properties=half_properties(f"u{k}")), b"%d" % k, peer=1 + k % 2)
        for k in range(30)
    ]
    talk.turn()

    halves = stored(talk, HALF_TOPIC)
    for k, opaque in enumerate(opaques):
        sent = talk.answer(opaque, peer=1 + k % 2).header(SendMessageReply)
        assert sent.queue_id == k % 3
        assert halves[sent.queue_offset].body == b"%d" % k
        assert halves[sent.queue_offset].offset_msg_id == sent.msg_id
    assert [half.queue_offset for half in halves] == list(range(30))


def test_of_the_half_messages_of_a_turn_only_the_one_that_cannot_be_stored_is_refused(make_talk):
    talk = make_talk(store={"commit_log_file_bytes": 65_536})
    for queue_id in range(3):
        prepare(talk, f"first{queue_id}", queue_id=queue_id)
    sizes = {k: 65_500 if k == 4 else 100 + k for k in range(9)}
    opaques = {
        k: talk.post(send_header(TOPIC, queue_id=k % 3, properties=half_properties(f"u{k}", f"group-{k % 2}")), bytes(size))
        for k, size in sizes.items()
    }
    talk.turn()
    answers = {k: talk.answer(opaque) for k, opaque in opaques.items()}
    assert [k for k, answer in answers.items() if answer.code] == [4]
    assert answers[4].code == 13
    halves = stored(talk, HALF_TOPIC)
    assert len(halves) == 3 + 8
    index = talk.broker.transactions.index
    for k in sizes.keys() - {4}:
        sent = answers[k].header(SendMessageReply)
        half = halves[sent.queue_offset]
        assert (sent.queue_id, len(half.body), half.offset_msg_id) == (k % 3, sizes[k], sent.msg_id)
        entered = index.half(sent.queue_offset)
        assert (entered.physical_offset, entered.size) == (half.physical_offset, half.size_bytes)
        assert (half.properties["PGROUP"], entered.group_hash) == (f"group-{k % 2}", java_hash(f"group-{k % 2}"))
    assert index.pending_count == 11


@pytest.mark.mission("003-15")
@pytest.mark.parametrize("plain_road", [False, True])
def test_preparing_and_putting_wait_for_the_device_beside_the_turn(make_talk, plain_road):
    """Neither holds up anybody else, nor the other; both are answered once they are durable."""
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send(TOPIC, b"made", queue_id=0)
    prepare(talk, "first", queue_id=0)
    more = "DELAY\x010\x02" if plain_road else ""
    talk.held_back = []  # the device takes its time
    half = talk.post(send_header(TOPIC, properties=half_properties("u1", more=more)), b"half", peer=1)
    put = talk.post(send_header(TOPIC, properties=f"WAIT\x01true\x02{more}"), b"put", peer=2)
    other = talk.post(GetMaxOffset(topic=TOPIC, queue_id=0), peer=3)
    talk.turn()
    assert talk.answer(other, peer=3).code == 0
    assert (talk.answer(half, peer=1), talk.answer(put, peer=2)) == (None, None)
    second = talk.post(send_header(TOPIC, properties=half_properties("u2")), b"half", peer=1)
    talk.turn()
    assert talk.ask(GetMaxOffset(topic=TOPIC, queue_id=0), peer=3).code == 0
    talk.release()
    assert [talk.answer(each, peer=peer).code for each, peer in ((half, 1), (put, 2), (second, 1))] == [0, 0, 0]
    assert [message.body for message in stored(talk, HALF_TOPIC)] == [b"order", b"half", b"half"]


@pytest.mark.mission("003-14")
def test_a_broker_that_rejects_transactions_says_so(make_talk):
    talk = make_talk(reject_transactions=True)

    for serialization in (JSON, ROCKETMQ):
        reply = talk.send(TOPIC, properties=half_properties(), serialization=serialization)
        assert (reply.code, reply.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")
    assert stored(talk, HALF_TOPIC) == []


@pytest.mark.parametrize("name", ["DELAY\x013", "TIMER_DELAY_SEC\x015", "TIMER_DELIVER_MS\x0199999", "__STARTDELIVERTIME\x0199999"])
def test_a_delay_on_a_half_message_is_cleared(talk, name):
    prepare(talk, more=name + "\x02")

    [half] = stored(talk, HALF_TOPIC)
    assert name.partition("\x01")[0] not in half.properties
    assert half.properties["UNIQ_KEY"] == "u1"


def test_where_it_belongs_is_what_the_send_says_not_its_properties(talk):
    prepare(talk, more="REAL_TOPIC\x01Elsewhere\x02REAL_QID\x0177\x02TRANSACTION_CHECK_TIMES\x0115\x02")

    [half] = stored(talk, HALF_TOPIC)
    assert (half.properties["REAL_TOPIC"], half.properties["REAL_QID"]) == (TOPIC, "3")
    assert "TRANSACTION_CHECK_TIMES" not in half.properties


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (send_header(TOPIC, properties="TRAN_MSG\x01true\x02UNIQ_KEY\x01u\x02"), 13),  # no group
        (send_header(HALF_TOPIC, properties=half_properties()), 16),
        (send_header(OP_TOPIC, properties=half_properties()), 16),
        (send_header(TOPIC, queue_id=5000, properties=half_properties()), 1),
        (send_header("Unknown", default_topic="Nothing", properties=half_properties()), 17),
        (send_header(TOPIC, sys_flag=4), 16),  # prepared, but not a half message
    ],
)
def test_a_half_message_that_cannot_be_is_refused_and_nothing_is_stored(talk, header, code):
    assert talk.ask(header, b"x").code == code
    assert stored(talk, HALF_TOPIC) == stored(talk, TOPIC) == []
    assert talk.broker.transactions.index.pending_count == 0


@pytest.mark.mission("003-23", "000-70", "001-27")
def test_nobody_consumes_half_messages(talk):
    prepare(talk)

    for topic in (HALF_TOPIC, OP_TOPIC):
        talk.consume(topic)
        assert talk.pull(topic).code == 16
