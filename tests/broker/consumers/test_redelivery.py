"""Messages that could not be consumed: they come again by level, at last lie in the dead letters, and only their group's do."""

from itertools import count

import pytest

from halfmoon.limits import PROPERTIES_SENT_MAX, TOPIC_LENGTH_MAX
from halfmoon.wire.bodies import SubscriptionGroupConfig, to_json
from halfmoon.wire.codes import ROCKETMQ
from halfmoon.wire.headers.group import UpdateAndCreateSubscriptiongroup
from halfmoon.wire.headers.offset import GetMaxOffset, OffsetReply, UpdateConsumerOffset
from halfmoon.wire.headers.send import ConsumerSendMsgBack, SendMessageReply
from halfmoon.wire.headers.topic import UpdateAndCreateTopic
from halfmoon.wire.ids import parse_offset_msg_id
from halfmoon.wire.properties import encode
from halfmoon.wire.record import decode_records
from tests.broker.half import COMMIT, TOPIC, end, prepare, stored
from tests.broker.talk import OF_THE_BROKER, START_MS, send_header

LEVELS_MS = [10_000, 30_000, 60_000, 120_000]
"""What the first redeliveries wait."""


fresh = count(100)
"""Connections that were not silent for hours."""


def back(offset, group="G", level=0, most=16, **more):
    return ConsumerSendMsgBack(offset=offset, group=group, delay_level=level, max_reconsume_times=most, **more)


def found(talk, topic, queue_id=0, offset=0):
    """Return the messages of a queue from an offset on."""
    reply = talk.pull(topic, queue_id=queue_id, offset=offset, group="TOOLS_CONSUMER", peer=next(fresh))
    return decode_records(reply.body) if reply.code == 0 else []


def sent(talk, body=b"x", properties="", topic="T"):
    """Send a message and return it as its consumer gets it."""
    place = talk.send(topic, body, properties=properties).header(SendMessageReply)
    return found(talk, topic, offset=place.queue_offset)[0]


def consuming(talk, *topics, group="G", peer_remote=None):
    if peer_remote is not None:
        talk.connect(1, peer_remote)
    talk.consume(*(topics or ("T",)), f"%RETRY%{group}", group=group)
    return talk


def test_a_message_given_back_comes_again_on_the_retry_topic_after_its_level(talk):
    consuming(talk)
    talk.send("T", b"before")
    message = sent(talk, b"late", "KEYS\x01k\x02TAGS\x01A\x02UNIQ_KEY\x01AB\x02mine\x01m\x02")

    reply = talk.ask(back(message.physical_offset, origin_msg_id="AB", reason="no\x02 stock\n"))
    talk.wait(9_900)
    assert found(talk, "%RETRY%G") == []
    talk.wait(300)

    assert reply.code == 0
    [again] = found(talk, "%RETRY%G")
    assert (again.body, again.reconsume_times, again.born_ms, again.born_host) == (b"late", 1, message.born_ms, message.born_host)
    wanted = {"KEYS": "k", "TAGS": "A", "UNIQ_KEY": "AB", "mine": "m", **OF_THE_BROKER}
    wanted |= {"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": message.offset_msg_id, "RECONSUME_REASON": "no stock"}
    assert wanted.items() <= again.properties.items()
    assert again.store_ms - START_MS >= 10_000


