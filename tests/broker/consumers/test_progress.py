"""Offsets of groups: where a new group starts, what is stored and survives, lag, reset."""

from random import Random

import pytest

from halfmoon.broker.consumers import offsets as offsets_module
from halfmoon.model import MessageQueue
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import (
    BrokerConsumeStats,
    ConsumerOffsetTable,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    GroupList,
    GroupSubscription,
    ResetOffsetBody,
    TopicList,
    from_json,
)
from halfmoon.wire.headers.group import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QuerySubscriptionByConsumer,
    QueryTopicsByConsumer,
)
from halfmoon.wire.headers.offset import (
    CloneGroupOffset,
    GetAllConsumerOffset,
    InvokeBrokerToResetOffset,
    OffsetReply,
    QueryConsumerOffset,
    QueryCorrectionOffset,
    UpdateConsumerOffset,
)
from halfmoon.wire.headers.topic import DeleteTopicInBroker, QueryConsumeTimeSpan, QueryTopicConsumeByWho
from tests.broker.consumers.test_redelivery import back, consuming, sent
from tests.broker.talk import START_MS

T = "orders"


def made(talk, count=3):
    for k in range(count):
        talk.send(T, b"%d" % k)
        talk.wait(1000)
    return talk


def query(talk, group="G", queue_id=0, **kw):
    return talk.ask(QueryConsumerOffset(consumer_group=group, topic=T, queue_id=queue_id, **kw))


def update(talk, offset, group="G", queue_id=0, topic=T):
    return talk.ask(UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset))


def test_a_new_group_begins_at_0_while_the_first_message_is_there(talk):
    made(talk)

    assert query(talk).header(OffsetReply).offset == 0


