"""Sends: what is stored, what is refused and with which code, and that sends in groups and alone agree."""

from random import Random

import pytest

from halfmoon.broker.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.broker.send import replies
from halfmoon.hot import BATCH_MAX
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import encode, request_command
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply
from halfmoon.wire.headers.pull import PullMessageReply
from halfmoon.wire.headers.send import SendMessage, SendMessageReply
from halfmoon.wire.ids import pack_host, parse_offset_msg_id
from halfmoon.wire.record import BatchItem, decode_records, encode_batch
from tests.broker.half import TOPIC, half_properties, stored
from tests.broker.talk import OF_THE_BROKER, START_MS, Talk, full_for, pull_header, send_header


@pytest.mark.mission("004-20")
def test_a_sent_message_is_in_the_log_and_can_be_pulled(talk):
    sent = talk.send("BenchmarkTest", b"hello", properties="KEYS\x01k1\x02WAIT\x01true\x02TAGS\x01TagA\x02").header(
        SendMessageReply
    )

    [message] = decode_records(talk.pull("BenchmarkTest").body)

    assert (message.topic, message.queue_id, message.queue_offset, message.body) == ("BenchmarkTest", 0, 0, b"hello")
    assert message.properties == {"KEYS": "k1", "TAGS": "TagA", **OF_THE_BROKER}
    assert message.offset_msg_id == sent.msg_id
    assert parse_offset_msg_id(sent.msg_id) == (pack_host("127.0.0.1:10911"), message.physical_offset)
    assert (message.born_ms, message.store_ms, message.born_host) == (START_MS - 5, START_MS, "10.0.0.1:5000")


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_send_is_answered_in_the_serialisation_asked(talk, serialization):
    reply = talk.send("BenchmarkTest", serialization=serialization)

    assert reply.serialization == serialization
    assert reply.code == 0
    header = reply.header(SendMessageReply)
    assert (header.queue_id, header.queue_offset, header.region_id, header.trace_on) == (0, 0, "DefaultRegion", True)


def test_a_turn_with_many_sends_of_many_connections_stores_each_once_in_order_of_each_connection(talk):
    opaques = []
    for k in range(60):
        peer = 1 + k % 3
        header = send_header("BenchmarkTest", queue_id=k % 4)
        opaques.append((peer, talk.post(header, b"%d" % k, peer=peer, serialization=k % 2)))
    talk.turn()

    replies = [talk.answer(opaque, peer=peer).header(SendMessageReply) for peer, opaque in opaques]
    for queue_id in range(4):
        offsets = [r.queue_offset for r in replies if r.queue_id == queue_id]
        assert sorted(offsets) == list(range(15))
        numbers = [int(m.body) for m in decode_records(talk.pull("BenchmarkTest", queue_id=queue_id).body)]
        assert sorted(numbers) == list(range(queue_id, 60, 4))
        for sender in range(3):
            assert [n for n in numbers if n % 3 == sender] == sorted(n for n in numbers if n % 3 == sender)


def test_senders_are_answered_before_the_rest_of_their_turn_is_handled(talk):
    talk.send("BenchmarkTest")  # opens the queue
    asked = talk.post(GetMaxOffset(topic="BenchmarkTest", queue_id=0))
    sent = talk.post(send_header("BenchmarkTest"), b"second", peer=2)

    assert talk.broker.commit(talk.instant)
    talk.run_effects()
    assert talk.answer(sent, peer=2).code == 0
    assert not talk.received[1]

    assert not talk.broker.commit(talk.instant)
    talk.run_effects()
    assert talk.answer(asked).header(OffsetReply).offset == 2


def test_a_mistake_in_the_answer_to_one_group_is_said_and_the_others_are_answered_once(talk, monkeypatch, caplog):
    for queue_id in range(3):
        talk.send("BenchmarkTest", queue_id=queue_id)  # opens the queues
    send_answers = replies.send_answers

    def mistaken(groups, *rest, **options):
        if any(queue_id == 1 for _, queue_id, _ in groups):
            raise RuntimeError("a mistake")
        return send_answers(groups, *rest, **options)

    monkeypatch.setattr(replies, "send_answers", mistaken)
    asked = [talk.post(send_header("BenchmarkTest", queue_id=queue_id)) for queue_id in range(3)]
    talk.turn()

    answers = [[reply.code for reply in talk.received[1] if reply.opaque == opaque] for opaque in asked]
    assert answers == [[0], [1], [0]]
    assert "the replies to 3 groups of sends failed" in caplog.text


