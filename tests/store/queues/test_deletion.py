"""A topic that is deleted leaves no queue behind, and nothing of others goes with it."""

from __future__ import annotations

from random import Random

from halfmoon.instant import instant
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, draft, open_store, read_all


def test_all_queues_of_a_topic_go_and_no_other() -> None:
    disk = SimDisk(Random(1))
    store = open_store(disk)
    for topic, queue_id in (("orders", 0), ("orders", 1), ("orders-2", 0)):
        store.append(topic, queue_id, [draft(topic.encode())], NOW)
    store.delete_topic("orders", instant(NOW).steady)
    store.delete_topic("unknown", instant(NOW).steady)
    carry_out(store)
    assert store.topics() == ["orders-2"]
    assert not disk.exists("consumequeue/orders/0")
    assert [body for body, _ in read_all(store, "orders-2", 0).values()] == [b"orders-2"]
    assert store.append("orders", 0, [draft(b"again")], NOW).queue_offset == 0
