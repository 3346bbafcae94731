"""Delays as producers ask for them: what travels, what is refused, recalls and lists against a real broker."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer, PullConsumer
from halfmoon.errors import IllegalOperation, MessageIllegal, UsageError
from halfmoon.model import Message


@pytest.fixture
def producer(cluster):
    with Producer(group="P", nameserver=cluster.nameserver) as running:
        yield running


@pytest.mark.mission("001-35")
@pytest.mark.parametrize(
    ("wish", "properties"),
    [
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay": 1.5}, {"TIMER_DELAY_MS": "1500"}),
        ({"delay": timedelta(days=40)}, {"TIMER_DELAY_MS": "3456000000"}),
        ({"deliver_at": 1_700_000_000_123}, {"TIMER_DELIVER_MS": "1700000000123"}),
        ({"deliver_at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "1700000000000"}),
        ({"deliver_at": datetime(1, 1, 1, tzinfo=UTC)}, {"TIMER_DELIVER_MS": "0"}),
        ({}, {}),
    ],
)
def test_a_delay_is_set_on_each_message(wish, properties):
    assert Message("T", b"x", **wish).wire_properties() == {**properties, "WAIT": "true"}


@pytest.mark.slow
@pytest.mark.mission("001-35")
def test_each_message_waits_by_the_level_that_was_set_on_it(cluster, producer):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("Levels", queue_count=1)
        sent = {level: producer.send(Message("Levels", b"%d" % level, delay_level=level)).msg_id for level in (5, 18, 9)}
        plain = producer.send(Message("Levels", b"now")).msg_id
        waiting = {one.msg_id: one.level for one in admin.delayed_messages(topic="Levels").messages}
        assert waiting == {msg_id: level for level, msg_id in sent.items()}
        with PullConsumer(group="C_levels", nameserver=cluster.nameserver) as consumer:
            consumer.assign(consumer.queues("Levels"))
            consumer.seek(consumer.queues("Levels")[0], 0)
            assert [message.msg_id for message in consumer.poll(5000)] == [plain]


@pytest.mark.parametrize(
    "wish",
    [
        {"delay": -1},
        {"delay": 3_456_001},
        {"delay": float("nan")},
        {"delay": timedelta(seconds=-1)},
        {"deliver_at": -5},
        {"deliver_at": 10**15},
        {"deliver_at": datetime(2023, 1, 1)},
        {"delay": 1, "delay_level": 1},
        {"delay": 1, "deliver_at": 5},
    ],
)
def test_a_delay_that_cannot_be_is_refused(wish):
    with pytest.raises(MessageIllegal):
        Message("T", b"x", **wish).wire_properties()


@pytest.mark.slow
@pytest.mark.mission("001-32")
def test_a_message_with_a_delay_arrives_then_and_a_recalled_one_never(cluster, producer):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("Later", queue_count=1)
        gone = producer.send(Message("Later", b"gone", delay=1.5))
        far = producer.send(Message("Later", b"far", keys="k", delay=timedelta(days=30)))
        begin = time.time_ns() // 1_000_000
        producer.send(Message("Later", b"timed", deliver_at=begin + 700))
        producer.send(Message("Later", b"level", delay_level=1))

        assert producer.recall("Later", gone.recall_handle) == gone.msg_id
        with pytest.raises(IllegalOperation):
            producer.recall("Later", gone.recall_handle)
        with pytest.raises(UsageError):
            producer.recall("Later", "nothing")
        with PullConsumer(group="C", nameserver=cluster.nameserver) as consumer:
            consumer.assign(consumer.queues("Later"))
            for queue in consumer.queues("Later"):
                consumer.seek(queue, 0)
            found = []
            while len(found) < 2 and time.time_ns() // 1_000_000 < begin + 5000:
                found += consumer.poll(500)
        assert [message.body for message in found] == [b"timed", b"level"]
        for message, after_ms in zip(found, (700, 1000)):
            assert after_ms <= message.store_ms - begin <= after_ms + 500

        waiting = admin.delayed_messages(topic="Later")
        assert [(one.msg_id, one.keys, one.level) for one in waiting.messages] == [(far.msg_id, "k", 0)]
        assert admin.cancel_delayed("Later", far.msg_id) == far.msg_id
        with pytest.raises(IllegalOperation):
            admin.cancel_delayed("Later", far.msg_id)
        assert admin.delayed_messages(topic="Later").messages == []


def test_a_batch_takes_no_delayed_message(producer):
    for wish in ({"delay_level": 1}, {"delay": 1}, {"deliver_at": 5}):
        with pytest.raises(UsageError):
            producer.send_batch([Message("T", b"x", **wish)])