def test_a_5x_client_may_ask_not_to_be_given_a_0(talk):
    made(talk)

    reply = query(talk, set_zero_if_not_found=False)

    assert (reply.code, reply.remark) == (22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")


def test_progress_is_stored_also_backwards(talk):
    made(talk)

    for offset in (3, 1):
        assert update(talk, offset).code == 0
        assert query(talk).header(OffsetReply).offset == offset


@pytest.mark.parametrize(("topic", "queue_id", "code"), [("nothing", 0, 17), (T, -1, 1), (T, 10**6, 1)])
def test_progress_in_what_does_not_exist_is_refused(talk, topic, queue_id, code):
    made(talk)

    assert update(talk, 1, topic=topic, queue_id=queue_id).code == code


def test_progress_survives_a_restart(talk):
    made(talk)
    update(talk, 2)

    talk.restart()

    assert query(talk).header(OffsetReply).offset == 2


def test_progress_survives_a_crash_once_the_period_of_saving_is_over(talk):
    made(talk)
    update(talk, 2)
    talk.wait(5000)
    talk.broker.store.close(talk.instant)

    talk.open()

    assert query(talk).header(OffsetReply).offset == 2


def test_progress_whose_file_is_gone_is_missed_by_name(talk, caplog):
    made(talk)
    update(talk, 2)
    assert talk.broker.groups.get("G") is not None
    talk.restart()
    assert "is missing" not in caplog.text

    talk.restart()
    talk.broker.store.close(talk.instant)
    for path in (offsets_module.PATH, offsets_module.PATH + ".bak"):
        talk.disk.remove(path)
    talk.open()

    assert "config/consumerOffset.json is missing: the progress of these groups is unknown" in caplog.text
    assert "they begin like new ones: G" in caplog.text


def test_a_group_without_progress_has_none_to_miss(talk, caplog):
    made(talk)
    talk.broker.groups.existing("G", talk.now)
    talk.restart()
    talk.restart()
    assert "is missing" not in caplog.text


def test_progress_beyond_the_end_of_a_queue_is_brought_back_at_the_start(talk):
    made(talk)
    update(talk, 3)
    talk.broker.offsets.put("G", T, 0, 99)
    talk.restart()

    assert query(talk).header(OffsetReply).offset == 3


def test_all_progress_is_given_with_numbers_as_raw_keys(talk):
    made(talk)
    update(talk, 2)

    body = talk.ask(GetAllConsumerOffset()).body

    assert b'"orders@G":{0:2}' in body
    table = from_json(ConsumerOffsetTable, body)
    assert table.offset_table == {"orders@G": {0: 2}}
    assert table.data_version is not None, "without one, a slave of RocketMQ 5 does not save it"


def test_deleting_a_topic_forgets_the_progress_in_it(talk):
    made(talk)
    update(talk, 3)

    talk.ask(DeleteTopicInBroker(topic=T))
    made(talk, 1)

    assert query(talk).header(OffsetReply).offset == 0


def test_lag_is_told_for_every_queue_of_every_topic_of_the_group(talk):
    made(talk)
    update(talk, 2)

    found = from_json(ConsumeStats, talk.ask(GetConsumeStats(consumer_group="G")).body)

    assert set(found.offset_table) == {MessageQueue(T, "broker-a", q) for q in range(4)}
    first = found.offset_table[MessageQueue(T, "broker-a", 0)]
    assert (first.broker_offset, first.consumer_offset, first.last_timestamp) == (3, 2, START_MS + 1000)


def test_the_lag_of_all_groups_is_told(talk):
    made(talk)
    update(talk, 1)

    found = from_json(BrokerConsumeStats, talk.ask(GetBrokerConsumeStats(is_order=False)).body)

    assert found.total_diff == 2


def test_who_consumes_a_topic_counts_those_online_and_those_with_progress(talk):
    made(talk)
    update(talk, 1, group="past")
    talk.consume(T, group="now", peer=2)

    assert from_json(GroupList, talk.ask(QueryTopicConsumeByWho(topic=T)).body).group_list == ["now", "past"]


def test_the_time_span_says_how_old_the_messages_are_that_the_group_is_at(talk):
    made(talk)
    update(talk, 1)

    found = from_json(ConsumeTimeSpans, talk.ask(QueryConsumeTimeSpan(topic=T, group="G")).body)

    span = found.consume_time_span_set[0]
    assert (span.min_time_stamp, span.max_time_stamp) == (START_MS, START_MS + 2000)
    assert span.delay_time == 2000


def test_a_reset_tells_every_member_and_answers_the_offsets(talk):
    made(talk)
    talk.consume(T, peer=2)
    for queue_id in range(4):
        update(talk, 3 if queue_id == 0 else 0, queue_id=queue_id)

    reply = talk.ask(InvokeBrokerToResetOffset(topic=T, group="G", timestamp=START_MS + 1000, is_force=True))

    table = from_json(ResetOffsetBody, reply.body).offset_table
    assert table[MessageQueue(T, "broker-a", 0)] == 1
    [told] = [c for c in talk.received[2] if c.code == 220]
    assert from_json(ResetOffsetBody, told.body).offset_table == table


def test_a_reset_without_force_never_skips_messages(talk):
    made(talk)
    talk.consume(T, peer=2)
    for queue_id in range(4):
        update(talk, 1 if queue_id == 0 else 0, queue_id=queue_id)

    reply = talk.ask(InvokeBrokerToResetOffset(topic=T, group="G", timestamp=-1, is_force=False))

    assert from_json(ResetOffsetBody, reply.body).offset_table[MessageQueue(T, "broker-a", 0)] == 1


def test_a_reset_of_a_group_that_is_not_online_is_refused(talk):
    made(talk)
    for queue_id in range(4):
        update(talk, 1, queue_id=queue_id)

    assert talk.ask(InvokeBrokerToResetOffset(topic=T, group="G", timestamp=-1, is_force=True)).code == 206


def test_while_a_group_is_online_the_lag_of_topics_it_does_not_subscribe_to_is_left_out(talk):
    made(talk)
    update(talk, 1)
    header = GetConsumeStats(consumer_group="G", topic=T)
    assert from_json(ConsumeStats, talk.ask(header).body).offset_table

    talk.consume("other", group="G")
    assert not from_json(ConsumeStats, talk.ask(header).body).offset_table
    talk.consume("other", T, group="G")
    assert from_json(ConsumeStats, talk.ask(header).body).offset_table


def test_progress_is_bounded_and_a_deleted_topic_makes_room(talk):
    talk.broker.offsets.entries_max = 2
    made(talk)

    assert [update(talk, 1, group=group).code for group in ("G1", "G2", "G3", "G1")] == [0, 0, 2, 0]
    assert talk.broker.offsets.get("G3", T, 0) is None

    talk.ask(DeleteTopicInBroker(topic=T))
    made(talk)
    query(talk, group="G3")
    talk.pull(T, group="G3")
    assert update(talk, 1, group="G3").code == 0


def test_a_reset_in_an_unknown_topic_is_refused(talk):
    header = InvokeBrokerToResetOffset(topic="nothing", group="G", timestamp=0, is_force=True)

    assert talk.ask(header).remark == "[reset-offset] reset offset failed, no topic in this broker. topic=nothing"


def test_progress_of_more_queues_than_a_request_may_name_is_there_after_a_restart(talk):
    """The file has numbers as raw keys, and bounds that hold for what comes from outside do not hold for it."""
    made(talk)
    for group in range(1_300):
        for queue_id in range(100):
            talk.broker.offsets.put(f"group-{group}", T, queue_id, 0)

    talk.restart()

    assert [talk.broker.offsets.get(f"group-{group}", T, 99) for group in (0, 1_299)] == [0, 0]


# ---------------------------------------------------------------- what is deleted, and what cannot be saved


def test_a_deleted_topics_progress_is_gone_from_the_disk_before_the_answer(talk):
    made(talk)
    update(talk, 3)
    talk.wait(6000)  # progress is saved
    talk.held_back = []
    opaque = talk.post(DeleteTopicInBroker(topic=T))
    talk.turn()
    assert talk.answer(opaque) is None
    talk.release()
    assert talk.answer(opaque).code == 0
    talk.disk.abandon()  # as a kill does
    talk.open()
    made(talk)
    assert query(talk).header(OffsetReply).offset == 0


def test_progress_in_a_topic_that_is_not_there_is_dropped_at_a_start_and_said(talk, caplog):
    made(talk)
    update(talk, 3)
    talk.broker.topics.delete(T, talk.now)
    talk.broker.store.delete_topic(T, talk.now)
    talk.restart()  # as if a kill had come before the progress was saved without it
    assert "progress is dropped for topics that do not exist: orders" in caplog.text
    made(talk)
    assert query(talk).header(OffsetReply).offset == 0


def test_while_progress_cannot_be_saved_it_is_refused_and_taken_again_when_it_can(make_talk, caplog):
    talk = make_talk(disk=SimDisk(Random(1)))
    made(talk)
    talk.disk.unwritable = "config/"
    assert update(talk, 1).code == 0  # nobody knows yet
    talk.wait(6000)
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "consumerOffset.json" in record.getMessage()]
    assert [(level, "[Errno 13] permission denied" in text) for level, text in said] == [("ERROR", True)]
    refused = update(talk, 2)
    assert (refused.code, "permission denied" in refused.remark) == (14, True)
    assert query(talk).header(OffsetReply).offset == 1
    refused = talk.ask(DeleteTopicInBroker(topic=T))
    assert (refused.code, "cannot be saved" in refused.remark) == (14, True)
    assert talk.broker.topics.get(T) is not None
    talk.disk.unwritable = None
    talk.wait(6000)
    assert update(talk, 2).code == 0
    assert "a table is saved again" in caplog.text