@pytest.mark.slow
def test_each_redelivery_waits_a_level_longer_and_the_last_failure_is_a_dead_letter(talk):
    consuming(talk)
    message, begun = sent(talk, b"bad"), talk.now
    for times, wait_ms in enumerate(LEVELS_MS):
        assert talk.ask(back(message.physical_offset, most=4, reason=f"try {times}"), peer=next(fresh)).code == 0
        talk.wait(wait_ms - 50)
        assert found(talk, "%RETRY%G", offset=times) == []
        talk.wait(200)
        [message] = found(talk, "%RETRY%G", offset=times)
        assert message.reconsume_times == times + 1

    assert talk.ask(back(message.physical_offset, most=4), peer=next(fresh)).code == 0

    [dead] = found(talk, "%DLQ%G")
    assert (dead.body, dead.reconsume_times, dead.properties["RETRY_TOPIC"]) == (b"bad", 5, "T")
    assert dead.properties["RECONSUME_REASON"] == "try 3"
    assert not dead.properties.keys() & {"DELAY", "REAL_TOPIC", "REAL_QID"}
    assert talk.now - begun < sum(LEVELS_MS) + 1_000
    talk.wait(8 * 3_600_000)
    assert len(found(talk, "%DLQ%G")) == 1
    assert len(found(talk, "%RETRY%G")) == 4


@pytest.mark.parametrize(("level", "wait_ms"), [(1, 1_000), (5, 60_000), (18, 7_200_000), (19, 7_200_000), (2**31 - 1, 7_200_000)])
def test_the_client_may_choose_the_level(talk, level, wait_ms):
    consuming(talk)
    message = sent(talk)

    assert talk.ask(back(message.physical_offset, level=level)).code == 0
    talk.wait(wait_ms - 50)
    assert found(talk, "%RETRY%G") == []
    talk.wait(200)

    assert len(found(talk, "%RETRY%G")) == 1


@pytest.mark.parametrize(
    ("header", "version", "dead"),
    [
        ({"level": -1}, 409, True),
        ({"level": -(2**31)}, 409, True),
        ({"most": 0}, 409, True),
        ({"most": -1}, 409, True),
        ({"most": 1}, 409, False),
        ({"most": 0}, 120, False),  # older than 3.4.9: the group's own number counts
        ({"most": None}, 409, False),
    ],
)
def test_dead_letters_at_once(talk, header, version, dead):
    consuming(talk)
    message = sent(talk)

    assert talk.ask(back(message.physical_offset, **header), version=version).code == 0

    assert len(found(talk, "%DLQ%G")) == int(dead)


def test_the_groups_own_number_counts_for_clients_that_say_none(talk):
    consuming(talk)
    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", retry_max_times=0)))
    message = sent(talk)

    assert talk.ask(back(message.physical_offset, most=None)).code == 0

    assert len(found(talk, "%DLQ%G")) == 1


def test_a_group_without_retry_queues_wants_nothing_again(talk):
    consuming(talk)
    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", retry_queue_nums=0)))
    message = sent(talk)
    end = talk.broker.store.end_offset

    assert talk.ask(back(message.physical_offset)).code == 0

    assert talk.broker.store.end_offset == end


def test_redeliveries_are_spread_over_the_queues_that_the_topic_has(talk):
    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", retry_queue_nums=3)))
    consuming(talk)
    talk.ask(UpdateAndCreateSubscriptiongroup(), to_json(SubscriptionGroupConfig(group_name="G", retry_queue_nums=50)))
    for number in range(30):
        assert talk.ask(back(sent(talk, b"%d" % number).physical_offset, level=1)).code == 0
    talk.wait(2_000)

    counts = [len(found(talk, "%RETRY%G", queue_id)) for queue_id in range(3)]
    assert sum(counts) == 30
    assert all(counts)


def test_a_copy_keeps_what_the_record_had(make_talk):
    talk = make_talk()
    consuming(talk, peer_remote="[2001:db8::1]:5000")
    header = send_header("T", properties="TAGS\x01A\x02", sys_flag=0x301, flag=-7, reconsume_times=9)
    assert talk.ask(header, b"not really packed").code == 0
    [message] = decode_records(talk.pull("T").body)
    assert message.born_host == "[2001:db8::1]:5000"

    assert talk.ask(back(message.physical_offset, level=1)).code == 0
    talk.wait(2_000)

    [again] = found(talk, "%RETRY%G")
    assert (again.sys_flag, again.flag, again.body) == (message.sys_flag, -7, b"not really packed")
    assert (again.born_ms, again.born_host, again.reconsume_times) == (message.born_ms, message.born_host, 1)


