"""Trims: what is trimmed is not delivered any more, whatever happens to the broker, and what comes later always is."""

from __future__ import annotations

import shutil

import pytest

from halfmoon.broker.admin.trimming import PATH
from halfmoon.wire.bodies import TopicStatsTable, TrimmedQueues, from_json
from halfmoon.wire.headers.offset import GetMinOffset, OffsetReply
from halfmoon.wire.headers.topic import DeleteTopicInBroker, GetTopicStatsInfo, TrimTopic
from tests.broker.admin.test_admin import create


def trim(talk, topic="orders", **how):
    return from_json(TrimmedQueues, talk.ask(TrimTopic(topic=topic, **how)).body).queues


def lowest(talk, queue_id=0):
    return talk.ask(GetMinOffset(topic="orders", queue_id=queue_id)).header(OffsetReply).offset


@pytest.fixture
def orders(talk):
    """A broker with ten messages in queue 0, a second apart, and one in queue 1."""
    create(talk)
    for _ in range(10):
        talk.send("orders")
        talk.wait(1000)
    talk.send("orders", queue_id=1)
    return talk


def test_a_trim_raises_the_lowest_offset_that_tools_see(orders):
    [first, second] = trim(orders, offset=4)

    assert (first.queue_id, first.min_offset, first.then) == (0, 0, 4)
    assert (second.queue_id, second.min_offset, second.then) == (1, 0, 1)
    assert (lowest(orders), lowest(orders, 1)) == (4, 1)
    stats = from_json(TopicStatsTable, orders.ask(GetTopicStatsInfo(topic="orders")).body).offset_table
    assert {queue.queue_id: (ends.min_offset, ends.max_offset) for queue, ends in stats.items()} == {0: (4, 10), 1: (1, 1)}


def test_a_consumer_behind_a_trim_is_sent_to_the_lowest_offset(orders):
    trim(orders, offset=4)

    reply = orders.pull("orders", offset=0)

    assert reply.code == 21  # PULL_OFFSET_MOVED
    assert reply.fields["nextBeginOffset"] == "4"
    assert orders.pull("orders", offset=4).code == 0


def test_messages_before_a_time_are_trimmed(orders):
    at = orders.broker.store.store_ms("orders", 0, 6)

    [trimmed] = trim(orders, before_ms=at, queue_id=0)

    assert (trimmed.then, lowest(orders), lowest(orders, 1)) == (6, 6, 0)


def test_a_dry_run_changes_nothing(orders):
    assert trim(orders, offset=4, dry_run=True)[0].then == 4
    assert lowest(orders) == 0


def test_a_trim_outlives_restarts_and_a_rebuild_of_the_queues(orders):
    trim(orders, offset=4)
    orders.restart()
    assert lowest(orders) == 4

    orders.stop()
    orders.broker.close(orders.instant)
    shutil.rmtree(orders.root / "consumequeue")
    orders.open()

    assert (lowest(orders), orders.broker.store.queue_max("orders", 0)) == (4, 10)


def test_a_trim_is_never_lowered_and_never_hides_what_comes_later(orders):
    trim(orders, offset=8)
    trim(orders, offset=3)
    assert lowest(orders) == 8

    assert trim(orders, offset=100)[0].then == 10
    orders.send("orders", b"new")
    orders.restart()
    assert lowest(orders) == 10
    assert orders.pull("orders", offset=10).code == 0


def test_a_topic_that_is_made_again_is_not_trimmed(orders):
    trim(orders, offset=8)
    orders.ask(DeleteTopicInBroker(topic="orders"))
    create(orders)
    orders.send("orders")
    orders.restart()

    at = lowest(orders)
    assert orders.pull("orders", offset=at).code == 0
    assert orders.broker.store.queue_max("orders", 0) - at == 1


def test_a_topic_is_not_deleted_while_its_trims_cannot_be_forgotten(orders):
    """Another one of its name would lose its first messages at the next start."""
    trim(orders, offset=8)
    orders.broker.tables.failed[PATH] = "disk full"

    assert orders.ask(DeleteTopicInBroker(topic="orders")).code == 14
    assert orders.broker.topics.get("orders") is not None


@pytest.mark.parametrize("how", [{}, {"offset": 1, "before_ms": 1}])
def test_a_trim_names_an_offset_or_a_time(orders, how):
    assert orders.ask(TrimTopic(topic="orders", **how)).code != 0
    assert lowest(orders) == 0


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "nobody_knows"])
def test_topics_of_the_broker_and_unknown_ones_are_refused(orders, topic):
    assert orders.ask(TrimTopic(topic=topic, offset=1)).code != 0
