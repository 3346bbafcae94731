"""A topic that is deleted, made anew and filled again, with kills in between: no group begins behind its new messages."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from halfmoon.testing.asking import ask, call
from halfmoon.testing.cluster import Cluster
from halfmoon.wire.headers.offset import OffsetReply, QueryConsumerOffset, UpdateConsumerOffset
from halfmoon.wire.headers.topic import DeleteTopicInBroker, UpdateAndCreateTopic

TOPIC = "orders"
MADE = UpdateAndCreateTopic(
    topic=TOPIC, default_topic="TBW102", read_queue_nums=4, write_queue_nums=4, perm=6, topic_filter_type="SINGLE_TAG", order=False
)


def progress_after_a_deletion(seed: int, flush: str, **options: Any) -> int:
    """Where the group begins in the topic made anew, after a kill right behind the answer to its deletion."""
    cluster = Cluster(seed, flush=flush, broker={"save_offsets_ms": 1000}, **options)
    node = cluster.brokers[0]
    cluster.run(ms=200)
    assert ask(cluster, call(node.address, MADE)).code == 0
    for number in range(10):
        cluster.send(TOPIC, b"%d" % number)
    cluster.run(ms=500)
    update = UpdateConsumerOffset(consumer_group="G", topic=TOPIC, queue_id=0, commit_offset=10)
    assert ask(cluster, call(node.address, update)).code == 0
    cluster.run(ms=3000)
    assert ask(cluster, call(node.address, DeleteTopicInBroker(topic=TOPIC))).code == 0
    cluster.crash(node, power=seed % 2 == 1)
    cluster.restart(node)
    cluster.run(ms=500)
    assert ask(cluster, call(node.address, MADE)).code == 0
    for number in range(3):
        cluster.send(TOPIC, b"new %d" % number)
    cluster.run(ms=1000)
    reply = ask(cluster, call(node.address, QueryConsumerOffset(consumer_group="G", topic=TOPIC, queue_id=0)))
    return int(reply.header(OffsetReply).offset) if reply.code == 0 else 0


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_a_group_begins_a_topic_made_anew_at_its_first_message(seed: int, flush: str) -> None:
    assert progress_after_a_deletion(seed, flush) == 0


def hasty(*arguments: Any) -> Broker:
    """A broker that answers a deletion before it is saved."""
    broker = Broker(*arguments)
    broker._handlers[215] = broker.admin.delete_topic
    return broker


def test_a_broker_that_answers_a_deletion_before_it_is_saved_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halfmoon.broker.offsets.Offsets.drop_unknown", lambda self, topics: None)
    monkeypatch.setattr("halfmoon.broker.offsets.Offsets.clamp", lambda self, bounds: None)
    assert any(progress_after_a_deletion(seed, "async", make_broker=hasty) for seed in range(6))
