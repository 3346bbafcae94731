"""The users of a simulated cluster do what they say and write down what they learned."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.testing.cluster import Cluster
from halfmoon.wire.codes import ROCKETMQ
from simulation.ledger import Ledger, Place
from simulation.users import WorkloadPlan, consumer, producer, puller, read_queue

HERE = [Place("broker-a", "orders", queue_id) for queue_id in range(4)]


class Load:
    """A quiet cluster with users."""

    def __init__(self) -> None:
        self.cluster = Cluster(seed=2, flush="sync")
        self.ledger = Ledger("sync")
        timeline = self.cluster.timeline
        self.plan = WorkloadPlan({"broker-a": self.cluster.brokers[0].address}, self.ledger, lambda: timeline.now)
        self.chance = timeline.split("users")
        self.tasks: list[Any] = []

    def add(self, operation: Any, serialization: int = 0) -> None:
        self.tasks.append(self.cluster.driver(f"user {len(self.tasks)}", serialization).start(operation))

    def run(self, ms: int) -> list[Any]:
        self.cluster.run(ms)
        self.plan.closing = True
        self.cluster.run(ms=8_000)
        return [task.result() for task in self.tasks]


def test_a_producer_counts_what_was_acknowledged_and_keeps_its_order() -> None:
    load = Load()
    load.add(producer(load.plan, "p", "orders", load.chance))
    load.add(producer(load.plan, "q", "orders", load.chance), ROCKETMQ)
    counts = load.run(ms=1_000)
    assert counts[0] + counts[1] == len(load.ledger.acked)
    assert min(counts) > 10
    assert {ack.sender for ack in load.ledger.acked} == {"p", "q"}
    assert all(ack.place in load.ledger.attempted[ack.body] for ack in load.ledger.acked)
    numbers = [ack.number for ack in load.ledger.acked if ack.sender == "p"]
    assert numbers == sorted(numbers)


def test_a_puller_sees_every_message_of_its_queue_and_a_tagged_one_only_its_tag() -> None:
    load = Load()
    load.add(producer(load.plan, "p", "orders", load.chance, pause_ms=(0, 10)))
    load.add(puller(load.plan, HERE[0], load.chance))
    load.add(puller(load.plan, HERE[1], load.chance, tag="paid"))
    load.run(ms=2_000)
    everything = {ack.queue_offset for ack in load.ledger.acked if ack.place == HERE[0]}
    seen = {seen.queue_offset for seen in load.ledger.seen if seen.place == HERE[0]}
    assert len(everything & seen) > 10
    tagged = [seen for seen in load.ledger.seen if seen.place == HERE[1]]
    assert tagged
    assert all(b"TAGS\x01paid" in seen.record for seen in tagged)
    assert load.ledger.unexpected == []


def test_a_consumer_commits_what_it_consumed_and_goes_on_there() -> None:
    load = Load()
    load.add(producer(load.plan, "p", "orders", load.chance, pause_ms=(0, 10)))
    load.add(consumer(load.plan, "g", HERE[2], load.chance))
    confirmed = load.run(ms=3_000)[1]
    offsets = [commit.offset for commit in load.ledger.commits]
    assert len(offsets) > 3
    assert offsets == sorted(offsets)
    assert offsets[-1] == confirmed
    assert load.ledger.positions[-1].offset <= confirmed


@pytest.mark.parametrize("queue_id", range(4))
def test_reading_a_queue_gives_all_of_it(queue_id: int) -> None:
    load = Load()
    load.add(producer(load.plan, "p", "orders", load.chance, pause_ms=(0, 10)))
    load.run(ms=1_500)
    task = load.cluster.client.start(read_queue(load.plan, HERE[queue_id]))
    load.cluster.run(ms=500)
    acked = {ack.queue_offset: ack.body for ack in load.ledger.acked if ack.place == HERE[queue_id]}
    found = {offset: seen.body for offset, seen in task.result().items()}
    assert len(acked) > 5
    assert acked.items() <= found.items()
