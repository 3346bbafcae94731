"""Orderly consumers over real sockets, on both faces: one owner a queue, one call at a time, nothing out of order."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFrom,
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
    StoredMessage,
)
from halfmoon.testing.local import LocalCluster
from tests.waiting import soon

pytestmark = pytest.mark.slow

FIRST = ConsumeFrom.FIRST_OFFSET
_numbers = count()


def made(cluster: LocalCluster) -> tuple[str, dict[str, Any]]:
    """Return a new topic of four queues and the settings of consumers in a new group."""
    number = next(_numbers)
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(f"ordered_{number}", queue_count=4)
    settings = {"group": f"C_{number}", "nameserver": cluster.nameserver, "consume_from": FIRST, "orderly": True}
    return f"ordered_{number}", settings


class Heard:
    """What listeners heard: calls of a queue that overlapped, bodies in order by key, and how many calls."""

    def __init__(self) -> None:
        self.overlaps = self.calls = 0
        self.by_key: dict[str, list[int]] = {}
        self._running: set[int] = set()

    def begin(self, message: StoredMessage) -> None:
        self.overlaps += message.queue_id in self._running
        self._running.add(message.queue_id)
        self.calls += 1
        key, number = message.body.decode().split("/")
        self.by_key.setdefault(key, []).append(int(number))

    def end(self, message: StoredMessage) -> None:
        self._running.discard(message.queue_id)

    async def listen(self, messages: list[StoredMessage], *, work_s: float) -> None:
        self.begin(messages[0])
        await asyncio.sleep(work_s)
        self.end(messages[0])

    def ordered(self) -> bool:
        """Whether messages that were heard for the first time came in order."""
        return all(list(dict.fromkeys(found)) == sorted(set(found)) for found in self.by_key.values())

    @property
    def different(self) -> int:
        return sum(len(set(found)) for found in self.by_key.values())


async def send(producer: AsyncProducer, topic: str, begin: int, each: int) -> None:
    """Send messages of eight keys, those of a key one after the other."""

    async def of(key: int) -> None:
        for number in range(begin, begin + each):
            await producer.send(Message(topic, b"%d/%d" % (key, number)), key=f"key-{key}")

    await asyncio.gather(*map(of, range(8)))


def queue_count(consumer: AsyncPushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment())


@pytest.mark.mission("004-15")
async def test_members_come_and_go_and_every_message_is_heard_once_and_in_order(cluster: LocalCluster) -> None:
    topic, settings = made(cluster)
    heard = Heard()

    def member(name: str) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(instance_name=name, **settings)
        consumer.subscribe(topic)
        consumer.on_message(partial(heard.listen, work_s=0.002))

        return consumer

    async with AsyncProducer(group="P", nameserver=cluster.nameserver) as producer, member("first") as first:
        await send(producer, topic, 0, 5)
        async with member("second") as second:
            await soon(lambda: queue_count(first, topic) == queue_count(second, topic) == 2)
            await send(producer, topic, 5, 10)
        await send(producer, topic, 15, 5)
        await soon(lambda: heard.different == 160)

    assert (heard.calls, heard.overlaps, heard.ordered()) == (160, 0, True)


@pytest.mark.mission("004-15")
async def test_order_is_kept_over_a_broker_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "store") as cluster:
        topic, settings = made(cluster)
        heard = Heard()
        consumer = AsyncPushConsumer(**settings, pull_pause_ms=50)
        consumer.subscribe(topic)
        consumer.on_message(partial(heard.listen, work_s=0.005))

        async with AsyncProducer(group="P", nameserver=cluster.nameserver) as producer, consumer:
            await send(producer, topic, 0, 10)
            await soon(lambda: heard.calls > 10)
            await asyncio.to_thread(cluster.kill)
            await asyncio.to_thread(cluster.start)
            await send(producer, topic, 10, 5)
            await soon(lambda: heard.different == 120)

    assert (heard.overlaps, heard.ordered()) == (0, True)
    assert heard.calls <= 120 + 4  # what the listener had when the connection broke comes again, nothing else


def test_on_the_blocking_face_a_failure_holds_its_queue_and_no_other(cluster: LocalCluster) -> None:
    topic, settings = made(cluster)
    calls: list[tuple[str, int]] = []
    done = threading.Event()
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        queues = producer.queues(topic)
        for queue, body in ((queues[0], b"bad"), (queues[0], b"behind"), (queues[1], b"beside")):
            producer.send(Message(topic, body), queue=queue)
    consumer = PushConsumer(**settings, suspend_queue_ms=100)
    consumer.subscribe(topic)

    @consumer.on_message
    def listen(messages: list[StoredMessage]) -> ConsumeStatus | None:
        body, times = messages[0].body.decode(), messages[0].reconsume_times
        calls.append((body, times))
        if body == "bad" and times < 3:
            return ConsumeStatus.RECONSUME_LATER
        if body == "behind":
            done.set()
        return None

    with consumer:
        assert done.wait(60)
    assert [call for call in calls if call[0] != "beside"] == [("bad", 0), ("bad", 1), ("bad", 2), ("bad", 3), ("behind", 0)]
    assert calls.index(("beside", 0)) < calls.index(("bad", 3))


def test_a_message_that_fails_to_its_bound_is_in_the_dead_letters(cluster: LocalCluster) -> None:
    topic, settings = made(cluster)
    done = threading.Event()
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        for body in (b"bad", b"good"):
            producer.send(Message(topic, body), key="one")
    consumer = PushConsumer(**settings, suspend_queue_ms=10, reconsume_max=1)
    consumer.subscribe(topic)

    @consumer.on_message
    def listen(messages: list[StoredMessage]) -> None:
        if messages[0].body == b"bad":
            raise ValueError("never")
        done.set()

    with consumer:
        assert done.wait(60)
    with Admin(nameserver=cluster.nameserver) as admin:
        dead = admin.topic_stats(f"%DLQ%{settings['group']}")
    assert sum(each.max_offset for each in dead.values()) == 1


async def test_a_queue_stays_locked_when_a_consumer_closes_before_its_listener_is_done(cluster: LocalCluster) -> None:
    topic, settings = made(cluster)
    heard: list[bytes] = []
    free = asyncio.Event()
    free.set()

    def member(name: str, hold: asyncio.Event) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(instance_name=name, close_wait_ms=50, **settings)
        consumer.subscribe(topic)

        @consumer.on_message
        async def listen(messages: list[StoredMessage]) -> None:
            heard.append(messages[0].body)
            await hold.wait()

        return consumer

    async with AsyncProducer(group="P", nameserver=cluster.nameserver) as producer:
        queues = await producer.queues(topic)
        async with member("leaving", asyncio.Event()):
            await producer.send(Message(topic, b"held"), queue=queues[0])
            await soon(lambda: heard == [b"held"])
        async with member("next", free) as following:
            await soon(lambda: queue_count(following, topic) == 3)
            await producer.send(Message(topic, b"free"), queue=queues[1])
            await soon(lambda: heard[1:] == [b"free"])
            await asyncio.sleep(0.3)
            assert queue_count(following, topic) == 3
    assert heard == [b"held", b"free"]
