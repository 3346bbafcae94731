"""Queues that the broker allocates to the members of a group, and the mode in which a group reads a topic."""

from __future__ import annotations

import pytest

from halfmoon.broker.consumers.assignment import ROUTE_MS
from halfmoon.errors import ConnectionLost
from halfmoon.model import MessageModel
from halfmoon.wire.bodies import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MessageRequestMode,
    QueueData,
    RequestModeTable,
    TopicRouteData,
    from_json,
    to_json,
)
from halfmoon.wire.command import Command
from halfmoon.wire.headers.client import GetAllMessageRequestMode, QueryAssignment, SetMessageRequestMode
from halfmoon.wire.headers.group import DeleteSubscriptiongroup
from halfmoon.wire.headers.topic import DeleteTopicInBroker

T = "orders"


def query(**changed):
    asked = {"topic": T, "consumer_group": "G", "client_id": "client-2", "strategy_name": "AVG", "message_model": 1, **changed}
    return to_json(AssignmentQuery(**{**asked, "message_model": MessageModel(asked["message_model"])}))


def queues_of(reply):
    rows = from_json(Assignments, reply.body).message_queue_assignments
    return None if rows is None else [(row.message_queue.broker_name, row.message_queue.queue_id) for row in rows]


@pytest.fixture
def group(talk):
    """A topic of four queues at this broker, and a group of two members."""
    talk.send(T)
    talk.consume(T, peer=2)
    talk.consume(T, peer=3)
    return talk


# ---------------------------------------------------------------- assignment


@pytest.mark.parametrize(
    ("strategy", "first", "second"),
    [("AVG", [0, 1], [2, 3]), ("AVG_BY_CIRCLE", [0, 2], [1, 3]), ("CONSISTENT_HASH", None, None)],
)
def test_the_queues_of_a_topic_are_allocated_to_the_members_as_the_strategy_says(group, strategy, first, second):
    shares = [
        [number for _, number in queues_of(group.ask(QueryAssignment(), query(client_id=client, strategy_name=strategy)))]
        for client in ("client-2", "client-3")
    ]

    assert sorted(shares[0] + shares[1]) == [0, 1, 2, 3]
    assert first is None or shares == [first, second]


def test_the_mode_of_an_assignment_is_pull(group):
    body = group.ask(QueryAssignment(), query()).body

    assert from_json(Assignments, body).message_queue_assignments[0].mode is MessageRequestMode.PULL
    assert b'"mode":"PULL"' in bytes(body)


def test_who_broadcasts_reads_all_queues(group):
    assert len(queues_of(group.ask(QueryAssignment(), query(message_model=0)))) == 4


@pytest.mark.parametrize(
    "changed", [{"topic": "nothing"}, {"consumer_group": "Nobody"}, {"strategy_name": "ROUND"}, {"strategy_name": None}]
)
def test_where_the_broker_cannot_tell_a_consumer_keeps_its_queues(group, changed):
    reply = group.ask(QueryAssignment(), query(**changed))

    assert (reply.code, bytes(reply.body)) == (0, b"{}")


def test_who_is_no_member_gets_no_queue(group):
    assert queues_of(group.ask(QueryAssignment(), query(client_id="stranger"))) == []


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topic":"orders"}', b'{"topic":"orders","messageModel":"ODD"}'])
def test_a_question_that_is_none_is_refused(group, body):
    assert group.ask(QueryAssignment(), body).code == 1


# ---------------------------------------------------------------- with name servers


class Names:
    """A broker with two name servers that this test is."""

    def __init__(self, make_talk):
        self.talk = make_talk(nameserver="10.0.0.8:9876;10.0.0.9:9876")
        self.operations = []
        self.talk.broker.assignment._start = lambda operation, name: self.operations.append(operation)
        self.talk.consume(T, peer=2)
        self.calls = []

    def ask(self, **changed):
        opaque = self.talk.post(QueryAssignment(), query(**changed))
        self.talk.turn()
        return opaque

    def answer(self, *replies):
        """Let the next operation run; a reply is a code, a route, or an error."""
        operation = self.operations.pop(0)
        call = next(operation)
        for reply in replies:
            self.calls.append((call.address, call.request.topic))
            try:
                if isinstance(reply, Exception):
                    call = operation.throw(reply)
                else:
                    code, body = (0, to_json(reply)) if isinstance(reply, TopicRouteData) else (reply, b"")
                    call = operation.send(Command(code, 1, body=body))
            except StopIteration:
                break
        self.talk.run_effects()

    def queues(self, opaque):
        return queues_of(self.talk.answer(opaque))


def route(*brokers, perm=6):
    return TopicRouteData(
        queue_datas=[QueueData(broker_name=name, read_queue_nums=2, write_queue_nums=2, perm=perm) for name in brokers]
    )


BOTH = [("broker-a", 0), ("broker-a", 1), ("broker-b", 0), ("broker-b", 1)]


