"""Our own client against our own broker, in virtual time, while things go wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from halfmoon.model import ConsumeFrom, Message, SendStatus, StoredMessage
from halfmoon.testing.clients import SimProducer, SimPushConsumer
from halfmoon.testing.cluster import Cluster


class Shop:
    """A cluster with a producer, a consumer, and what the consumer got."""

    def __init__(self, seed: int, *, brokers: int = 1) -> None:
        self.cluster = Cluster(seed, brokers=brokers, nameservers=2)
        for index in range(brokers):
            self.cluster.create_topic("orders", broker=index)
        self.cluster.run(ms=500)
        self.got: Counter[bytes] = Counter()
        self.producer = SimProducer(self.cluster)
        self.consumer = self.another("consumer")

    def another(self, name: str) -> SimPushConsumer:
        return SimPushConsumer(self.cluster, "orders", self.listen, name=name, consume_from=ConsumeFrom.FIRST_OFFSET)

    def listen(self, messages: list[StoredMessage]) -> None:
        self.got.update(message.body for message in messages)


def test_what_is_sent_is_consumed() -> None:
    shop = Shop(seed=1)
    sent = [shop.producer.send(Message("orders", b"%d" % i)) for i in range(20)]
    shop.cluster.run(ms=3_000)
    assert {task.result().status for task in sent} == {SendStatus.SEND_OK}
    assert shop.got == Counter(b"%d" % i for i in range(20))


def test_a_message_reaches_a_waiting_consumer_at_once() -> None:
    shop = Shop(seed=2)
    shop.cluster.run(ms=5_000)
    shop.producer.send(Message("orders", b"first"))
    shop.cluster.run(ms=100)
    assert shop.got == Counter([b"first"])


@pytest.mark.parametrize("seed", range(5))
def test_everything_acknowledged_is_consumed_though_the_broker_is_killed_again_and_again(seed: int) -> None:
    shop = Shop(seed=seed)
    (broker,) = shop.cluster.brokers
    tasks = {}
    chance = shop.cluster.timeline.split("kills")
    for round_ in range(6):
        for i in range(15):
            body = b"%d-%d" % (round_, i)
            tasks[body] = shop.producer.send(Message("orders", body))
            shop.cluster.run(ms=chance.randint(0, 60))
        shop.cluster.crash(broker)
        shop.cluster.run(ms=chance.randint(10, 1500))
        shop.cluster.restart(broker)
    shop.cluster.run(ms=60_000)
    acknowledged = {body for body, task in tasks.items() if task.done and task.error is None}
    assert len(acknowledged) > 40
    assert acknowledged <= set(shop.got)


def test_a_second_consumer_takes_over_half_of_the_queues_and_all_of_them_when_the_first_leaves() -> None:
    shop = Shop(seed=4, brokers=2)
    shop.cluster.run(ms=2_000)
    other = shop.another("other")
    shop.cluster.run(ms=5_000)
    assert [share(each) for each in (shop.consumer, other)] == [4, 4]
    stopped = shop.consumer.stop()
    shop.cluster.run(ms=5_000)
    assert stopped.done
    assert share(other) == 8


def share(consumer: SimPushConsumer) -> int:
    """How many queues of the topic a consumer has."""
    return len([queue for queue in consumer.assignment() if queue.topic == "orders"])


def test_a_producer_goes_to_the_other_broker_when_one_is_gone() -> None:
    shop = Shop(seed=5, brokers=2)
    shop.producer.send(Message("orders", b"warm"))
    shop.cluster.run(ms=500)
    shop.cluster.crash(shop.cluster.brokers[0])
    sent = [shop.producer.send(Message("orders", b"%d" % i)) for i in range(10)]
    shop.cluster.run(ms=10_000)
    assert {task.result().queue.broker_name for task in sent} == {"broker-b"}
