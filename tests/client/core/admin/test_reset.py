"""Moving a group: what is asked of brokers of ours, of 5.x, of 4.x with members online, and of a group that sleeps."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from halfmoon.client.core.admin.reset import consume_directly, consumer_offsets, reset_offsets
from halfmoon.errors import GroupNotFound, OffsetIllegal, TopicNotFound, UsageError
from halfmoon.model import MessageQueue
from halfmoon.results import OffsetMove
from halfmoon.wire.bodies import (
    ClientConnection,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerStatus,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicOffset,
    TopicStatsTable,
    from_json,
    to_json,
)
from halfmoon.wire.headers.admin import GetBrokerConfig
from halfmoon.wire.headers.client import ConsumeMessageDirectly, GetConsumerConnectionList, InvokeBrokerToGetConsumerStatus
from halfmoon.wire.headers.group import GetAllSubscriptiongroupConfig
from halfmoon.wire.headers.offset import (
    InvokeBrokerToResetOffset,
    MoveGroupOffsets,
    OffsetReply,
    QueryConsumerOffset,
    SearchOffsetByTimestamp,
    UpdateConsumerOffset,
)
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.topic import GetTopicStatsInfo
from halfmoon.wire.ids import offset_msg_id, pack_host
from tests.client.core.admin.test_admin import admin
from tests.client.scripted import START_MS, Reply, Scripted, route, routes

ONE, TWO = (MessageQueue("orders", "broker-a", queue_id) for queue_id in (0, 1))
ENDS = {ONE: TopicOffset(2, 9), TWO: TopicOffset(0, 4)}
ASLEEP, ONLINE = Reply(206), Reply(body=to_json(ConsumerConnection([ClientConnection("c1"), ClientConnection("c2")])))


def scripted(*, ours=True, online=False, server_side="false"):
    script = Scripted()
    core = admin(script)
    script.on(GetRouteinfoByTopic, routes(orders=route(2)))
    script.on(GetTopicStatsInfo, Reply(body=to_json(TopicStatsTable(ENDS))))
    script.on(GetConsumerConnectionList, ONLINE if online else ASLEEP)
    script.on(MoveGroupOffsets, Reply() if ours else Reply(3))
    script.on(QueryConsumerOffset, lambda seen: Reply(header=OffsetReply(offset=5)) if seen.request.queue_id == 0 else Reply(22))
    script.on(SearchOffsetByTimestamp, Reply(header=OffsetReply(offset=3)))
    groups = SubscriptionGroupTable(subscription_group_table={"C": SubscriptionGroupConfig("C")})
    script.on(GetAllSubscriptiongroupConfig, Reply(body=to_json(groups)))
    script.on(GetBrokerConfig, Reply(body=b"useServerSideResetOffset=" + server_side.encode()))
    script.on(UpdateConsumerOffset, Reply())
    script.on(InvokeBrokerToResetOffset, Reply())
    return script, core


def tables(script):
    return [table for seen in script.asked(MoveGroupOffsets) if (table := from_json(ResetOffsetBody, seen.body).offset_table)]


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("earliest", {ONE: 2, TWO: 0}),
        ("latest", {ONE: 9, TWO: 4}),
        (START_MS - 1000, {ONE: 3, TWO: 3}),
        (datetime.fromtimestamp(START_MS / 1000, UTC), {ONE: 3, TWO: 3}),
        ({ONE: 8}, {ONE: 8}),
    ],
)
def test_a_broker_of_ours_is_given_all_offsets_at_once(to, expected):
    script, core = scripted(online=True)

    moves = script.run(reset_offsets(core, "C", "orders", to))

    assert tables(script) == [expected]
    assert {move.queue: move.then for move in moves} == expected


@pytest.mark.parametrize(("ours", "online", "server_side"), [(True, True, ""), (False, False, ""), (False, True, "true")])
def test_a_time_after_the_newest_message_of_a_queue_is_its_end(ours, online, server_side):
    script, core = scripted(ours=ours, online=online, server_side=server_side)
    newest = START_MS - 1000
    stats = {ONE: TopicOffset(2, 9, newest), TWO: TopicOffset(0, 4, newest + 1)}
    script.on(GetTopicStatsInfo, Reply(body=to_json(TopicStatsTable(stats))))
    script.on(SearchOffsetByTimestamp, lambda seen: Reply(header=OffsetReply(offset=3 if seen.request.queue_id else 8)))

    moves = script.run(reset_offsets(core, "C", "orders", newest + 1))

    assert {move.queue: move.then for move in moves} == {ONE: 9, TWO: 3}


def test_each_queue_is_told_with_what_it_was_and_the_difference():
    script, core = scripted(online=True)

    moves = script.run(reset_offsets(core, "C", "orders", "earliest", dry_run=True))

    assert moves == [OffsetMove(ONE, 5, 2, 2), OffsetMove(TWO, None, 0, 2)]
    assert [move.difference for move in moves] == [-3, None]
    assert script.asked(QueryConsumerOffset)[0].request.set_zero_if_not_found is False


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("online", [True, False])
def test_a_dry_run_changes_nothing(ours, online):
    script, core = scripted(ours=ours, online=online)

    script.run(reset_offsets(core, "C", "orders", "latest", dry_run=True))

    assert tables(script) == script.asked(UpdateConsumerOffset) == script.asked(InvokeBrokerToResetOffset) == []


def test_only_the_queues_that_are_named_move():
    script, core = scripted()

    assert [move.queue for move in script.run(reset_offsets(core, "C", "orders", "latest", queues={TWO}))] == [TWO]
    assert tables(script) == [{TWO: 4}]


def test_the_progress_of_a_sleeping_group_at_apaches_broker_is_written_and_waited_for():
    script, core = scripted(ours=False)

    script.run(reset_offsets(core, "C", "orders", {ONE: 3, TWO: 1}))

    written = [(seen.request.queue_id, seen.request.commit_offset, seen.oneway) for seen in script.asked(UpdateConsumerOffset)]
    assert written == [(0, 3, False), (1, 1, False)]
    assert script.asked(InvokeBrokerToResetOffset) == []


@pytest.mark.parametrize(("to", "timestamp"), [("earliest", 0), ("latest", -1), (START_MS, START_MS)])
def test_a_live_group_at_a_broker_of_4_x_is_moved_by_time(to, timestamp):
    script, core = scripted(ours=False, online=True)

    script.run(reset_offsets(core, "C", "orders", to))

    (seen,) = script.asked(InvokeBrokerToResetOffset)
    assert (seen.request.timestamp, seen.request.is_force, seen.request.offset) == (timestamp, True, None)
    assert script.asked(UpdateConsumerOffset) == []


@pytest.mark.parametrize(("to", "queues"), [({ONE: 3}, None), ("earliest", {ONE})])
def test_what_4_x_cannot_do_with_a_live_group_is_said_before_anything_moves(to, queues):
    script, core = scripted(ours=False, online=True)

    with pytest.raises(UsageError, match="to a time only"):
        script.run(reset_offsets(core, "C", "orders", to, queues=queues, dry_run=True))


def test_a_live_group_at_a_broker_of_5_x_is_moved_queue_by_queue_on_its_side():
    script, core = scripted(ours=False, online=True, server_side="true")

    script.run(reset_offsets(core, "C", "orders", {ONE: 3, TWO: 4}))

    asked = [(seen.request.queue_id, seen.request.offset) for seen in script.asked(InvokeBrokerToResetOffset)]
    assert asked == [(0, 3), (1, 4)]


@pytest.mark.parametrize(
    ("to", "error"),
    [
        ("middle", UsageError),
        (-1, UsageError),
        (True, UsageError),
        (1.5, UsageError),
        (START_MS + 3_600_000, UsageError),
        (2**63, UsageError),
        (datetime(2020, 1, 1), UsageError),
        ({ONE: 1}, OffsetIllegal),
        ({ONE: 10}, OffsetIllegal),
        ({ONE: -1}, OffsetIllegal),
        ({ONE: True}, OffsetIllegal),
        ({TWO: 2, ONE: 2**63}, OffsetIllegal),
        ({MessageQueue("orders", "broker-a", 2): 0}, UsageError),
        ({MessageQueue("orders", "broker-a", -1): 0}, UsageError),
        ({MessageQueue("orders", "broker-z", 0): 0}, UsageError),
        ({MessageQueue("other", "broker-a", 0): 0}, UsageError),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_anything_moves(to, error):
    script, core = scripted()

    with pytest.raises(error):
        script.run(reset_offsets(core, "C", "orders", to))

    assert tables(script) == []


def test_a_group_or_topic_that_nobody_knows_is_refused():
    script, core = scripted(ours=False)
    with pytest.raises(GroupNotFound):
        script.run(reset_offsets(core, "nobody", "orders", "latest"))
    with pytest.raises(TopicNotFound):
        script.run(reset_offsets(core, "C", "nothing", "latest"))


def test_members_are_asked_how_far_they_are():
    script, core = scripted(online=True)
    script.on(InvokeBrokerToGetConsumerStatus, Reply(body=to_json(ConsumerStatus(consumer_table={"c1": {ONE: 4}, "c2": {}}))))

    assert script.run(consumer_offsets(core, "C", "orders")) == {"c1": {ONE: 4}, "c2": {}}


def test_a_message_is_consumed_directly_at_the_broker_that_has_it():
    script, core = scripted()
    script.on(ConsumeMessageDirectly, Reply(body=to_json(ConsumeDirectlyResult(consume_result="CR_LATER"))))
    msg_id = offset_msg_id(pack_host("10.0.0.7:10911"), 4096)

    assert script.run(consume_directly(core, "C", "c1", msg_id)).consume_result == "CR_LATER"

    (seen,) = script.asked(ConsumeMessageDirectly)
    assert (seen.address, seen.request.msg_id, seen.request.client_id) == ("10.0.0.7:10911", msg_id, "c1")
