"""Membership of a group: shares, where a queue begins, resets, and filters that brokers check."""

from __future__ import annotations

import pytest

from halfmoon.errors import SubscriptionParseFailed
from halfmoon.model import ConsumeFrom, MessageQueue
from halfmoon.wire.headers.client import CheckClientConfig
from halfmoon.wire.headers.offset import QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from tests.client.core.consume.test_push_consumer import FIRST, QUEUE
from tests.client.queue_of import ME, Queues, listening, push, started
from tests.client.scripted import REFUSED, Later, Reply, Scripted, route, routes


@pytest.mark.parametrize(
    ("where", "topic", "offset"),
    [
        (ConsumeFrom.LAST_OFFSET, "orders", 4),
        (ConsumeFrom.FIRST_OFFSET, "orders", 0),
        (ConsumeFrom.TIMESTAMP, "orders", 2),
        (ConsumeFrom.LAST_OFFSET, "%RETRY%C", 0),
        (ConsumeFrom.FIRST_OFFSET, "%RETRY%C", 0),
        (ConsumeFrom.TIMESTAMP, "%RETRY%C", 4),
    ],
)
def test_without_progress_it_begins_as_the_settings_say(where, topic, offset):
    script = Scripted()
    queues = Queues(script)
    queues.fill(4)
    queues.fill(4, topic="%RETRY%C")
    core = push(script, consume_from=where)
    for name in ("orders", "%RETRY%C"):
        script.run(core.routes.read_queues(name))

    assert script.run(core.start_offset(MessageQueue(topic, "broker-a", 0))) == offset
    queues.committed[topic, 0] = 1
    assert script.run(core.start_offset(MessageQueue(topic, "broker-a", 0))) == 1


def test_a_queue_whose_offset_cannot_be_had_is_left_for_the_next_round():
    script = Scripted()
    Queues(script)
    good = script._answers[QueryConsumerOffset]
    script.on(QueryConsumerOffset, *[Reply(1)] * 4, good)
    core = listening(script, lambda messages: None)
    assert QUEUE not in core.held
    script.run_for(3_000)

    assert QUEUE in core.held


def test_the_members_share_the_queues_and_a_notice_shares_them_anew_at_once():
    script = Scripted()
    queues = Queues(script, 4, members=(ME, "10.0.0.2@2"))
    core = listening(script, lambda messages: None)
    assert sorted(queue.queue_id for queue in core.held if queue.topic == "orders") == [0, 1]

    queues.members = (ME,)
    core.group_changed()
    script.run_for(50)
    assert sorted(queue.queue_id for queue in core.held if queue.topic == "orders") == [0, 1, 2, 3]

    queues.members = ("0", ME)
    script.run_for(20_100)
    assert sorted(queue.queue_id for queue in core.held if queue.topic == "orders") == [2, 3]


def test_a_lost_queue_has_its_progress_stored_and_late_results_change_nothing():
    script = Scripted()
    queues = Queues(script)
    queues.fill(2)
    core = listening(script, lambda messages: Later(2_000) if messages[0].queue_offset else None, consume_from=FIRST)

    queues.members = ("0",)
    core.group_changed()
    script.run_for(50)
    told = [seen.request.commit_offset for seen in script.told if type(seen.request) is UpdateConsumerOffset]
    script.run_for(5_000)

    assert told == [1]
    assert core.offsets.memory(QUEUE) == -1
    assert core.held == {}


def test_a_reset_moves_the_queues_that_are_ours():
    script, got = Scripted(), []
    Queues(script).fill(3)
    core = listening(script, lambda messages: got.append(messages[0].queue_offset), consume_from=FIRST)
    assert got == [0, 1, 2]

    script.run(core.reset("orders", {QUEUE: 1, MessageQueue("orders", "broker-z", 0): 0}))
    script.run_for(50)

    assert got == [0, 1, 2, 1, 2]
    assert core.progress("orders") == {QUEUE: 3}


def test_of_two_resets_at_the_same_moment_the_later_one_counts():
    script, got = Scripted(), []
    Queues(script).fill(3)
    core = listening(script, lambda messages: got.append(messages[0].queue_offset), consume_from=FIRST)

    script.spawn(core.reset("orders", {QUEUE: 0}))
    script.spawn(core.reset("orders", {QUEUE: 2}))
    script.run_for(50)

    assert got == [0, 1, 2, 2]


def test_an_expression_that_a_broker_cannot_take_is_an_error_at_the_start():
    script = Scripted()
    Queues(script)
    core = push(script)
    core.subscribe("orders", "a >", "SQL92")
    core.on_message(lambda messages: None)
    script.on(CheckClientConfig, Reply(23, remark="parse error"), REFUSED)

    with pytest.raises(SubscriptionParseFailed, match="parse error"):
        script.run(core.start())
    script.run(core.start())

    assert [(seen.address, seen.at > 0) for seen in script.asked(CheckClientConfig)] == [("broker-a:1", True)] * 2


def test_a_topic_that_appears_later_is_found():
    script, got = Scripted(), []
    queues = Queues(script)
    queues.fill(1, topic="fresh")
    core = push(script, consume_from=FIRST)
    core.subscribe("fresh")
    core.on_message(got.extend)
    started(script, core)
    assert got == []

    script.on(GetRouteinfoByTopic, routes(orders=route(1), fresh=route(1)))
    script.run_for(25_000)

    assert [message.topic for message in got] == ["fresh"]


def test_a_filter_with_a_condition_that_no_message_changes_is_warned_of_once(caplog):
    script = Scripted()
    Queues(script)
    core = push(script)

    core.subscribe("orders", sql="'TAGS' = 'a'")
    core.subscribe("paid", sql="TAGS = 'a'")
    core.subscribe("odd", sql="what is this")

    (record,) = caplog.records
    assert "of topic orders: 'TAGS' = 'a' reads no property and is always false" in record.getMessage()
