"""The push consumer: order of starting, pulls, flow control, progress, and what becomes of messages that failed."""

from __future__ import annotations

import pytest

from halfmoon.errors import UsageError
from halfmoon.model import ConsumeFrom, ConsumeStatus, MessageModel, MessageQueue
from halfmoon.wire.bodies import HeartbeatData, from_json
from halfmoon.wire.headers.client import HeartBeat, UnregisterClient
from halfmoon.wire.headers.offset import QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import ConsumerSendMsgBack
from tests.client.messages import at, record
from tests.client.queue_of import ME, Queues, listening, pulled, push, started
from tests.client.scripted import REFUSED, Later, Reply, Scripted

QUEUE = MessageQueue("orders", "broker-a", 0)
FIRST = ConsumeFrom.FIRST_OFFSET


def order_pulls(script):
    return [seen for seen in script.asked(PullMessage) if seen.request.topic == "orders"]


def test_it_shows_itself_to_the_brokers_before_the_first_pull():
    script = Scripted()
    Queues(script)
    listening(script, lambda messages: None)

    kinds = [type(seen.request) for seen in script.seen]
    assert kinds.index(HeartBeat) < kinds.index(PullMessage)


@pytest.mark.mission("001-05", "001-06")
def test_its_subscription_travels_with_heartbeats_and_its_version_with_pulls():
    script = Scripted()
    Queues(script)
    core = push(script)
    core.subscribe("orders", "A || B")
    core.on_message(lambda messages: None)

    started(script, core)

    data = from_json(HeartbeatData, script.asked(HeartBeat)[0].body).consumer_data_set[0]
    wanted = {one.topic: one for one in data.subscription_data_set}
    assert set(wanted) == {"orders", "%RETRY%C"}
    assert (wanted["orders"].sub_string, wanted["orders"].tags_set, wanted["orders"].code_set) == ("A || B", ["A", "B"], [65, 66])
    pull = order_pulls(script)[0].request
    assert (pull.sub_version, pull.expression_type, pull.sys_flag) == (wanted["orders"].sub_version, "TAG", 2)
    assert pull.subscription is None


def test_the_expression_itself_travels_with_pulls_when_asked_for():
    script = Scripted()
    Queues(script)
    core = push(script, post_subscription=True)
    core.subscribe("orders", "A || B")
    core.on_message(lambda messages: None)

    started(script, core)

    pull = order_pulls(script)[0].request
    assert (pull.subscription, pull.sys_flag) == ("A || B", 6)


@pytest.mark.mission("001-09")
def test_messages_whose_tag_only_hashes_alike_are_dropped():
    script, got = Scripted(), []
    queues = Queues(script)
    queues.records["orders", 0] = [record(0, b"wanted", tag="Aa"), record(1, b"collides", tag="BB"), record(2, b"none")]
    core = push(script, consume_from=FIRST)
    core.subscribe("orders", "Aa")
    core.on_message(got.extend)

    started(script, core)

    assert [message.body for message in got] == [b"wanted"]
    assert order_pulls(script)[1].request.queue_offset == 3


def test_a_pull_is_followed_by_the_next_at_once_and_a_held_one_costs_nothing():
    script, got = Scripted(), []
    queues = Queues(script)
    queues.fill(70)
    listening(script, got.extend, consume_from=FIRST)

    assert [seen.request.queue_offset for seen in order_pulls(script)] == [0, 32, 64, 70]
    assert [message.queue_offset for message in got] == list(range(70))
    assert got[0].properties["MAX_OFFSET"] == "70"
    script.run_for(14_000)
    assert len(order_pulls(script)) == 4
    script.run_for(3_000)
    assert len(order_pulls(script)) == 5


def test_progress_is_stored_every_five_seconds_and_rides_on_pulls():
    script = Scripted()
    Queues(script).fill(3)
    listening(script, lambda messages: None, consume_from=FIRST)
    script.run_for(5_000)

    stored_offsets = [seen for seen in script.told if type(seen.request) is UpdateConsumerOffset and seen.request.topic == "orders"]
    assert [seen.request.commit_offset for seen in stored_offsets] == [3]
    script.run_for(15_000)
    last = order_pulls(script)[-1].request
    assert (last.sys_flag, last.commit_offset) == (3, 3)


def test_an_unfinished_message_holds_the_progress_back():
    script = Scripted()
    Queues(script).fill(3)
    core = listening(script, lambda messages: Later(60_000) if messages[0].queue_offset == 1 else None, consume_from=FIRST)
    script.run_for(5_000)

    assert core.offsets.memory(QUEUE) == 1
    script.run_for(60_000)
    assert core.offsets.memory(QUEUE) == 3


def test_too_much_in_memory_pauses_the_pulls():
    script = Scripted()
    queues = Queues(script)
    queues.fill(100)
    listening(script, lambda messages: Later(1_000), consume_from=FIRST, cached_max=40, threads=1)
    script.run_for(1_000)
    assert len(order_pulls(script)) == 2
    script.run_for(60_000)

    assert len(order_pulls(script)) > 2


def test_no_more_calls_side_by_side_than_threads():
    script = Scripted()
    Queues(script).fill(30)
    core = push(script, consume_from=FIRST, threads=4)
    running = [0, 0]

    def listener(messages):
        running[0] += 1
        running[1] = max(running)
        script._at(100, lambda: running.__setitem__(0, running[0] - 1))
        return Later(101)

    core.on_message(listener)
    started(script, core)
    script.run_for(3_000)

    assert running == [0, 4]
    assert core.consumed_count == 30