# ---------------------------------------------------------------- other groups' progress


def clone(talk, source="G", target="H", **kw):
    return talk.ask(CloneGroupOffset(src_group=source, dest_group=target, **{"topic": T, **kw}))


def test_a_group_is_given_the_progress_of_another_and_has_it_after_a_kill(talk):
    made(talk)
    update(talk, 2)
    update(talk, 1, "H", queue_id=1)

    assert clone(talk).code == 0
    talk.broker.store.close(talk.instant)
    talk.open()

    assert talk.broker.offsets.queues("H", T) == {0: 2}


def test_without_a_topic_the_progress_in_all_topics_is_given(talk):
    made(talk)
    talk.send("bills")
    update(talk, 2)
    update(talk, 1, topic="bills")

    assert clone(talk, topic=" ").code == 0

    assert talk.broker.offsets.topics_of("H") == ["bills", T]


def test_a_topic_to_which_the_source_does_not_subscribe_is_left_out_unless_it_may_be_offline(talk):
    made(talk)
    update(talk, 2)
    talk.consume("other", peer=2)

    clone(talk)
    assert talk.broker.offsets.queues("H", T) == {}
    clone(talk, offline=True)
    assert talk.broker.offsets.queues("H", T) == {0: 2}


@pytest.mark.parametrize("asked", [{"source": "Nobody"}, {"topic": "nothing"}])
def test_nothing_to_give_is_a_success(talk, asked):
    made(talk)
    update(talk, 2)
    update(talk, 1, "H")

    assert clone(talk, **asked).code == 0
    assert talk.broker.offsets.queues("H", T) == {0: 1}