def test_the_copy_of_a_committed_message_belongs_to_no_transaction(talk):
    consuming(talk, TOPIC)
    half = prepare(talk, queue_id=0)
    assert end(talk, half, COMMIT).code == 0
    [message] = stored(talk, TOPIC)
    assert message.sys_flag & 0xC == 8

    assert talk.ask(back(message.physical_offset, level=1)).code == 0
    talk.wait(2_000)
    [again] = found(talk, "%RETRY%G")
    assert talk.ask(back(again.physical_offset, level=-1)).code == 0
    [dead] = found(talk, "%DLQ%G")

    assert [(one.sys_flag & 0xC, one.prepared_transaction_offset) for one in (again, dead)] == [(0, 0), (0, 0)]
    assert len(stored(talk, TOPIC)) == 1
    talk.restart()
    assert (len(stored(talk, TOPIC)), talk.broker.transactions.index.pending_count) == (1, 0)


# ---------------------------------------------------------------- refused


def nothing_stored(talk, header, code, **kw):
    """Ask and check that it is refused and nothing changed; return the remark."""
    end, topics, groups = talk.broker.store.end_offset, talk.broker.topics.names(), talk.broker.groups.names()
    reply = talk.ask(header, **kw)
    talk.wait(20_000)
    assert reply.code == code
    assert (talk.broker.store.end_offset, talk.broker.topics.names(), talk.broker.groups.names()) == (end, topics, groups)
    return reply.remark


@pytest.mark.parametrize("offset", [-1, -(2**63), 1, 5_000, 2**62, 2**63 - 1])
def test_a_message_that_does_not_exist_is_not_taken_back(talk, offset):
    consuming(talk)
    sent(talk)

    assert f"look message by offset failed, {offset}" in nothing_stored(talk, back(offset), 1)


def test_a_place_inside_a_record_is_no_message(talk):
    consuming(talk)
    first = sent(talk, b"x" * 200)

    nothing_stored(talk, back(first.physical_offset + 88), 1)


def test_another_message_than_the_client_means_is_not_taken_back(talk):
    consuming(talk)
    message = sent(talk, properties="UNIQ_KEY\x01AB\x02")

    nothing_stored(talk, back(message.physical_offset, origin_msg_id="AC"), 1)
    assert talk.ask(back(message.physical_offset, origin_msg_id=message.offset_msg_id)).code == 0


def test_an_unknown_group_takes_nothing_back(talk):
    message = sent(talk)

    nothing_stored(talk, back(message.physical_offset, group="nobody"), 26)


def test_a_topic_that_the_group_does_not_consume_is_not_taken_back(talk):
    consuming(talk)
    consuming(talk, "U", group="H")
    message = sent(talk)

    assert "does not consume topic T" in nothing_stored(talk, back(message.physical_offset, group="H"), 1)


def test_a_redelivery_of_another_group_is_not_taken_back(talk):
    consuming(talk)
    consuming(talk, "T", "%RETRY%G", group="H")
    assert talk.ask(back(sent(talk).physical_offset, level=1)).code == 0
    talk.wait(2_000)
    [again] = found(talk, "%RETRY%G")

    nothing_stored(talk, back(again.physical_offset, group="H"), 1)


@pytest.mark.parametrize(
    ("topic", "properties"), [("SCHEDULE_TOPIC_XXXX", "DELAY\x0118\x02"), ("rmq_sys_wheel_timer", "TIMER_DELAY_SEC\x01600\x02")]
)
def test_what_is_parked_is_nobodys_to_give_back(talk, topic, properties):
    consuming(talk, "T", topic)
    parked_at = parse_offset_msg_id(talk.send("T", properties=properties).header(SendMessageReply).msg_id).physical_offset
    [parked] = decode_records(talk.broker.store.record(parked_at))
    assert parked.topic == topic

    nothing_stored(talk, back(parked_at), 1)


