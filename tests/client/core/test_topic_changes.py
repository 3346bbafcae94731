"""Topics are made, and changed in what is named; queues with messages that somebody has not read are not removed unsaid."""

from __future__ import annotations

import pytest

from halfmoon.client.core.topic_changes import create_topic
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import (
    ConsumeStats,
    GroupList,
    OffsetWrapper,
    TopicConfig,
    TopicConfigTable,
    TopicOffset,
    TopicStatsTable,
    to_json,
)
from halfmoon.wire.headers.group import GetConsumeStats
from halfmoon.wire.headers.offset import GetMaxOffset, GetMinOffset, OffsetReply
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.topic import GetAllTopicConfig, GetTopicStatsInfo, QueryTopicConsumeByWho, UpdateAndCreateTopic
from tests.client.core.admin.test_admin import addresses, admin
from tests.client.scripted import Reply, Scripted, route, routes


def with_topic(script: Scripted, *configs: TopicConfig):
    """Return a client of two brokers that have these topics."""
    core = admin(script)
    table = TopicConfigTable(topic_config_table={config.topic_name: config for config in configs})
    script.on(GetAllTopicConfig, Reply(body=to_json(table)))
    return core


def made(script: Scripted) -> list[tuple[int, int, int]]:
    requests = [seen.request for seen in script.asked(UpdateAndCreateTopic)]
    return [(one.read_queue_nums, one.write_queue_nums, one.perm) for one in requests]


def test_a_topic_is_made_on_every_master_and_waited_for():
    script = Scripted()
    core = with_topic(script)
    script.on(GetRouteinfoByTopic, Reply(17), Reply(17), routes(fresh=route({"broker-a": 4, "broker-b": 4})))

    script.run(create_topic(core, "fresh", queue_count=4))

    assert addresses(script, UpdateAndCreateTopic) == ["broker-a:1", "broker-b:1"]
    assert made(script) == [(4, 4, 6)] * 2
    assert script.asked(UpdateAndCreateTopic)[0].request.topic_filter_type == "SINGLE_TAG"
    assert len(script.asked(GetRouteinfoByTopic)) == 3


def test_a_topic_can_be_made_on_one_broker_only():
    script = Scripted()
    core = with_topic(script)

    script.run(create_topic(core, "orders", broker_address="broker-b:1"))

    assert addresses(script, UpdateAndCreateTopic) == ["broker-b:1"]
    assert made(script) == [(8, 8, 6)]


@pytest.mark.parametrize("topic", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x", "a b"])
def test_system_topics_are_not_made(topic):
    script = Scripted()
    core = with_topic(script)

    with pytest.raises(UsageError):
        script.run(create_topic(core, topic))

    assert script.seen == []


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ({}, (6, 4, 2)),
        ({"perm": 6}, (6, 4, 6)),
        ({"queue_count": 9}, (9, 9, 2)),
        ({"write_queue_count": 2}, (6, 2, 2)),
        ({"queue_count": 7, "write_queue_count": 3, "perm": 4}, (7, 3, 4)),
    ],
)
def test_only_what_is_named_of_a_topic_changes(named, wanted):
    script = Scripted()
    known = TopicConfig(
        topic_name="orders", read_queue_nums=6, write_queue_nums=4, perm=2, topic_filter_type="MULTI_TAG", order=True
    )
    core = with_topic(script, known)

    script.run(create_topic(core, "orders", **named))

    request = script.asked(UpdateAndCreateTopic)[0].request
    assert made(script) == [wanted] * 2
    assert (request.topic_filter_type, request.order) == ("MULTI_TAG", True)


def shrinking(consumed: dict[str, int]) -> tuple[Scripted, object]:
    """Return a client of a topic whose queue 2 has the messages 3 to 10, and whose queue 3, which is only read, has 20 to 25.

    ``consumed``: how far groups have read queue 2; queue 3 all of them have.
    """
    script = Scripted()
    core = with_topic(script, TopicConfig(topic_name="orders", read_queue_nums=4, write_queue_nums=3))
    ends = {MessageQueue("orders", "broker-a", queue): TopicOffset(min_offset=3, max_offset=11) for queue in range(3)}
    script.on(GetTopicStatsInfo, Reply(body=to_json(TopicStatsTable(offset_table=ends))))
    script.on(GetRouteinfoByTopic, routes(orders=route({"broker-a": 4, "broker-b": 4})))
    script.on(GetMinOffset, Reply(header=OffsetReply(offset=20)))
    script.on(GetMaxOffset, Reply(header=OffsetReply(offset=26)))
    script.on(QueryTopicConsumeByWho, Reply(body=to_json(GroupList(group_list=list(consumed)))))

    def progress(seen):
        queues = {2: consumed[seen.request.consumer_group], 3: 26}
        table = {MessageQueue("orders", "broker-a", queue): OffsetWrapper(consumer_offset=at) for queue, at in queues.items()}
        return Reply(body=to_json(ConsumeStats(offset_table=table)))

    script.on(GetConsumeStats, progress)
    return script, core


@pytest.mark.parametrize(
    ("consumed", "said"),
    [
        ({"A": 11, "B": 9}, "queues 2 to 3 of topic orders on broker-a:1 hold 2 messages which group B has not read"),
        ({"A": 0}, "hold 8 messages which group A has not read"),
        ({}, "hold 14 messages which no group reads"),
    ],
)
def test_queues_with_messages_that_are_not_read_are_removed_by_force_only(consumed, said):
    script, core = shrinking(consumed)
    with pytest.raises(UsageError, match=said):
        script.run(create_topic(core, "orders", queue_count=2, broker_address="broker-a:1"))
    assert made(script) == []

    script.run(create_topic(core, "orders", queue_count=2, broker_address="broker-a:1", force=True))
    assert made(script) == [(2, 2, 6)]


def test_queues_that_all_groups_have_read_are_removed():
    script, core = shrinking({"A": 11, "B": 11})
    script.run(create_topic(core, "orders", queue_count=2, broker_address="broker-a:1"))

    assert made(script) == [(2, 2, 6)]


def test_writing_to_fewer_queues_removes_none():
    script, core = shrinking({})
    script.run(create_topic(core, "orders", write_queue_count=1))

    assert made(script) == [(4, 1, 6)] * 2
