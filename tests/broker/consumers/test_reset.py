"""Moving a group: to a time as 4.x and 5.x ask for it, to given offsets, online or not; and everything that is refused."""

import pytest

from halfmoon.model import MessageQueue
from halfmoon.wire.bodies import ResetOffsetBody, from_json, to_json
from halfmoon.wire.codes import Language
from halfmoon.wire.headers.group import UpdateAndCreateSubscriptiongroup
from halfmoon.wire.headers.offset import InvokeBrokerToResetOffset, MoveGroupOffsets
from tests.broker.talk import START_MS

T = "orders"
FIRST, SECOND = (MessageQueue(T, "broker-a", queue_id) for queue_id in (0, 1))


@pytest.fixture
def moving(talk):
    """Five messages a second apart in queue 0, and a group that consumed them all."""
    for k in range(5):
        talk.send(T, b"%d" % k)
        talk.wait(1000)
    talk.ask(UpdateAndCreateSubscriptiongroup(), b'{"groupName":"G"}')
    for queue_id in range(4):
        talk.broker.offsets.put("G", T, queue_id, 5 if queue_id == 0 else 0)
    return talk


def reset(talk, timestamp=0, *, force=True, **fields):
    return talk.ask(InvokeBrokerToResetOffset(topic=T, group="G", timestamp=timestamp, is_force=force, **fields))


def move(talk, table, group="G", topic=T):
    return talk.ask(MoveGroupOffsets(topic=topic, group=group), to_json(ResetOffsetBody(table)))


def told(talk, peer=2):
    return [from_json(ResetOffsetBody, command.body).offset_table for command in talk.received[peer] if command.code == 220]


def test_a_reset_by_time_moves_the_broker_itself_so_that_a_queue_nobody_holds_is_moved_too(moving):
    moving.consume(T, peer=2)

    assert reset(moving, START_MS + 2000).code == 0

    assert moving.broker.offsets.get("G", T, 0) == 2
    assert told(moving) == [{FIRST: 2} | {MessageQueue(T, "broker-a", q): 0 for q in (1, 2, 3)}]


@pytest.mark.parametrize(("time_ms", "offset"), [(1, 0), (START_MS + 4000, 4), (START_MS + 4001, 5), (2**62, 5)])
def test_a_reset_to_a_time_after_the_newest_message_gives_the_end_and_to_one_long_ago_the_first(moving, time_ms, offset):
    moving.consume(T, peer=2)

    assert reset(moving, time_ms).code == 0

    assert moving.broker.offsets.get("G", T, 0) == offset
    assert told(moving)[0][FIRST] == offset


def test_one_queue_may_be_moved_to_an_offset_as_5_x_asks_for_it(moving):
    moving.consume(T, peer=2)

    assert reset(moving, queue_id=0, offset=3).code == 0

    assert told(moving) == [{FIRST: 3}]


@pytest.mark.parametrize(
    "fields",
    [
        {"timestamp": -2},
        {"timestamp": -(2**63)},
        {"queue_id": -2},
        {"queue_id": 4},
        {"queue_id": 2**31 - 1},
        {"queue_id": 0, "offset": 6},
        {"queue_id": 0, "offset": -2},
        {"queue_id": 0, "offset": 2**63 - 1},
    ],
)
def test_times_queues_and_offsets_that_cannot_be_are_refused_and_nobody_is_told(moving, fields):
    moving.consume(T, peer=2)

    assert reset(moving, **fields).code == 1

    assert told(moving) == []
    assert moving.broker.offsets.get("G", T, 0) == 5


def test_a_group_whose_progress_is_not_known_cannot_be_reset_by_time(moving):
    moving.broker.offsets.remove(topic=T, group="G")
    moving.consume(T, peer=2)

    assert reset(moving).remark == "THe consumer group <G> not exist"


def test_a_group_that_sleeps_is_moved_to_given_offsets(moving):
    assert move(moving, {FIRST: 1}).code == 0

    assert moving.broker.offsets.get("G", T, 0) == 1
    moving.restart()
    assert moving.broker.offsets.get("G", T, 0) == 1


def test_members_of_a_group_that_is_moved_hear_of_it_each_in_its_language(moving):
    moving.consume(T, peer=2)
    moving.consume(T, peer=3)
    moving.broker.clients.member("G", "client-3").language = int(Language.CPP)

    reply = move(moving, {FIRST: 4, SECOND: 0})

    assert from_json(ResetOffsetBody, reply.body).offset_table == {FIRST: 4, SECOND: 0}
    assert told(moving) == told(moving, 3) == [{FIRST: 4, SECOND: 0}]
    [in_cpp] = [command.body for command in moving.received[3] if command.code == 220]
    assert b'"offset":4' in in_cpp


def test_members_do_not_hear_of_an_empty_table_which_only_asks_whether_a_group_can_be_moved(moving):
    moving.consume(T, peer=2)

    reply = move(moving, {})

    assert from_json(ResetOffsetBody, reply.body).offset_table == {}
    assert told(moving) == []


@pytest.mark.parametrize(
    ("queue", "offset"),
    [
        (FIRST, 6),
        (FIRST, -1),
        (FIRST, 2**63 - 1),
        (SECOND, 1),
        (MessageQueue(T, "broker-a", 4), 0),
        (MessageQueue(T, "broker-a", -1), 0),
        (MessageQueue(T, "broker-b", 0), 0),
        (MessageQueue("other", "broker-a", 0), 0),
    ],
)
def test_of_offsets_of_which_one_cannot_be_none_is_taken(moving, queue, offset):
    moving.consume(T, peer=2)

    assert move(moving, {MessageQueue(T, "broker-a", 3): 0, FIRST: 2} | {queue: offset}).code == 1

    assert told(moving) == []
    assert moving.broker.offsets.get("G", T, 0) == 5


def test_a_group_or_topic_that_does_not_exist_is_refused(moving):
    assert move(moving, {FIRST: 0}, group="nobody").code == 26
    assert move(moving, {FIRST: 0}, topic="nothing").code == 17


def test_a_body_that_is_no_table_is_refused(moving):
    assert moving.ask(MoveGroupOffsets(topic=T, group="G"), b'{"offsetTable":7}').code == 1


def test_a_member_too_old_to_be_told_keeps_the_group_where_it_is(moving):
    moving.consume(T, peer=2)
    moving.broker.clients.member("G", "client-2").version = 27

    assert move(moving, {FIRST: 0}).code == 1

    assert moving.broker.offsets.get("G", T, 0) == 5


def test_a_group_that_is_not_where_the_asker_saw_it_is_not_moved(moving):
    def asked(table, unmoved_from):
        request = MoveGroupOffsets(topic=T, group="G", unmoved_from=unmoved_from)
        return moving.ask(request, to_json(ResetOffsetBody(table))).code

    assert (asked({FIRST: 3}, 2), asked({FIRST: 3, SECOND: 0}, 5), asked({FIRST: 3}, -1)) == (604, 604, 604)
    assert moving.broker.offsets.get("G", T, 0) == 5
    assert asked({FIRST: 3}, 5) == 0
    assert moving.broker.offsets.get("G", T, 0) == 3
    moving.ask(UpdateAndCreateSubscriptiongroup(), b'{"groupName":"New"}')
    new = MoveGroupOffsets(topic=T, group="New", unmoved_from=-1)
    assert moving.ask(new, to_json(ResetOffsetBody({FIRST: 1}))).code == 0
