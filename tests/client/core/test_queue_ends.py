"""Ends of queues: those that a broker does not list are asked for, and never taken for empty ones."""

from __future__ import annotations

from halfmoon.client.core.queue_ends import topic_ends
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import TopicOffset, TopicStatsTable, to_json
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from tests.client.scripted import Reply, Scripted, route


def queue(number: int, broker: str = "broker-a") -> MessageQueue:
    return MessageQueue("orders", broker, number)


def test_queues_that_a_broker_does_not_list_are_asked_for():
    script = Scripted()
    listed = {queue(0): TopicOffset(min_offset=1, max_offset=5)}
    script.on(GetTopicStatsInfo, Reply(body=to_json(TopicStatsTable(offset_table=listed))))
    script.on(GetMinOffset, lambda seen: Reply(header=OffsetReply(offset=10 * seen.request.queue_id)))
    script.on(GetMaxOffset, lambda seen: Reply(header=OffsetReply(offset=10 * seen.request.queue_id + 7)))

    ends = script.run(topic_ends(route({"broker-a": 3, "broker-b": 2}), "broker-a:1", "orders", 3_000))

    assert {each.queue_id: (end.min_offset, end.max_offset) for each, end in ends.items()} == {0: (1, 5), 1: (10, 17), 2: (20, 27)}
    assert {each.broker_name for each in ends} == {"broker-a"}
    assert {seen.address for seen in script.asked(GetMinOffset)} == {"broker-a:1"}