def test_a_group_that_consumed_the_topic_before_gives_back_without_being_online(talk):
    consuming(talk)
    message = sent(talk)
    talk.ask(UpdateConsumerOffset(consumer_group="G", topic="T", queue_id=0, commit_offset=0))
    talk.restart()

    assert talk.ask(back(message.physical_offset)).code == 0


def test_a_broker_that_may_not_be_written_takes_nothing_back(make_talk):
    talk = consuming(make_talk(permission=4))
    message = sent(talk)

    nothing_stored(talk, back(message.physical_offset), 16)


def test_a_retry_topic_that_may_not_be_written_takes_nothing(talk):
    consuming(talk)
    message = sent(talk)
    header = UpdateAndCreateTopic(
        topic="%RETRY%G", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=4, topic_filter_type="SINGLE_TAG",
        order=False,
    )  # fmt: skip
    assert talk.ask(header).code == 0

    assert "%RETRY%G" in nothing_stored(talk, back(message.physical_offset), 16)


def test_properties_that_leave_no_room_are_refused_and_a_reason_gives_way(talk):
    consuming(talk)
    pair = encode({"mine": "m" * (32_767 - 69)})
    full = sent(talk, properties=pair.decode())
    tight = sent(talk, properties=encode({"mine": "m" * (32_767 - 189)}).decode())

    nothing_stored(talk, back(full.physical_offset), 13)
    assert talk.ask(back(tight.physical_offset, level=-1, reason="r" * 400)).code == 0
    [dead] = found(talk, "%DLQ%G")
    assert "RECONSUME_REASON" not in dead.properties
    assert dead.properties["RETRY_TOPIC"] == "T"


@pytest.mark.parametrize("level", [0, -1], ids=["again", "dead letter"])
def test_what_our_senders_allow_leaves_room_to_redeliver_a_delayed_message_of_the_longest_names(talk, level):
    topic, group = "T" * TOPIC_LENGTH_MAX, "G" * (TOPIC_LENGTH_MAX - len("%RETRY%"))
    consuming(talk, topic, group=group)
    given = {"KEYS": "k" * 500, "DELAY": "1", "mine": "m"}
    properties = encode({**given, "mine": "m" * (PROPERTIES_SENT_MAX - len(encode(given)) + 1)})
    assert len(properties) == PROPERTIES_SENT_MAX
    talk.send(topic, properties=properties.decode())
    talk.wait(1100)
    [message] = found(talk, topic)

    assert talk.ask(back(message.physical_offset, group=group, level=level)).code == 0
    talk.wait(LEVELS_MS[0] + 200)

    [copy] = found(talk, f"%DLQ%{group}" if level else f"%RETRY%{group}")
    assert (copy.properties["RETRY_TOPIC"], copy.properties["mine"]) == (topic, message.properties["mine"])


# ---------------------------------------------------------------- answers


def test_a_send_back_is_answered_in_its_serialisation_and_a_oneway_one_not_at_all(talk):
    consuming(talk)
    message = sent(talk)

    reply = talk.ask(back(message.physical_offset, level=-1), serialization=ROCKETMQ)
    assert (reply.code, reply.serialization) == (0, ROCKETMQ)
    assert talk.ask(back(message.physical_offset, level=-1), oneway=True) is None
    assert talk.ask(back(-1), oneway=True) is None
    assert len(found(talk, "%DLQ%G")) == 2


def test_with_sync_flush_the_copy_is_durable_before_the_answer(make_talk):
    talk = consuming(make_talk(store={"flush_disk_type": "SYNC_FLUSH"}))
    message = sent(talk)
    talk.ask(back(message.physical_offset))  # makes the parking queue
    talk.held_back = []

    opaque = talk.post(back(message.physical_offset))
    talk.turn()
    assert talk.answer(opaque) is None
    talk.release()

    assert talk.answer(opaque).code == 0