def test_the_queues_of_all_brokers_are_allocated_and_a_route_is_asked_for_once(make_talk):
    names = Names(make_talk)

    first, second = names.ask(), names.ask()
    assert (names.talk.answer(first), len(names.operations)) == (None, 1)
    waiting = [request.command for request, _ in names.talk.broker.assignment._waiting[T]]
    assert [(command.fields, command.body) for command in waiting] == [({}, b"")] * 2, "nothing is kept that is not needed"
    names.answer(route("broker-b", "broker-a"))
    third = names.ask()

    assert [names.queues(opaque) for opaque in (first, second, third)] == [BOTH] * 3
    assert names.calls == [("10.0.0.8:9876", T)]


def test_a_route_is_asked_for_again_when_it_is_old_and_used_where_nobody_answers(make_talk):
    names = Names(make_talk)
    names.ask()
    names.answer(route("broker-a"))
    names.talk.now += ROUTE_MS

    opaque = names.ask()
    names.answer(ConnectionLost("10.0.0.8:9876"), 1)
    later = names.ask()

    assert names.calls[1:] == [("10.0.0.8:9876", T), ("10.0.0.9:9876", T)]
    assert names.queues(opaque) == names.queues(later) == BOTH[:2]


@pytest.mark.parametrize("replies", [[17], [ConnectionLost("a"), ConnectionLost("b")], [route("broker-a", perm=2)]])
def test_a_topic_that_nobody_knows_or_may_read_is_asked_for_again(make_talk, replies):
    names = Names(make_talk)

    opaque = names.ask()
    names.answer(*replies)

    assert names.queues(opaque) in (None, [])
    names.ask()
    assert len(names.operations) == (0 if isinstance(replies[0], TopicRouteData) else 1)


def test_no_more_requests_wait_and_no_more_routes_are_kept_than_the_bounds(make_talk):
    names = Names(make_talk)
    names.talk.broker.assignment.waiting_max = names.talk.broker.assignment.routes_max = 1

    names.ask()
    assert names.talk.answer(names.ask(topic="other")).code == 2
    names.answer(route("broker-a"))
    names.ask(topic="other")
    names.answer(route("broker-a"))

    names.ask()
    assert len(names.operations) == 1, "the route of the first topic is asked for again"


def test_routes_are_as_old_as_before_when_the_clock_is_set(make_talk):
    names = Names(make_talk)
    names.ask()
    names.answer(route("broker-a"))

    names.talk.set_clock(3_600_000)
    names.ask()

    assert names.operations == []


# ---------------------------------------------------------------- modes


def set_mode(talk, topic=T, group="G", mode=MessageRequestMode.PULL):
    return talk.ask(SetMessageRequestMode(), to_json(GroupRequestMode(topic=topic, consumer_group=group, mode=mode)))


def test_a_mode_that_was_set_is_kept_over_a_kill(group):
    assert set_mode(group).code == 0
    group.broker.store.close(group.instant)
    group.open()

    table = from_json(RequestModeTable, group.ask(GetAllMessageRequestMode()).body).message_request_mode_map

    assert table == {T: {"G": GroupRequestMode(topic=T, consumer_group="G", mode=MessageRequestMode.PULL)}}


@pytest.mark.parametrize(
    ("changed", "code", "remark"),
    [
        ({"topic": "%RETRY%G"}, 16, "retry topic is not allowed to set mode"),
        ({"topic": "nothing"}, 17, "topic[nothing] not exist"),
        ({"group": "a b"}, 1, "The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ({"mode": None}, 3, "the mode is PULL: consumers pull, nobody pops"),
        ({"mode": MessageRequestMode.POP}, 3, "the mode is PULL: consumers pull, nobody pops"),
    ],
)
def test_a_mode_that_cannot_be_is_refused(group, changed, code, remark):
    reply = set_mode(group, **changed)

    assert (reply.code, reply.remark) == (code, remark)
    assert group.ask(GetAllMessageRequestMode()).body == b'{"messageRequestModeMap":{}}'


def test_the_group_is_created_where_the_broker_creates_groups(make_talk):
    open_to_all, closed = make_talk(), make_talk(auto_create_groups=False)
    for talk in (open_to_all, closed):
        talk.send(T)

    assert set_mode(open_to_all).code == 0
    assert open_to_all.broker.groups.get("G") is not None
    refused = set_mode(closed)
    assert (refused.code, refused.remark) == (26, "subscription group does not exist")


def test_no_more_modes_are_kept_than_the_bound(group):
    group.broker.assignment.modes_max = 1

    assert [set_mode(group).code, set_mode(group, group="H").code, set_mode(group).code] == [0, 2, 0]


def test_modes_go_with_their_topic_and_with_their_group(group):
    def kept():
        table = from_json(RequestModeTable, group.ask(GetAllMessageRequestMode()).body).message_request_mode_map
        return {topic: set(groups) for topic, groups in table.items()}

    group.send("parcels")
    for topic, name in ((T, "G"), (T, "H"), ("parcels", "G")):
        set_mode(group, topic, name)

    assert group.ask(DeleteSubscriptiongroup(group_name="H")).code == 0
    assert kept() == {T: {"G"}, "parcels": {"G"}}
    assert group.ask(DeleteTopicInBroker(topic=T)).code == 0
    assert kept() == {"parcels": {"G"}}
    group.ask(DeleteSubscriptiongroup(group_name="G"))
    group.broker.store.close(group.instant)
    group.open()
    assert kept() == {}
