"""Batches that are encoded already: which queue the next attempt goes to, after which pause, and what is an error."""

from __future__ import annotations

import pytest

from halfmoon.client.core.produce.bulk import PAUSE_MS, Encoded, deliver
from halfmoon.errors import IllegalOperation, NetworkError, NoPermission, UsageError
from halfmoon.model import MessageQueue
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.record import encode_batch
from tests.client.scripted import REFUSED, Reply, Scripted, producer, stored

QUEUES = [MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)]
BATCH = Encoded("orders", encode_batch([(b"paid", b"", 0)]))


def test_a_failed_attempt_is_followed_by_one_to_the_next_queue_after_a_pause():
    script = Scripted()
    sender = producer(script, {"broker-a": 1, "broker-b": 1})
    script.on(SendBatchMessage, REFUSED, stored())

    result = script.run(deliver(sender, BATCH, QUEUES, 2, 1_000))

    first, second = script.asked(SendBatchMessage)
    assert (first.address, second.address, result.queue) == ("broker-a:1", "broker-b:1", QUEUES[1])
    assert second.at - first.at >= PAUSE_MS
    assert (second.body, second.timeout_ms) == (BATCH.body, 1_000)


def test_a_message_that_is_stored_without_the_promise_of_the_broker_counts_as_failed():
    script = Scripted()
    sender = producer(script)
    script.on(SendBatchMessage, stored(10))

    with pytest.raises(NetworkError, match="FLUSH_DISK_TIMEOUT"):
        script.run(deliver(sender, BATCH, QUEUES[:1], 1, 1_000))

    assert len(script.asked(SendBatchMessage)) == 2


def test_a_refusal_for_good_is_raised_at_once():
    script = Scripted()
    sender = producer(script)
    script.on(SendBatchMessage, Reply(604, remark="never"))

    with pytest.raises(IllegalOperation, match="never"):
        script.run(deliver(sender, BATCH, QUEUES[:1], 5, 1_000))

    assert len(script.asked(SendBatchMessage)) == 1


def test_a_broker_that_does_not_allow_it_is_not_asked_again_before_the_others():
    for queues, tries in ((QUEUES[:1], 1), (QUEUES, 2)):
        script = Scripted()
        sender = producer(script, {"broker-a": 1, "broker-b": 1})
        script.on(SendBatchMessage, Reply(16, remark="the topic[orders] sending message is forbidden"))

        with pytest.raises(NoPermission):
            script.run(deliver(sender, BATCH, queues, 5, 1_000))

        assert len(script.asked(SendBatchMessage)) == tries


def test_a_topic_without_queues_is_refused():
    script = Scripted()

    with pytest.raises(UsageError, match="no queue that takes messages"):
        script.run(deliver(producer(script), BATCH, [], 1, 1_000))


def test_one_message_travels_with_its_own_properties_and_flags():
    script = Scripted()
    sender = producer(script)

    script.run(deliver(sender, Encoded("orders", b"paid", b"KEYS\x01k", sys_flag=1), QUEUES[:1], 0, 1_000))

    (seen,) = script.asked(SendMessageV2)
    assert (seen.request.properties, seen.request.sys_flag, seen.request.batch, seen.body) == ("KEYS\x01k", 1, False, b"paid")