def test_what_stands_before_bytes_that_are_no_frame_is_answered_before_the_connection_closes(talk):
    talk.send("BenchmarkTest")  # opens the queue
    sent = talk.post(send_header("BenchmarkTest"), b"second")
    asked = talk.post(GetMaxOffset(topic="BenchmarkTest", queue_id=0))
    talk.feed(1, b"\xff" * 8)
    talk.turn()

    assert talk.answer(sent).code == 0
    assert talk.answer(asked).header(OffsetReply).offset == 2
    assert "frame" in talk.closed[1]


def both_roads(tmp_path, header, body):
    """Send the same message in a group (310) and alone (10) to two brokers; return what each stored and said."""
    found = []
    for road in ("hot", "plain"):
        talk = Talk(tmp_path / road)
        talk.send("TopicTest")  # makes the topic, so that the reader takes the next one
        if road == "plain":
            header = SendMessage(**{name: getattr(header, name) for name in SendMessage.__struct_fields__})
        reply = talk.ask(header, body)
        pulled = talk.pull("TopicTest", offset=1)
        found.append((reply.code, reply.fields, bytes(pulled.body)))
    return found


@pytest.mark.parametrize(
    "properties",
    [
        "",
        "KEYS\x01k\x02",
        "WAIT\x01true",
        "TAGS\x01中文\x02a\x01b\x02WAIT\x01false\x02",
        "UNIQ_KEY\x01AB\x02WAIT\x01true\x02TAGS\x01x",
    ],
)
def test_the_hot_and_the_plain_road_store_the_same_bytes_and_give_the_same_answer(tmp_path, properties):
    header = send_header("TopicTest", properties=properties, flag=-7, reconsume_times=3, sys_flag=0x301)

    hot, plain = both_roads(tmp_path, header, b"body")

    assert hot == plain
    assert hot[0] == 0


@pytest.mark.parametrize(
    "items",
    [
        [(b"m%d" % k, f"UNIQ_KEY\x01{k:032}\x02WAIT\x01true\x02TAGS\x01t\x02".encode(), 5) for k in range(9)],
        [(b"m" * k, f"KEYS\x01{k}\x02".encode(), k) for k in range(9)],
        [(b"m", b"UNIQ_KEY\x01a\x02", 0)],
    ],
)
def test_a_batch_by_the_hot_and_by_the_plain_road_stores_the_same_bytes_and_gets_the_same_answer(tmp_path, items):
    header = send_header("TopicTest", properties="a\x01b\x02WAIT\x01true", batch=True, reconsume_times=3, sys_flag=0x301)

    hot, plain = both_roads(tmp_path, header, encode_batch(items))

    assert hot == plain
    assert hot[0] == 0
    assert len(decode_records(hot[2])) == len(items)


@pytest.mark.parametrize(
    ("changed", "body", "code"),
    [
        ({"topic": ""}, b"x", 1),
        ({"topic": "T" * 128}, b"x", 1),
        ({"topic": "../../etc/passwd"}, b"x", 1),
        ({"topic": "a\0b\nc"}, b"x", 1),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, b"x", 16),
        ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", 16),
        ({"topic": "TRANS_CHECK_MAX_TIME_TOPIC"}, b"x", 16),
        ({"default_topic": "nothing"}, b"x", 17),
        ({"queue_id": 9999}, b"x", 1),
        ({"properties": "a\x01" + "b" * 40000}, b"x", 13),
        ({"properties": "TRAN_MSG\x01true\x02"}, b"x", 13),
        ({"properties": "DELAY\x01soon\x02"}, b"x", 13),
        ({"properties": "DELAY\x013\x02", "batch": True}, encode_batch([BatchItem(b"x", b"")]), 13),
        ({"batch": True}, encode_batch([BatchItem(b"x", b"DELAY\x013\x02")]), 13),
        ({"batch": True}, encode_batch([BatchItem(b"x", b"TRAN_MSG\x01true\x02")]), 16),
        ({"batch": True}, b"not a batch", 13),
        ({"batch": True}, b"", 13),
        ({}, b"x" * (4 * 1024 * 1024 + 1), 13),
    ],
)
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_what_may_not_be_stored_is_refused_with_its_code(talk, changed, body, code, serialization):
    end = talk.broker.store.end_offset

    reply = talk.ask(send_header(**changed), body, serialization=serialization)

    assert reply.code == code
    assert reply.remark
    assert talk.broker.store.end_offset == end


@pytest.mark.mission("003-14")
def test_a_half_message_is_refused_with_no_permission_and_a_clear_remark(make_talk):
    talk = make_talk(reject_transactions=True)

    reply = talk.send("BenchmarkTest", properties="TRAN_MSG\x01true\x02")

    assert (reply.code, reply.remark) == (16, "the broker[127.0.0.1] sending transaction message is forbidden")


