"""Membership: what counts as a change, who leaves with a connection, what is bounded."""

import pytest

from halfmoon.broker.consumers.clients import GROUPS_OF_PEER_MAX, SUBSCRIPTION_BYTES_MAX, Clients, GroupMember
from halfmoon.errors import SystemBusy
from halfmoon.model import ConsumeType, MessageModel, subscription
from halfmoon.wire.bodies import ConsumeFromWhere
from halfmoon.wire.peer import Peer


def member(number=1, client_id=None, heard=0):
    return GroupMember(Peer(number, f"10.0.0.{number}:5000", 0), client_id or f"c{number}", 0, 409, heard)


def join(clients, who, *subscriptions, group="G"):
    return clients.consumer(
        group, who, ConsumeType.CONSUME_PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, subscriptions
    )


def test_a_new_connection_is_a_change_and_its_repetition_is_not():
    clients = Clients()

    assert join(clients, member(), subscription("T", version=1)) is True
    assert join(clients, member(), subscription("T", version=2)) is False


def test_a_newer_subscription_replaces_the_older_without_counting_as_a_change():
    clients = Clients()
    join(clients, member(), subscription("T", "A", version=1))

    assert join(clients, member(), subscription("T", "B", version=2)) is False
    assert clients.group("G").subscriptions["T"].expression == "B"
    assert join(clients, member(), subscription("T", "C", version=1)) is False
    assert clients.group("G").subscriptions["T"].expression == "B"


def test_a_topic_left_out_is_dropped_and_counts_as_a_change():
    clients = Clients()
    join(clients, member(), subscription("T"), subscription("U"))

    assert join(clients, member(), subscription("T")) is True
    assert set(clients.group("G").subscriptions) == {"T"}


def test_a_lost_connection_leaves_all_its_groups_and_names_those_of_consumers():
    clients = Clients()
    who = member()
    join(clients, who, subscription("T"), group="G1")
    join(clients, who, subscription("T"), group="G2")
    clients.producer("P", who)

    assert clients.lost(1) == ["G1", "G2"]
    assert clients.group("G1") is None
    assert clients.producers == {}


def test_unregistering_leaves_only_the_groups_named():
    clients = Clients()
    who = member()
    join(clients, who, subscription("T"), group="G1")
    join(clients, who, subscription("T"), group="G2")

    assert clients.unregister(1, None, "G1") == ["G1"]
    assert clients.group("G2") is not None
    assert clients.unregister(1, None, "G1") == []


def test_members_not_heard_from_expire():
    clients = Clients()
    join(clients, member(1, heard=1000), subscription("T"))
    join(clients, member(2, heard=9000), subscription("T"))

    groups, silent = clients.expire(5000)

    assert groups == ["G"]
    assert [peer.number for peer in silent] == [1]
    assert clients.group("G").client_ids() == ["c2"]


def test_each_client_id_is_listed_once_and_sorted():
    clients = Clients()
    join(clients, member(2, "b"), subscription("T"))
    join(clients, member(1, "a"), subscription("T"))
    join(clients, member(3, "a"), subscription("T"))

    assert clients.group("G").client_ids() == ["a", "b"]


def test_a_connection_in_too_many_groups_is_not_taken_into_more():
    clients = Clients()
    who = member()

    assert all(clients.producer(f"P{number}", who) for number in range(GROUPS_OF_PEER_MAX))
    assert not clients.producer("one more", who)
    assert clients.producer("P1", who)


def test_who_is_not_taken_in_leaves_no_group_behind():
    clients = Clients()
    names = [f"G{number}" for number in range(GROUPS_OF_PEER_MAX)]
    for name in names:
        join(clients, member(), subscription("T"), group=name)

    assert not clients.producer("P", member())
    with pytest.raises(SystemBusy):
        join(clients, member(), subscription("T"), group="G")

    assert (list(clients.consumers), list(clients.producers)) == (names, [])


def test_all_subscriptions_together_are_bounded_and_those_who_leave_make_room():
    clients = Clients()
    long = subscription("T", "x" * (SUBSCRIPTION_BYTES_MAX // 4))
    for _ in range(3):
        join(clients, member(1), long, group="G1")  # the same again takes no more room

    with pytest.raises(SystemBusy):
        join(clients, member(2), long, group="G2")
    assert clients.group("G2") is None

    clients.lost(1)
    assert join(clients, member(2), long, group="G2")
