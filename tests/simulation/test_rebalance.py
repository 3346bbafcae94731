"""How soon queues have their owner when members of a group join, leave or are killed, and a held pull its answer: virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from halfmoon.model import ConsumeFrom, Message, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.testing.cluster import Cluster

TOPIC, QUEUES = "orders", 8
SOON_MS = 1_000


class Group:
    """A cluster, and members of one group."""

    def __init__(self, seed: int, *, orderly: bool) -> None:
        self.cluster, self.orderly = Cluster(seed), orderly
        self.cluster.create_topic(TOPIC, queues=QUEUES)
        self.cluster.run(ms=500)
        self.heard: list[int] = []

    def join(self, name: str) -> SimPushConsumer:
        return SimPushConsumer(
            self.cluster, TOPIC, self.listen, name=name, orderly=self.orderly, consume_from=ConsumeFrom.FIRST_OFFSET
        )

    def listen(self, messages: list[StoredMessage]) -> None:
        self.heard += [self.cluster.timeline.now] * len(messages)

    def has(self, member: SimPushConsumer, count: int) -> bool:
        return sum(queue.topic == TOPIC for queue in member.assignment()) == count

    def soon(self, ready: Callable[[], bool]) -> bool:
        return self.cluster.timeline.run_until(ready, SOON_MS)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_queues_have_their_owners_within_a_second_of_a_join_a_close_and_a_kill(seed: int, orderly: bool) -> None:
    group = Group(seed, orderly=orderly)
    first = group.join("first")
    assert group.soon(lambda: group.has(first, QUEUES))
    group.cluster.run(ms=30_000)

    second = group.join("second")
    assert group.soon(lambda: group.has(first, QUEUES // 2) and group.has(second, QUEUES // 2))
    group.cluster.run(ms=30_000)
    second.stop().then(second.kill)
    assert group.soon(lambda: group.has(first, QUEUES))

    third = group.join("third")
    assert group.soon(lambda: group.has(third, QUEUES // 2))
    group.cluster.run(ms=30_000)
    third.kill()
    group.cluster.network.kill(third.host)
    assert group.soon(lambda: group.has(first, QUEUES))


@pytest.mark.parametrize("orderly", [False, True])
def test_a_held_pull_is_answered_within_five_milliseconds_of_the_send(orderly: bool) -> None:
    group = Group(1, orderly=orderly)
    group.join("first")
    producer = SimProducer(group.cluster)
    group.cluster.run(ms=5_000)
    for _ in range(100):
        producer.send(Message(TOPIC, b"x"))
        begun, count = group.cluster.timeline.now, len(group.heard)
        assert group.cluster.timeline.run_until(lambda: len(group.heard) > count, 5), group.cluster.timeline.now - begun  # noqa: B023
        group.cluster.run(ms=50)
