"""A whole cluster in virtual time: the examples of the documentation, and what a crash leaves."""

from __future__ import annotations

import pytest

from halfmoon.errors import NetworkError, TopicNotFound
from halfmoon.testing.cluster import Cluster


def test_a_message_goes_round() -> None:
    cluster = Cluster(seed=1)
    sent = cluster.send("orders", b"paid", tag="TagA", keys="k1 k2")
    cluster.run(ms=50)
    assert sent.result().queue_offset == 0
    pulled = cluster.pull("orders")
    cluster.run(ms=20)
    (message,) = pulled.result()
    assert (message.body, message.tag, message.keys) == (b"paid", "TagA", ("k1", "k2"))


def test_a_held_pull_is_answered_as_soon_as_a_message_arrives() -> None:
    cluster = Cluster(seed=1, brokers=1)
    cluster.create_topic("orders")
    cluster.run(ms=50)
    pull = cluster.pull("orders", queue_id=0, offset=0, wait_ms=15_000)
    cluster.run(ms=4_000)
    assert not pull.done
    cluster.send("orders", b"paid")
    cluster.run(ms=20)
    assert [m.body for m in pull.result()] == [b"paid"]


def test_a_held_pull_ends_empty_when_its_time_is_over() -> None:
    cluster = Cluster(seed=1)
    cluster.create_topic("orders")
    cluster.run(ms=50)
    pull = cluster.pull("orders", wait_ms=5_000)
    cluster.run(ms=4_990)
    assert not pull.done
    cluster.run(ms=1_100)
    assert pull.result() == []


def test_an_error_of_the_broker_is_raised_by_the_result() -> None:
    cluster = Cluster(seed=1)
    pull = cluster.pull("nowhere")
    cluster.run(ms=20)
    with pytest.raises(TopicNotFound):
        pull.result()


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_a_killed_broker_has_what_it_acknowledged(flush: str) -> None:
    cluster = Cluster(seed=3, flush=flush)
    sent = [cluster.send("orders", b"%d" % i) for i in range(20)]
    cluster.run(ms=50)
    assert all(task.done for task in sent)
    cluster.crash(cluster.brokers[0])
    cluster.run(ms=100)
    cluster.restart(cluster.brokers[0])
    pulled = cluster.pull("orders")
    cluster.run(ms=50)
    assert sorted(message.body for message in pulled.result()) == sorted(b"%d" % i for i in range(20))


def kept_after_power_loss(seed: int, flush: str) -> int:
    """Send twenty messages, take the power as soon as all are acknowledged, and return how many are there afterwards."""
    cluster = Cluster(seed, flush=flush)
    sent = [cluster.send("orders", b"%d" % i) for i in range(20)]
    assert cluster.timeline.run_until(lambda: all(task.done for task in sent), 100)
    cluster.crash(cluster.brokers[0], power=True)
    cluster.run(ms=100)
    cluster.restart(cluster.brokers[0])
    first = cluster.pull("orders")
    cluster.run(ms=200)
    with pytest.raises((NetworkError, TopicNotFound)):  # the old connection is found to be gone
        first.result()
    pulled = cluster.pull("orders")
    cluster.run(ms=50)
    return len(pulled.result()) if pulled.error is None else 0


def test_sync_flush_survives_a_loss_of_power_and_async_flush_need_not() -> None:
    assert [kept_after_power_loss(seed, "sync") for seed in range(6)] == [20] * 6
    assert min(kept_after_power_loss(seed, "async") for seed in range(6)) < 20


def test_a_clean_stop_leaves_the_store_unlocked_and_complete() -> None:
    cluster = Cluster(seed=1)
    cluster.send("orders", b"paid")
    cluster.run(ms=50)
    (broker,) = cluster.brokers
    cluster.stop(broker)
    assert not broker.running
    assert not broker.left_locked
    cluster.restart(broker)
    cluster.run(ms=50)
    pulled = cluster.pull("orders")
    cluster.run(ms=50)
    assert [message.body for message in pulled.result()] == [b"paid"]


def test_two_brokers_keep_their_messages_apart() -> None:
    cluster = Cluster(seed=1, brokers=2, nameservers=2)
    cluster.send("orders", b"a", broker=0)
    cluster.send("orders", b"b", broker=1)
    cluster.run(ms=50)
    pulls = [cluster.pull("orders", broker=i) for i in range(2)]
    cluster.run(ms=50)
    assert [[message.body for message in pull.result()] for pull in pulls] == [[b"a"], [b"b"]]