def test_a_group_with_a_bad_name_is_given_no_progress(talk):
    assert clone(talk, target="a@b").code == 1


def test_no_more_progress_is_given_than_the_table_holds(talk):
    made(talk)
    update(talk, 2)
    talk.broker.offsets.entries_max = 1

    assert clone(talk).code == 2
    assert talk.broker.offsets.queues("H", T) == {}


def correction(talk, compare="Z", without=None):
    reply = talk.ask(QueryCorrectionOffset(topic=T, compare_group=compare, filter_groups=without))
    return from_json(CorrectionOffsets, reply.body).correction_offsets


def test_the_smallest_progress_of_all_groups_is_told_by_queue(talk):
    made(talk)
    update(talk, 3)
    update(talk, 1, "H")
    update(talk, 2, "H", queue_id=2)

    assert correction(talk) == {0: 1, 2: 2}
    assert correction(talk, without="H,X") == {0: 3}
    assert talk.broker.offsets.get("H", T, 0) == 1


def test_a_group_whose_messages_are_gone_is_told_so(talk):
    made(talk)
    update(talk, 2)
    update(talk, 0, "H")
    talk.broker.store.queues[T, 0].min_offset = 1

    assert correction(talk, compare="H") == {0: 2**63 - 1}
    assert correction(talk, compare="H", without="H") == {0: 2}


def test_the_topics_and_the_subscription_of_a_group_are_told(talk):
    made(talk)
    update(talk, 1)
    asked = QuerySubscriptionByConsumer(group="G", topic=T)

    topics = from_json(TopicList, talk.ask(QueryTopicsByConsumer(group="G")).body)
    away = from_json(GroupSubscription, talk.ask(asked).body)
    talk.consume(T, expression="red", peer=2)
    here = from_json(GroupSubscription, talk.ask(asked).body)

    assert (topics.topic_list, topics.broker_addr) == ([T], "127.0.0.1:10911")
    assert (away.group, away.topic, away.subscription_data) == ("G", T, None)
    assert here.subscription_data.sub_string == "red"


def unmoved(talk, group="G"):
    stats = from_json(ConsumeStats, talk.ask(GetConsumeStats(consumer_group=group, topic=T, health=True)).body)
    return stats.offset_table[MessageQueue(T, "broker-a", 0)].unmoved_ms


def test_consume_stats_say_how_long_the_progress_of_a_queue_stands_still_though_messages_wait(talk):
    made(talk, 2)
    update(talk, 1)
    talk.wait(5_000)
    assert unmoved(talk) == 5_000
    update(talk, 1)
    assert unmoved(talk) == 5_000, "a report of the same progress is no move"
    update(talk, 2)
    assert unmoved(talk) is None, "nothing waits"

    talk.wait(60_000)
    talk.send(T, b"late")
    talk.wait(3_000)
    assert unmoved(talk) == 3_000, "the group stood still before, for nothing waited"


def test_a_start_counts_from_itself_how_long_progress_stands_still(talk):
    made(talk, 2)
    update(talk, 1)
    talk.wait(100_000)
    talk.restart()
    talk.wait(7_000)

    assert unmoved(talk) == 7_000


def test_progress_that_is_set_anew_has_moved(talk):
    made(talk, 2)
    update(talk, 1)
    talk.wait(50_000)
    talk.ask(CloneGroupOffset(src_group="G", dest_group="H", topic=T))
    talk.wait(1_000)

    assert (unmoved(talk), unmoved(talk, "H")) == (51_000, 1_000)


def test_consume_stats_count_messages_that_are_delayed_until_their_redelivery(talk):
    consuming(talk, T)
    message = sent(talk, topic=T)
    assert talk.ask(back(message.physical_offset)).code == 0

    talk.wait(3_000)

    stats = from_json(ConsumeStats, talk.ask(GetConsumeStats(consumer_group="G", health=True)).body)
    assert stats.delayed_redeliveries == 1
    assert {each.unmoved_ms for each in stats.offset_table.values() if each.broker_offset <= each.consumer_offset} == {3_000}


def test_tools_of_others_are_given_what_apaches_broker_reports_and_no_more(talk):
    made(talk, 2)
    update(talk, 1)

    body = talk.ask(GetConsumeStats(consumer_group="G", topic=T)).body

    assert b"unmoved" not in body
    assert b"elayed" not in body
    assert b"unmovedMs" in talk.ask(GetConsumeStats(consumer_group="G", topic=T, health=True)).body