def test_a_send_to_an_unknown_topic_makes_it_from_the_template(talk):
    assert talk.send("NewTopic", queue_id=3).code == 0

    config = talk.broker.topics.get("NewTopic")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (4, 4, 6)
    assert talk.send("NewTopic", queue_id=4).code == 1


def test_without_automatic_creation_an_unknown_topic_is_not_found(make_talk):
    talk = make_talk(auto_create_topics=False)

    reply = talk.send("NewTopic")

    assert reply.code == 17
    assert reply.remark.startswith("topic[NewTopic] not exist, apply first please!")


def test_a_negative_queue_lets_the_broker_choose_one_and_says_which(talk):
    seen = {talk.send("BenchmarkTest", queue_id=-1).header(SendMessageReply).queue_id for _ in range(20)}

    assert len(seen) > 5
    assert all(0 <= queue_id < 1024 for queue_id in seen)


def test_a_batch_gets_consecutive_offsets_and_one_answer(talk):
    talk.send("BenchmarkTest")
    items = [(b"m%d" % k, f"TAGS\x01t{k}\x02".encode(), k) for k in range(5)]

    reply = talk.ask(send_header("BenchmarkTest", batch=True, properties="WAIT\x01true"), encode_batch(items), code=320)

    header = reply.header(SendMessageReply)
    messages = decode_records(talk.pull("BenchmarkTest", offset=1).body)
    assert header.queue_offset == 1
    assert header.msg_id == ",".join(message.offset_msg_id for message in messages)
    assert [(m.body, m.tag, m.flag, m.queue_offset) for m in messages] == [(b"m%d" % k, f"t{k}", k, 1 + k) for k in range(5)]
    assert all(OF_THE_BROKER.items() <= m.properties.items() for m in messages)


def test_each_message_of_a_batch_gets_the_batchs_properties_but_not_its_unique_key(talk):
    items = [(b"m", b"UNIQ_KEY\x01own\x02WAIT\x01true\x02", 0)]
    talk.send("BenchmarkTest")

    header = send_header("BenchmarkTest", batch=True, properties="WAIT\x01false\x02UNIQ_KEY\x01batch\x02a\x01b")
    talk.ask(header, encode_batch(items))

    [message] = decode_records(talk.pull("BenchmarkTest", offset=1).body)
    assert message.properties == {"UNIQ_KEY": "own", "WAIT": "false", "a": "b", **OF_THE_BROKER}


def test_whether_a_body_is_a_batch_is_said_by_the_field_and_not_by_the_code(talk):
    body = encode_batch([(b"a", b"", 0), (b"b", b"", 0)])

    talk.ask(send_header("BenchmarkTest", batch=False), body, code=320)
    talk.ask(send_header("BenchmarkTest", batch=True), body, code=310)

    assert [m.body for m in decode_records(talk.pull("BenchmarkTest").body)] == [body, b"a", b"b"]


def test_a_one_way_send_is_stored_and_never_answered(talk):
    opaque = talk.post(send_header("BenchmarkTest"), b"quiet", oneway=True)
    refused = talk.post(send_header("../x"), b"quiet", oneway=True)
    talk.turn()

    assert talk.answer(opaque) is None
    assert talk.answer(refused) is None
    assert [m.body for m in decode_records(talk.pull("BenchmarkTest").body)] == [b"quiet"]


def test_a_number_that_does_not_fit_its_field_fails_that_message_only(talk):
    good = talk.post(send_header("BenchmarkTest"), b"a")
    command = send_header("BenchmarkTest")
    command.born_timestamp = 2**70
    bad = talk.post(command, b"b")
    good_too = talk.post(send_header("BenchmarkTest"), b"c")
    talk.turn()

    assert [talk.answer(o).code for o in (good, bad, good_too)] == [0, 1, 0]
    assert [m.body for m in decode_records(talk.pull("BenchmarkTest").body)] == [b"a", b"c"]


# ---------------------------------------------------------------- sync flush


