"""Pulls: what is found, what is refused, what waits and what wakes it."""

import pytest

from halfmoon.errors import CorruptRecord
from halfmoon.model import ConsumeType, MessageModel
from halfmoon.wire.bodies import ConsumerData, HeartbeatData, SubscriptionGroupConfig, to_json
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.headers.admin import UpdateBrokerConfig
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.group import DeleteSubscriptiongroup, UpdateAndCreateSubscriptiongroup
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.pull import LitePullMessage, PullMessage, PullMessageReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic
from halfmoon.wire.record import decode_records
from tests.broker.talk import pull_header, send_header

T = "BenchmarkTest"


def bodies(reply):
    return [message.body for message in decode_records(reply.body)]


def filled(talk, count=10):
    for k in range(count):
        talk.post(send_header(T, properties=f"TAGS\x01t{k % 2}\x02"), b"%d" % k)
    talk.turn()
    return talk


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_pull_gives_messages_and_where_to_go_on(talk, serialization):
    filled(talk)

    reply = talk.pull(T, offset=4, serialization=serialization)

    assert (reply.code, reply.remark, reply.serialization) == (0, "FOUND", serialization)
    assert bodies(reply) == [b"%d" % k for k in range(4, 10)]
    assert reply.header(PullMessageReply) == PullMessageReply(
        suggest_which_broker_id=0, next_begin_offset=10, min_offset=0, max_offset=10
    )


def test_the_hot_and_the_plain_road_of_a_pull_give_the_same_bytes(talk):
    filled(talk)
    header = pull_header(T, offset=3, expression="t1")
    lite = LitePullMessage(**{name: getattr(header, name) for name in PullMessage.__struct_fields__})

    hot, plain = talk.ask(header), talk.ask(lite)

    assert (hot.code, hot.remark, hot.fields, hot.body) == (plain.code, plain.remark, plain.fields, plain.body)