def test_send_backs_are_counted_by_topic_and_group(talk):
    consuming(talk)
    message = sent(talk)
    talk.ask(back(message.physical_offset, level=1))
    talk.wait(2_000)
    [again] = found(talk, "%RETRY%G")
    talk.ask(back(again.physical_offset))

    assert talk.broker.stats.item("SNDBCK_PUT_NUMS", "T@G").total == 2


# ---------------------------------------------------------------- dead letters and what clients publish


def test_a_dead_letter_that_is_consumed_and_fails_is_tried_like_a_new_message(talk):
    consuming(talk)
    consuming(talk, "%DLQ%G", group="H")
    message = sent(talk)
    talk.ask(back(message.physical_offset, level=-1))
    [dead] = found(talk, "%DLQ%G")

    assert talk.ask(back(dead.physical_offset, group="H", most=1)).code == 0
    talk.wait(11_000)

    [again] = found(talk, "%RETRY%H")
    assert (again.reconsume_times, again.properties["RETRY_TOPIC"]) == (1, "%DLQ%G")


def published(talk, times, most, level=1, group="G", **kw):
    properties = encode({"RETRY_TOPIC": "T", "DELAY": str(level), "TAGS": "A"}).decode()
    header = send_header(
        f"%RETRY%{group}",
        properties=properties,
        reconsume_times=times,
        max_reconsume_times=most,
        producer_group="CLIENT_INNER_PRODUCER",
    )
    return talk.ask(header, b"own", **kw)


def test_what_a_client_publishes_to_its_retry_topic_waits_for_its_level(talk):
    consuming(talk)

    assert published(talk, 1, 16).code == 0
    assert found(talk, "%RETRY%G") == []
    talk.wait(1_200)

    [again] = found(talk, "%RETRY%G")
    assert (again.body, again.reconsume_times, again.tag) == (b"own", 1, "A")


@pytest.mark.parametrize(("times", "most", "version", "dead"), [(2, 2, 409, 1), (1, 2, 409, 0), (2, 2, 120, 0), (16, None, 409, 1)])
def test_what_a_client_publishes_for_the_last_time_is_a_dead_letter_at_once(talk, times, most, version, dead):
    consuming(talk)

    reply = published(talk, times, most, version=version)

    assert reply.code == 0
    assert len(found(talk, "%DLQ%G")) == dead
    for one in found(talk, "%DLQ%G"):
        assert (one.body, "DELAY" in one.properties) == (b"own", False)


@pytest.mark.parametrize("wish", ["TIMER_DELAY_SEC\x0160\x02", "TIMER_DELAY_MS\x0160000\x02", "DELAY\x0118\x02"])
def test_what_is_published_for_the_last_time_is_not_delayed_by_what_its_sender_asked_for(talk, wish):
    consuming(talk)

    reply = talk.ask(send_header("%RETRY%G", properties=wish, reconsume_times=16, max_reconsume_times=16), b"own")

    assert reply.code == 0
    assert [one.body for one in found(talk, "%DLQ%G")] == [b"own"]


def test_a_retry_topic_of_an_unknown_group_takes_nothing_where_groups_are_not_made(make_talk):
    talk = make_talk(auto_create_groups=False)
    talk.ask(UpdateAndCreateTopic(
        topic="%RETRY%none", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG", order=False,
    ))  # fmt: skip

    assert published(talk, 1, 16, group="none").code == 26


def test_redeliveries_and_dead_letters_are_there_after_a_restart(talk):
    consuming(talk)
    message = sent(talk)
    talk.ask(back(message.physical_offset, level=4))
    talk.ask(back(message.physical_offset, level=-1))
    talk.restart()
    talk.wait(31_000)

    assert len(found(talk, "%RETRY%G")) == 1
    assert len(found(talk, "%DLQ%G")) == 1
    assert talk.ask(GetMaxOffset(topic="%DLQ%G", queue_id=0)).header(OffsetReply).offset == 1