def test_with_sync_flush_a_send_is_answered_and_visible_only_once_it_is_durable(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send("BenchmarkTest", b"first")
    talk.held_back = []

    opaque = talk.post(send_header("BenchmarkTest"), b"second")
    other = talk.post(send_header("BenchmarkTest"), b"third", peer=2)
    talk.turn()

    assert talk.answer(opaque) is None
    assert len(decode_records(talk.pull("BenchmarkTest", peer=3).body)) == 1
    assert talk.ask(GetMaxOffset(topic="BenchmarkTest", queue_id=0), peer=3).header(OffsetReply).offset == 1
    talk.release()
    assert talk.answer(opaque).code == 0
    assert talk.answer(other, peer=2).code == 0
    assert len(decode_records(talk.pull("BenchmarkTest", peer=3).body)) == 3


def test_many_sends_of_one_turn_share_one_sync(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.send("BenchmarkTest")
    talk.held_back = []
    for peer in range(2, 50):
        talk.post(send_header("BenchmarkTest"), b"x", peer=peer)
    talk.turn()

    assert len([work for work in talk.held_back if "sync" in work.name]) == 1


def test_with_sync_flush_who_does_not_wait_is_answered_at_once(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.held_back = []

    reply = talk.send("BenchmarkTest", properties="WAIT\x01false\x02")

    assert reply.code == 0


def test_a_sync_that_takes_too_long_is_answered_flush_disk_timeout(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"}, sync_timeout_ms=5000)
    talk.held_back = []
    opaque = talk.post(send_header("BenchmarkTest"), b"x")
    talk.turn()

    talk.wait(4999)
    assert talk.answer(opaque) is None
    talk.wait(1)

    reply = talk.answer(opaque)
    assert reply.code == 10
    assert reply.header(SendMessageReply).queue_offset == 0


def test_a_failed_sync_fails_the_waiting_sends_and_all_that_follow(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.held_back = []
    opaque = talk.post(send_header("BenchmarkTest"), b"x")
    talk.turn()

    for work in talk.held_back:
        work.done(OSError(5, "Input/output error"), talk.instant)
    talk.held_back = None
    talk.run_effects()

    assert talk.answer(opaque).code == 14
    assert talk.send("BenchmarkTest").code == 14
    assert talk.ask(pull_header("BenchmarkTest")).header(PullMessageReply).max_offset == 0


# ---------------------------------------------------------------- what all answers carry, and what must not stop the others


@pytest.mark.parametrize("topic", ["BenchmarkTest", "a b"])
def test_every_answer_to_a_send_tells_region_and_trace_switch(talk, topic):
    reply = talk.send(topic, queue_id=0)

    assert (reply.fields["MSG_REGION"], reply.fields["TRACE_ON"]) == ("DefaultRegion", "true")


STORED_IN = {
    "a send": ("KEYS\x01k\x02", TOPIC, 0),
    "a delayed send": ("DELAY\x013\x02", SCHEDULE_TOPIC, 2),
    "a send to a time": ("TIMER_DELAY_SEC\x0160\x02", TIMER_TOPIC, 0),
    "a half message": (half_properties(), HALF_TOPIC, 0),
    "a batch": ("WAIT\x01true\x02", TOPIC, 0),
}
"""Properties of a send -> topic and queue where it is stored first."""


@pytest.mark.parametrize("own", ["", "MSG_REGION\x01mine\x02TRACE_ON\x01perhaps\x02"])
@pytest.mark.parametrize("what", STORED_IN)
@pytest.mark.parametrize("trace_on", [True, False])
def test_region_and_trace_switch_are_stored_with_every_message_and_replace_the_senders_own(make_talk, what, own, trace_on):
    """Apache's broker 5.3.3 does so; clients of 5.x report nothing about the consumption of a message without a region."""
    talk = make_talk(region="eu", trace_on=trace_on)
    properties, topic, queue_id = STORED_IN[what]
    batch = what == "a batch"
    body = encode_batch([(b"a", own.encode(), 0), (b"b", b"", 0)]) if batch else b"x"

    for _ in range(2):  # the first one comes before its queue is open to the twin that reads
        reply = talk.ask(send_header(TOPIC, properties=properties + own, batch=batch), body)

    wanted = {"CLUSTER": "DefaultCluster", "MSG_REGION": "eu", "TRACE_ON": "true" if trace_on else "false"}
    messages = stored(talk, topic, queue_id)
    assert len(messages) == (4 if batch else 2)
    assert [{name: m.properties[name] for name in wanted} for m in messages] == [wanted] * len(messages)
    assert (reply.fields["MSG_REGION"], reply.fields["TRACE_ON"]) == ("eu", wanted["TRACE_ON"])


def test_a_queue_the_topic_does_not_have_is_refused_with_the_topic_as_java_writes_it(talk):
    talk.send("T")

    assert talk.send("T", queue_id=4).remark == (
        "request queueId[4] is illegal, TopicConfig [topicName=T, readQueueNums=4, writeQueueNums=4, perm=RW-, "
        "topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: 10.0.0.1:5000"
    )


@pytest.mark.parametrize("bits", [0x4, 0x8, 0xC])
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_transaction_bits_of_a_sender_are_refused_and_leave_the_offsets_of_others_right(talk, bits, serialization):
    talk.send("T")
    posts = [talk.post(send_header("T", sys_flag=flag), b"x", serialization=serialization) for flag in (0, bits, 0)]
    talk.turn()

    replies = [talk.answer(opaque) for opaque in posts]
    assert [reply.code for reply in replies] == [0, 16, 0]
    assert [replies[i].fields["queueOffset"] for i in (0, 2)] == ["1", "2"]
    assert talk.broker.store.queue_max("T", 0) == 3


@pytest.mark.parametrize("level", ["0", "-1", ""])
def test_a_level_of_no_delay_is_an_ordinary_message(talk, level):
    assert talk.send("T", properties=f"DELAY\x01{level}\x02").code == 0


def test_a_batch_whose_answer_would_not_fit_a_header_is_refused(make_talk):
    talk = make_talk(store={"commit_log_file_bytes": 8 * 1024 * 1024})
    body = encode_batch([BatchItem(b"", b"")] * (BATCH_MAX + 1))

    assert talk.ask(send_header("T", batch=True), body).code == 13
    assert talk.ask(send_header("T", batch=True), encode_batch([BatchItem(b"", b"")] * BATCH_MAX)).code == 0


def test_names_that_are_no_topics_are_not_remembered(talk):
    for number in range(100):
        talk.send(f"no such topic {number}")

    assert len(talk.broker.gate.reader) == 0


def test_a_failure_in_one_queue_is_answered_and_the_others_do_not_feel_it(talk):
    talk.send("T", queue_id=0)
    full_for(talk, "T", 1, KeyError("planted"))
    posts = [talk.post(send_header("T", queue_id=queue_id), b"x") for queue_id in (1, 2)]
    talk.turn()

    assert [talk.answer(opaque).code for opaque in posts] == [1, 0]


def test_a_disk_that_has_no_room_for_a_record_refuses_the_send(make_talk):
    talk = make_talk(disk=SimDisk(Random(1)))
    assert talk.send("BenchmarkTest").code == 0
    talk.disk.full = True
    assert talk.send("BenchmarkTest", bytes(20_000)).code == 14

    talk.disk.full = False
    assert talk.send("BenchmarkTest").code == 0


def test_with_sync_flush_a_disk_that_hangs_is_told_before_memory_is_full(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    talk.broker.sends.unsynced_bytes_max = 1_000
    talk.held_back = []
    for _ in range(2):
        talk.post(send_header("BenchmarkTest"), bytes(900))
        talk.turn()

    assert talk.send("BenchmarkTest").code == 2

    talk.release()
    assert talk.send("BenchmarkTest").code == 0


def test_a_response_that_looks_like_a_send_is_none(talk):
    command = request_command(send_header("BenchmarkTest"), b"x", opaque=7)
    command.flag = 1
    talk.feed(1, encode(command))
    talk.turn()

    assert talk.broker.store.queue_max("BenchmarkTest", 0) == 0


def test_requests_before_bytes_that_are_no_frame_are_answered(talk):
    opaque = talk.post(GetMaxOffset(topic="BenchmarkTest", queue_id=0))
    talk.feed(1, b"\xff" * 8)
    talk.turn()

    assert talk.answer(opaque).code == 0
    assert 1 in talk.closed


@pytest.mark.parametrize("topic", ["%RETRY%G", "%DLQ%G"])
def test_a_batch_may_go_where_retries_and_dead_letters_are_kept_as_in_the_original(talk, topic):
    items = [BatchItem(b"a", b""), BatchItem(b"b", b"")]

    assert talk.ask(send_header(topic, batch=True), encode_batch(items), code=320).code == 0
    assert [m.body for m in decode_records(talk.pull(topic).body)] == [b"a", b"b"]


@pytest.mark.parametrize("missing", ["default_topic", "default_topic_queue_nums"])
@pytest.mark.parametrize("topic", ["New", "%RETRY%G"])
def test_a_send_without_the_template_creates_no_topic(talk, topic, missing):
    reply = talk.ask(send_header(topic, **{missing: None}), b"x")

    assert (reply.code, "lacks its defaultTopic" in reply.remark) == (1, True)
    assert talk.broker.topics.get(topic) is None


@pytest.mark.parametrize("properties", ["", "WAIT\x01false\x02"])
def test_a_send_to_a_known_topic_needs_neither_group_nor_template(talk, properties):
    talk.send("Known")

    header = send_header("Known", producer_group=None, default_topic=None, default_topic_queue_nums=None, properties=properties)
    assert talk.ask(header, b"second").code == 0
    assert [m.body for m in decode_records(talk.pull("Known").body)] == [b"x", b"second"]
