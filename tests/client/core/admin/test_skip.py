"""Skipping a message: the queue goes on behind it, whether members are online or not, and nothing moves that has moved already."""

from __future__ import annotations

from itertools import count

import pytest

from halfmoon import Admin, ConsumeFrom, Message, MessageQueue, Producer, PushConsumer
from halfmoon.client.core.admin import skip
from halfmoon.client.core.admin.reset import reset_offsets
from halfmoon.errors import GroupNotFound, OffsetIllegal, UsageError
from halfmoon.wire.bodies import SubscriptionGroupConfig
from tests.waiting import until

_numbers = count()


@pytest.fixture
def group() -> str:
    return f"C_skip_{next(_numbers)}"


@pytest.fixture
def admin(cluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        yield admin


def send(cluster, topic, *bodies):
    with Producer(group="P_skip", nameserver=cluster.nameserver) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


def at_rest(cluster, admin, group, topic, offset):
    """Have a group that nobody is a member of at an offset."""
    admin.create_group(group)
    admin.reset_offsets(group, topic, {MessageQueue(topic, "broker-a", 0): offset})


def progress(admin, group, queue):
    return admin.consume_stats(group, queue.topic)[queue].consumer_offset


def dead(admin, group):
    return [(letter.message.body, letter.reason) for letter in admin.dead_letters(group)]


def test_a_group_that_sleeps_goes_on_behind_the_message_and_the_dead_letters_have_it(cluster, admin, group, topic):
    send(cluster, topic, b"0", b"poison", b"2")
    queue = MessageQueue(topic, "broker-a", 0)
    at_rest(cluster, admin, group, topic, 1)

    move = admin.skip_message(group, queue, 1, to_dead_letters=True)

    assert (move.queue, move.now, move.then, move.members) == (queue, 1, 2, 0)
    assert progress(admin, group, queue) == 2
    assert dead(admin, group) == [(b"poison", "skipped by an operator")]


def test_an_ordered_queue_that_a_message_holds_goes_on_behind_it(cluster, admin, group, topic):
    seen = []

    def listen(messages):
        seen.extend(message.body for message in messages)
        if messages[0].body == b"poison":
            raise KeyError("price")

    send(cluster, topic, b"0", b"poison", b"2")
    queue = MessageQueue(topic, "broker-a", 0)
    settings = {"orderly": True, "suspend_queue_ms": 10, "consume_from": ConsumeFrom.FIRST_OFFSET}
    consumer = PushConsumer(group=group, nameserver=cluster.nameserver, **settings)
    consumer.subscribe(topic)
    consumer.on_message(listen)
    with consumer:
        until(lambda: seen.count(b"poison") > 3)
        until(lambda: progress(admin, group, queue) == 1)
        assert b"2" not in seen
        assert admin.skip_message(group, queue, 1).members == 1
        until(lambda: b"2" in seen)
        until(lambda: progress(admin, group, queue) == 3)

    assert seen.count(b"0") == 1
    assert dead(admin, group) == []


@pytest.mark.parametrize("to_dead_letters", [False, True])
def test_a_group_that_has_moved_on_is_not_moved_and_nothing_is_copied(cluster, admin, group, topic, to_dead_letters):
    send(cluster, topic, b"0", b"1", b"2")
    queue = MessageQueue(topic, "broker-a", 0)
    at_rest(cluster, admin, group, topic, 2)

    for offset in (0, 1):
        with pytest.raises(OffsetIllegal, match=rf"is at offset 2 in queue 0 of {topic} at broker-a, not at {offset}"):
            admin.skip_message(group, queue, offset, to_dead_letters=to_dead_letters)

    assert progress(admin, group, queue) == 2
    assert dead(admin, group) == []


def test_where_there_is_no_message_nothing_is_skipped(cluster, admin, group, topic):
    send(cluster, topic, b"0")
    queue = MessageQueue(topic, "broker-a", 0)
    with pytest.raises(GroupNotFound):
        admin.skip_message(group, queue, 0)
    at_rest(cluster, admin, group, topic, 1)

    with pytest.raises(OffsetIllegal, match="outside queue broker-a/0"):
        admin.skip_message(group, queue, 1)
    with pytest.raises(UsageError, match="has no queue broker-a/7"):
        admin.skip_message(group, MessageQueue(topic, "broker-a", 7), 0)
    assert progress(admin, group, queue) == 1


def test_a_group_that_takes_nothing_back_has_no_dead_letters_to_move_to(cluster, admin, group, topic):
    """Its broker answers success to 36 and stores nothing."""
    send(cluster, topic, b"0", b"1")
    queue = MessageQueue(topic, "broker-a", 0)
    at_rest(cluster, admin, group, topic, 0)
    admin.create_group(group, config=SubscriptionGroupConfig(retry_queue_nums=0))

    with pytest.raises(UsageError, match="stores no messages that are given back"):
        admin.skip_message(group, queue, 0, to_dead_letters=True)
    assert progress(admin, group, queue) == 0
    admin.skip_message(group, queue, 0)
    assert progress(admin, group, queue) == 1


@pytest.mark.parametrize("namespace", ["", "shop"])
@pytest.mark.parametrize("before", [[], ["other"], ["good", "other"]], ids=["first of its queue", "behind others", "in between"])
def test_the_message_that_a_finding_names_can_be_skipped_whatever_a_filter_left_out_before_it(
    cluster, group, topic, before, namespace
):
    seen = []

    def listen(messages):
        seen.append(messages[0].body)
        if messages[0].body == b"poison":
            raise KeyError("price")

    where = {"nameserver": cluster.nameserver, "namespace": namespace}
    settings = {"orderly": True, "suspend_queue_ms": 10, "consume_from": ConsumeFrom.FIRST_OFFSET}
    consumer = PushConsumer(group=group, **where, **settings)
    consumer.subscribe(topic, "good")
    consumer.on_message(listen)
    with Admin(**where) as admin, Producer(group="P_skip", **where) as producer:
        admin.create_topic(topic, queue_count=1)
        for tag, body in [*((tag, tag.encode()) for tag in before), ("good", b"poison"), ("good", b"last")]:
            producer.send(Message(topic, body, tag=tag))
        with consumer:
            until(lambda: seen.count(b"poison") > 3)
            assert [one.kind for one in admin.group_findings(group) if one.severity == "blocked"] == ["stuck"]
            found = admin.group_findings(group)[0]
            assert (found.queue, found.offset) == (MessageQueue(topic, "broker-a", 0), len(before))
            admin.skip_message(group, found.queue, found.offset, to_dead_letters=True)
            until(lambda: b"last" in seen)
        assert dead(admin, group) == [(b"poison", "skipped by an operator")]


def test_a_group_that_moves_on_between_the_look_and_the_move_is_not_moved_back(cluster, admin, group, topic, monkeypatch):
    send(cluster, topic, b"0", b"1", b"2", b"3")
    queue = MessageQueue(topic, "broker-a", 0)
    at_rest(cluster, admin, group, topic, 1)
    carried_out = skip.carry_out

    def later(core, reset, **values):
        yield from reset_offsets(core, group, topic, {queue: 3})
        yield from carried_out(core, reset, **values)

    monkeypatch.setattr(skip, "carry_out", later)
    with pytest.raises(OffsetIllegal, match=rf"the group moved on in queue 0 of {topic} at broker-a meanwhile: nothing was moved"):
        admin.skip_message(group, queue, 1)

    assert progress(admin, group, queue) == 3