@pytest.mark.parametrize(
    ("offset", "code", "status", "begin"),
    [
        (10, 19, "OFFSET_OVERFLOW_ONE", 10),
        (11, 21, "OFFSET_OVERFLOW_BADLY", 10),
        (-1, 21, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_an_offset_outside_the_queue_is_told_where_to_go(talk, offset, code, status, begin):
    filled(talk)

    reply = talk.pull(T, offset=offset)

    assert (reply.code, reply.remark, reply.header(PullMessageReply).next_begin_offset) == (code, status, begin)


def test_an_empty_queue_says_nothing_new_at_0_and_moved_elsewhere(talk):
    at_begin, elsewhere = talk.pull(T, offset=0), talk.pull(T, offset=7)

    assert (at_begin.code, at_begin.remark) == (19, "NO_MESSAGE_IN_QUEUE")
    assert (elsewhere.code, elsewhere.remark) == (21, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.mission("001-02", "001-07", "001-08")
def test_the_broker_sends_only_messages_whose_tag_is_wanted(talk):
    filled(talk)

    reply = talk.pull(T, expression="t1 || other")

    assert bodies(reply) == [b"1", b"3", b"5", b"7", b"9"]
    assert reply.header(PullMessageReply).next_begin_offset == 10


@pytest.mark.mission("001-08")
def test_tags_with_the_same_hash_pass_because_only_the_hash_is_compared(talk):
    talk.send(T, b"Aa", properties="TAGS\x01Aa\x02")
    talk.send(T, b"BB", properties="TAGS\x01BB\x02")
    talk.send(T, b"CC", properties="TAGS\x01CC\x02")

    assert bodies(talk.pull(T, expression="BB")) == [b"Aa", b"BB"]


def test_when_nothing_matches_the_reader_is_moved_on(talk):
    filled(talk)

    reply = talk.pull(T, expression="nobody")

    assert (reply.code, reply.remark, reply.header(PullMessageReply).next_begin_offset) == (20, "NO_MATCHED_MESSAGE", 10)


# ---------------------------------------------------------------- who may


def test_pull_consumers_are_rejected_where_the_setting_says_so(make_talk):
    talk = make_talk(reject_pull_consumers=True)
    talk.send("orders")
    talk.consume("orders", group="Push")
    data = HeartbeatData(
        client_id="c", consumer_data_set=[ConsumerData(group_name="Pull", consume_type=ConsumeType.CONSUME_ACTIVELY)]
    )  # fmt: skip
    assert talk.ask(HeartBeat(), to_json(data)).code == 0

    refused = talk.pull("orders", group="Pull")
    assert refused.code == 24
    assert refused.remark.startswith("the consumer's group info not exist, or the pull consumer is rejected by server.")
    assert talk.pull("orders", group="Push").code == 0
    assert talk.pull("orders", group="TOOLS_CONSUMER").code == 0


@pytest.mark.parametrize("what", ["the topic", "the group", "the broker"])
def test_a_held_pull_of_what_may_not_be_read_any_more_brings_nothing(talk, what):
    talk.send("orders")
    held = talk.post(pull_header("orders", offset=1, wait_ms=15_000))
    talk.turn()
    if what == "the topic":
        talk.ask(
            UpdateAndCreateTopic(topic="orders", read_queue_nums=4, write_queue_nums=4, perm=2, topic_filter_type="SINGLE_TAG")
        )
    elif what == "the group":
        config = SubscriptionGroupConfig(group_name="G", consume_enable=False)
        talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(config))
    else:
        talk.ask(UpdateBrokerConfig(), b"brokerPermission=2")
    assert talk.answer(held) is None
    talk.send("orders", b"late")

    answer = talk.answer(held)
    assert (answer.code, answer.body) == (16, b"")


def test_without_an_expression_the_heartbeats_subscription_counts(talk):
    filled(talk)

    assert talk.pull(T, expression=None).code == 24
    talk.consume("Other")
    assert talk.pull(T, expression=None).code == 24
    talk.consume(T, expression="t0")
    assert bodies(talk.pull(T, expression=None)) == [b"0", b"2", b"4", b"6", b"8"]


def test_a_subscription_older_than_the_pulls_is_refused(talk):
    filled(talk)
    talk.consume(T, version=5)

    assert talk.ask(pull_header(T, expression=None, version=6)).code == 25
    assert talk.ask(pull_header(T, expression=None, version=5)).code == 0


@pytest.mark.parametrize(("expression", "code"), [("||", 23), (" || ", 23)])
def test_an_expression_that_does_not_parse_is_refused(talk, expression, code):
    assert talk.pull(T, expression=expression).code == code


def test_other_kinds_of_expressions_are_refused(talk):
    header = pull_header(T, expression="a > 5")
    header.expression_type = "XPATH"

    assert talk.ask(header).code == 23


@pytest.mark.parametrize("queue_id", [-1, 1024, 2**31 - 1])
def test_a_queue_that_the_topic_does_not_have_is_refused(talk, queue_id):
    assert talk.pull(T, queue_id=queue_id).code == 1


def test_an_unknown_topic_is_refused(talk):
    assert talk.pull("Nothing").code == 17


def test_a_topic_that_may_not_be_read_is_refused(talk):
    talk.ask(
        UpdateAndCreateTopic(
            topic="W",
            default_topic="TBW102",
            read_queue_nums=1,
            write_queue_nums=1,
            perm=2,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
    )

    assert talk.pull("W").code == 16


def test_a_group_that_may_not_consume_is_refused_from_the_moment_it_is_told(talk):
    filled(talk)
    assert talk.pull(T, group="G").code == 0

    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", consume_enable=False)))

    assert talk.pull(T, group="G").code == 16


def test_without_automatic_groups_an_unknown_group_is_refused(make_talk):
    talk = make_talk(auto_create_groups=False)

    assert talk.pull(T, group="G").code == 26


def test_a_group_that_may_not_broadcast_is_refused_when_it_does(talk):
    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", consume_broadcast_enable=False)))
    talk.consume(T, model=MessageModel.BROADCASTING)

    assert talk.pull(T, expression=None).code == 16


def test_a_pull_carries_the_groups_progress(talk):
    filled(talk)
    talk.ask(pull_header(T, offset=5, commit=5))

    reply = talk.ask(QueryConsumerOffset(consumer_group="G", topic=T, queue_id=0))

    assert reply.header(OffsetReply).offset == 5


def test_progress_that_rides_on_a_late_pull_takes_nothing_back(talk):
    filled(talk)
    talk.post(pull_header(T, offset=2, commit=2))
    talk.post(UpdateConsumerOffset(consumer_group="G", topic=T, queue_id=0, commit_offset=5))
    talk.turn()
    assert talk.broker.offsets.get("G", T, 0) == 5

    talk.ask(UpdateConsumerOffset(consumer_group="G", topic=T, queue_id=0, commit_offset=1))
    talk.ask(pull_header(T, offset=2, commit=2))
    assert talk.broker.offsets.get("G", T, 0) == 2


# ---------------------------------------------------------------- waiting


def test_a_pull_that_waits_is_answered_in_the_turn_its_message_comes(talk):
    filled(talk)
    opaque = talk.post(pull_header(T, offset=10, wait_ms=15_000))
    talk.turn()
    talk.wait(4000)
    assert talk.answer(opaque) is None

    talk.send(T, b"new", peer=2)

    assert bodies(talk.answer(opaque)) == [b"new"]


def test_a_pull_and_its_message_in_one_turn_meet(talk):
    filled(talk)
    opaque = talk.post(pull_header(T, offset=10, wait_ms=15_000))
    talk.post(send_header(T), b"new", peer=2)
    talk.turn()

    assert bodies(talk.answer(opaque)) == [b"new"]


def test_a_message_with_another_tag_leaves_the_pull_waiting_and_the_end_moves_it_on(talk):
    filled(talk)
    opaque = talk.post(pull_header(T, offset=10, wait_ms=5000, expression="t1"))
    talk.turn()

    talk.send(T, b"no", peer=2, properties="TAGS\x01t0\x02")
    assert talk.answer(opaque) is None
    talk.wait(5000)

    reply = talk.answer(opaque)
    assert (reply.code, reply.header(PullMessageReply).next_begin_offset) == (20, 11)


def test_a_pull_that_waited_in_vain_is_answered_exactly_at_its_time(talk):
    opaque = talk.post(pull_header(T, wait_ms=2000))
    talk.turn()

    talk.wait(1999)
    assert talk.answer(opaque) is None
    talk.wait(1)
    assert talk.answer(opaque).code == 19


def test_a_broker_that_stops_answers_what_waits_and_refuses_what_comes_to_wait_so_that_nobody_waits_for_its_connection(talk):
    filled(talk)
    waiting = talk.post(pull_header(T, offset=10, wait_ms=15_000))
    talk.turn()
    talk.broker.stop(talk.instant)
    talk.run_effects()
    assert talk.answer(waiting).code == 19

    again = talk.pull(T, offset=10, wait_ms=15_000)
    assert (again.code, again.remark) == (14, "the broker is stopping")
    assert bodies(talk.pull(T, offset=9, wait_ms=15_000)) == [b"9"]


def test_with_long_polling_off_a_pull_waits_only_the_short_time(make_talk):
    talk = make_talk(long_polling=False, short_polling_ms=1000)
    opaque = talk.post(pull_header(T, wait_ms=15_000))
    talk.turn()
    talk.wait(1000)

    assert talk.answer(opaque).code == 19


def test_the_pulls_of_a_lost_connection_are_not_answered(talk):
    talk.post(pull_header(T, wait_ms=15_000))
    talk.turn()
    talk.lose(1)

    talk.send(T, b"new", peer=2)

    assert talk.broker.holds.count == 0


def test_a_waiting_pull_hears_that_its_topic_was_deleted(talk):
    talk.send("Gone")
    opaque = talk.post(pull_header("Gone", offset=1, wait_ms=15_000))
    talk.turn()

    talk.ask(DeleteTopicInBroker(topic="Gone"), peer=2)

    assert talk.answer(opaque).code == 21


def test_beyond_the_bound_of_waiting_pulls_one_is_answered_at_once(make_talk):
    talk = make_talk(holds_max=100)
    for peer in range(1, 101):
        talk.post(pull_header(T, wait_ms=15_000), peer=peer)
    talk.turn()

    assert talk.pull(T, wait_ms=15_000, peer=200).code == 19


def test_in_sync_flush_a_waiting_pull_wakes_when_the_message_is_durable(make_talk):
    talk = make_talk(store={"flush_disk_type": "SYNC_FLUSH"})
    opaque = talk.post(pull_header(T, wait_ms=15_000))
    talk.turn()
    talk.held_back = []
    talk.post(send_header(T), b"new", peer=2)
    talk.turn()

    assert talk.answer(opaque) is None
    talk.release()
    assert bodies(talk.answer(opaque)) == [b"new"]


# ---------------------------------------------------------------- bounds


def test_a_filter_of_any_length_is_refused_and_a_long_one_is_not_remembered(talk):
    talk.send("T")

    assert talk.pull("T", expression="a||" * 20_000).code == 23
    assert talk.pull("T", expression="a||" * 1_000).code == 20
    assert all(len(key[2] or "") < 1_000 for key in talk.broker.pulls.plans)


def test_pulls_by_the_hundred_in_one_turn_get_one_message_each_once_there_is_much_to_send(talk):
    talk.broker.pulls.answer_bytes_max = 5_000
    for _ in range(4):
        talk.send("T", bytes(1_000))

    posts = [talk.post(pull_header("T")) for _ in range(3)]
    talk.turn()
    assert [talk.answer(opaque).fields["nextBeginOffset"] for opaque in posts] == ["4", "4", "1"]

    assert talk.pull("T").fields["nextBeginOffset"] == "4"


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_pull_that_fails_is_answered_and_the_others_do_not_feel_it(talk, monkeypatch, serialization):
    talk.send("T", queue_id=0)
    talk.send("T", queue_id=1)
    waiting = talk.post(pull_header("T", queue_id=1, offset=1, wait_ms=5_000), serialization=serialization)
    talk.turn()
    read = talk.broker.store.read

    def fail(topic, queue_id, *rest):
        if queue_id == 1:
            raise CorruptRecord(0, "planted")
        return read(topic, queue_id, *rest)

    monkeypatch.setattr(talk.broker.store, "read", fail)
    posts = [talk.post(pull_header("T", queue_id=queue_id), serialization=serialization) for queue_id in (1, 0)]
    talk.post(send_header("T", queue_id=1), b"x")
    talk.turn()

    assert [talk.answer(opaque).code for opaque in (*posts, waiting)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("flag", "missing", "code"),
    [
        (4, "commit_offset", 0), (4, "suspend_timeout_millis", 0), (4, "sub_version", 0), (5, "commit_offset", 1),
        (6, "suspend_timeout_millis", 1), (0, "sub_version", 1), (6, "commit_offset", 0), (5, "sub_version", 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
def test_a_pull_needs_only_the_fields_that_its_bits_use(talk, flag, missing, code, serialization):
    talk.send("T")
    talk.consume("T")
    header = pull_header("T", commit=0)
    header.sys_flag = flag
    setattr(header, missing, None)

    reply = talk.ask(header, serialization=serialization)

    assert reply.code == code
    assert code == 0 or "needs" in reply.remark


@pytest.mark.parametrize("serialization", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    ("settings", "memory_bytes", "offset", "suggested"),
    [
        ({"slave_read_enable": True}, 1000, 0, 3),
        ({"slave_read_enable": True}, 1000, 9, 2),
        ({"slave_read_enable": True}, 1000, 10, 2),
        ({"slave_read_enable": True}, 10**9, 2, 2),
        ({"slave_read_enable": True, "broker_id": 1}, 1000, 0, 3),
        ({}, 1000, 0, 0),
        ({"broker_id": 1}, 1000, 0, 0),
    ],
)
def test_a_pull_says_which_broker_to_ask_next(make_talk, settings, memory_bytes, offset, suggested, serialization):
    talk = filled(make_talk(store={"memory_bytes": memory_bytes}, **settings))
    config = SubscriptionGroupConfig(group_name="G", broker_id=2, which_broker_when_consume_slowly=3)
    assert talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(config)).code == 0

    reply = talk.pull(T, offset=offset, serialization=serialization)

    got = bodies(reply)
    assert reply.header(PullMessageReply) == PullMessageReply(
        suggest_which_broker_id=suggested, next_begin_offset=offset + len(got), min_offset=0, max_offset=10
    )
    assert (got, reply.serialization) == ([b"%d" % k for k in range(offset, 10)][:8], serialization)


def test_an_unknown_group_is_sent_to_the_master(make_talk):
    talk = filled(make_talk(slave_read_enable=True))
    opaque = talk.post(pull_header(T, offset=10, wait_ms=20_000))
    talk.turn()
    talk.ask(DeleteSubscriptiongroup(group_name="G"))
    talk.wait(20_000)
    assert talk.answer(opaque).header(PullMessageReply).suggest_which_broker_id == 0