def test_broadcasting_takes_all_queues_and_drops_what_failed():
    script = Scripted()
    queues = Queues(script, 2, members=())
    queues.fill(1, 0)
    queues.fill(1, 1)

    class File:
        data = None

        def load(self):
            return self.data

        def save(self, data):
            File.data = data

    core = push(script, File(), model=MessageModel.BROADCASTING, consume_from=FIRST)
    core.on_message(lambda messages: ConsumeStatus.RECONSUME_LATER)
    started(script, core)
    script.run_for(5_000)

    assert len(core.held) == 2
    assert script.asked(ConsumerSendMsgBack) == []
    assert File.data == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:1,'
        b'{"brokerName":"broker-a","queueId":1,"topic":"orders"}:1}}'
    )
    again = push(script, File(), model=MessageModel.BROADCASTING)
    script.run(again.offsets.load())
    assert script.run(again.start_offset(QUEUE)) == 1


def test_an_illegal_offset_goes_on_where_the_broker_says_and_is_stored():
    script, got = Scripted(), []
    queues = Queues(script)
    queues.fill(3)
    queues.committed["orders", 0] = 90
    listening(script, got.extend)

    told = [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset]
    assert told == [3]
    assert [seen.request.queue_offset for seen in order_pulls(script)] == [90, 3]
    queues.fill(1)
    script.run_for(16_000)
    assert [message.queue_offset for message in got] == [3]


def test_failed_pulls_pause_and_a_forgotten_group_is_shown_again():
    script = Scripted()
    Queues(script)
    script.on(PullMessage, Reply(24), REFUSED, Reply(215), pulled(19, 0, ms=15_000))
    core = push(script, consume_from=FIRST)
    core.on_message(lambda messages: None)
    core.subscriptions.pop("%RETRY%C", None)

    started(script, core)
    beats = len(script.asked(HeartBeat))
    script.run_for(10_000)

    assert beats >= 2
    assert len(script.asked(PullMessage)) >= 4


def test_stopping_waits_for_the_listener_stores_the_progress_and_leaves():
    script = Scripted()
    Queues(script).fill(1)
    core = listening(script, lambda messages: Later(1_000), consume_from=FIRST)

    script.run(core.stop())

    told = [seen.request for seen in script.told if type(seen.request) is UpdateConsumerOffset]
    assert [(one.topic, one.commit_offset) for one in told] == [("orders", 1)]
    left = script.asked(UnregisterClient)
    assert [(seen.request.client_id, seen.request.consumer_group) for seen in left] == [(ME, "C")]
    assert type(script.seen[-1].request) is UnregisterClient


def test_stopping_waits_for_the_listener_also_when_it_was_done_before():
    script = Scripted()
    queues = Queues(script)
    queues.fill(1)
    core = listening(script, lambda messages: Later(1_000), consume_from=FIRST)
    queues.hold_ms = 10
    script.run_for(15_000)
    queues.fill(1)
    script.run_for(200)

    script.run(core.stop())

    told = [seen.request for seen in script.told if type(seen.request) is UpdateConsumerOffset and seen.request.topic == "orders"]
    assert told[-1].commit_offset == 2


def test_a_queue_that_becomes_ours_while_the_consumer_stops_is_not_pulled():
    script, got = Scripted(), []
    queues = Queues(script, 2)
    queues.fill(1, 0)
    queues.fill(1, 1)
    script.on(QueryConsumerOffset, lambda seen: Reply(22, ms=500 if seen.request.queue_id == 1 else 1))

    def listener(messages):
        got.extend(messages)
        return Later(2_000)

    core = listening(script, listener, consume_from=FIRST)
    script.run(core.stop())

    assert 1 in {seen.request.queue_id for seen in script.asked(QueryConsumerOffset)}
    assert len(got) == 1
    assert {seen.request.queue_id for seen in order_pulls(script)} == {0}


def test_a_consumer_needs_a_listener_and_a_subscription():
    script = Scripted()
    Queues(script)
    core = push(script)
    with pytest.raises(UsageError, match="listener"):
        script.run(core.start())
    core.on_message(lambda messages: None)
    core.unsubscribe("orders")
    with pytest.raises(UsageError, match="subscribed"):
        script.run(core.start())


@pytest.mark.parametrize("fault", [at(record(3), 4, b"junk"), at(record(3), 0, b"junk"), b"\0" * 200])
@pytest.mark.parametrize("place", [0, 3, 9])
def test_a_record_that_does_not_decode_is_left_behind_and_counted(fault, place):
    script, got = Scripted(), []
    queues = Queues(script)
    queues.fill(10)
    queues.records["orders", 0][place] = fault
    core = listening(script, got.extend, consume_from=FIRST)
    script.run_for(60_000)

    assert sorted(message.queue_offset for message in got) == [k for k in range(10) if k != place]
    assert core.held[QUEUE].next_offset == 10
    assert core.offsets.memory(QUEUE) == 10
    assert core.skipped_count == 1
    assert core.running_info().properties["SKIPPED_RECORDS"] == "1"
    assert len(order_pulls(script)) < 12


def test_what_comes_after_a_group_began_at_the_end_is_the_groups_whoever_was_given_it_and_died():
    script = Scripted()
    queues = Queues(script)
    queues.fill(2)
    listening(script, lambda messages: Later(1 << 40))

    assert [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset] == [2]
