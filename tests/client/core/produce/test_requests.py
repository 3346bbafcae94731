"""Request-reply against a broker of ours: the reply reaches who asked, once, in time, or it is said why not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from halfmoon import Admin, AsyncProducer, ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, StoredMessage
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.produce import requests as requests_module
from halfmoon.client.core.produce.requests import Requests
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.settings import ProducerSettings, settings_of
from halfmoon.errors import RequestTimeout, SendFailed, TooManyRequests, UsageError
from halfmoon.model import MessageQueue
from halfmoon.testing.local import LocalCluster
from halfmoon.wire import properties
from halfmoon.wire.command import request_command
from halfmoon.wire.headers.client import HeartBeat
from halfmoon.wire.headers.route import GetRouteinfoByTopic
from halfmoon.wire.headers.send import PushReplyMessageToClient, SendMessageV2
from halfmoon.wire.ids import UniqueIds
from tests.client.scripted import SILENT, Reply, Scripted, Seen, Task, route, routes, stored
from tests.waiting import until

TOPIC = "requests"
QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("requests") / "store") as running:
        with Admin(nameserver=running.nameserver) as admin:
            admin.create_topic(TOPIC, queue_count=2)
        yield running


@pytest.fixture
def asker(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(group="P_asker", nameserver=cluster.nameserver) as running:
        yield running


@pytest.fixture
def replier(cluster: LocalCluster) -> Iterator[Producer]:
    with Producer(group="P_replier", nameserver=cluster.nameserver) as running:
        yield running


@pytest.fixture(scope="module")
def capitals(cluster: LocalCluster) -> Iterator[list[StoredMessage]]:
    """Somebody who replies to every request but ``silence`` with its body in capitals; the requests are kept."""
    got: list[StoredMessage] = []
    consumer = PushConsumer(group="C_capitals", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(TOPIC)
    with Producer(group="P_capitals", nameserver=cluster.nameserver) as producer:

        @consumer.on_message
        def listen(messages: list[StoredMessage]) -> None:
            for message in messages:
                got.append(message)
                if message.body != b"silence":
                    producer.reply(message, message.body.upper())

        with consumer:
            yield got


def test_a_request_returns_the_reply(asker: Producer, capitals: list[StoredMessage]) -> None:
    message = Message(TOPIC, b"first", tag="A", keys=["k"], properties={"who": "me"})
    reply = asker.request(message, timeout_ms=20_000)

    assert (reply.body, reply.topic) == (b"FIRST", "DefaultCluster_REPLY_TOPIC")
    assert message.properties == {"who": "me"}  # what the protocol needs is not written into the caller's message
    [request] = [each for each in capitals if each.body == b"first"]
    assert (request.tag, request.keys, request.properties["who"]) == ("A", ("k",), "me")


def test_many_requests_at_once_each_get_their_own_reply(cluster: LocalCluster, capitals: list[StoredMessage]) -> None:
    async def ask() -> list[StoredMessage]:
        async with AsyncProducer(group="P_many", nameserver=cluster.nameserver) as producer:
            asked = [producer.request(Message(TOPIC, b"many %d" % i), timeout_ms=20_000) for i in range(100)]
            return await asyncio.gather(*asked)

    assert [reply.body for reply in asyncio.run(ask())] == [b"MANY %d" % i for i in range(100)]


def test_large_bodies_are_compressed_on_both_ways(asker: Producer, capitals: list[StoredMessage]) -> None:
    body = b"large " * 50_000
    assert asker.request(Message(TOPIC, body), timeout_ms=20_000).body == body.upper()


def test_a_request_without_a_reply_says_that_it_was_sent_and_waits_no_more(asker: Producer, capitals: list[StoredMessage]) -> None:
    with pytest.raises(RequestTimeout, match="was sent to topic requests, but no reply came within 300 ms"):
        asker.request(Message(TOPIC, b"silence"), timeout_ms=300)
    assert asker._client._requests._waiting == {}


def test_a_request_that_is_cancelled_waits_no_more(cluster: LocalCluster, capitals: list[StoredMessage]) -> None:
    async def ask() -> dict[str, object]:
        async with AsyncProducer(group="P_cancel", nameserver=cluster.nameserver) as producer:
            task = asyncio.create_task(producer.request(Message(TOPIC, b"silence"), timeout_ms=60_000))
            while not producer._requests._waiting:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return dict(producer._requests._waiting)

    assert asyncio.run(ask()) == {}


def test_a_message_that_is_no_request_cannot_be_replied_to(cluster: LocalCluster, replier: Producer) -> None:
    replier.send(Message("plain", b"x"))
    with PullConsumer(group="C_plain", nameserver=cluster.nameserver, consume_from=ConsumeFrom.FIRST_OFFSET) as consumer:
        consumer.subscribe("plain")
        [plain] = consumer.poll(timeout_ms=20_000)
        with pytest.raises(UsageError, match="is no request: it has no CORRELATION_ID and no REPLY_TO_CLIENT"):
            replier.reply(plain, b"y")


def test_a_reply_that_comes_late_is_taken_and_one_to_who_is_gone_is_refused(
    cluster: LocalCluster, replier: Producer, capitals: list[StoredMessage]
) -> None:
    with Producer(group="P_gone", nameserver=cluster.nameserver) as asker:
        before = len(capitals)
        with pytest.raises(RequestTimeout):
            asker.request(Message(TOPIC, b"silence"), timeout_ms=200)
        until(lambda: len(capitals) > before)
        replier.reply(capitals[-1], b"late")  # its client is there, and nobody waits: no error for who replies
    with pytest.raises(SendFailed, match="not found") as refused:
        replier.reply(capitals[-1], b"later")
    assert refused.value.code == 1


def test_too_many_requests_are_refused(asker: Producer, capitals: list[StoredMessage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "WAITING_MAX", 1)

    def wait() -> None:
        with suppress(RequestTimeout):
            asker.request(Message(TOPIC, b"silence"), timeout_ms=1000)

    waits = threading.Thread(target=wait)
    waits.start()
    until(lambda: bool(asker._client._requests._waiting))
    with pytest.raises(TooManyRequests):
        asker.request(Message(TOPIC, b"one more"))
    waits.join()


# ---------------------------------------------------------------- brokers that do not know us yet


class Asker:
    """A producer of the scripted world whose requests are replied to as soon as they are sent; ``broker-b`` is silent."""

    def __init__(self) -> None:
        self.script = script = Scripted()
        settings = settings_of(ProducerSettings, {"group": "P", "nameserver": "ns:9876"})
        self.instance = Instance(settings, "10.0.0.1@1", Random(7))
        self.instance.producer_group = "P"
        sender = Sender(settings, self.instance.routes, UniqueIds(b"\x0a\0\0\1", 1, Random(7)))
        sender.running = True
        self.requests = Requests(sender, self.instance)
        script.on(GetRouteinfoByTopic, routes(orders=route({"broker-a": 1, "broker-b": 1})))
        script.on(HeartBeat, lambda seen: SILENT if seen.address.startswith("broker-b") else Reply(ms=1))
        script.on(SendMessageV2, self.sent)

    def sent(self, seen: Seen) -> Reply | Exception:
        asked = properties.decode(seen.request.properties.encode())
        push = PushReplyMessageToClient(
            producer_group="R", topic="T", default_topic="", default_topic_queue_nums=0, queue_id=0, sys_flag=0, born_timestamp=0,
            flag=0, properties=properties.encode({"CORRELATION_ID": asked["CORRELATION_ID"]}).decode(), reconsume_times=0,
            unit_mode=False, born_host="10.0.0.1:1", store_host="10.0.0.1:1", store_timestamp=0,
        )  # fmt: skip
        self.instance.asked(seen.address, request_command(push, b"reply", opaque=1))
        return stored()(seen)

    def request(self) -> Task:
        """Start a request to the broker that can be reached, with three seconds."""
        return self.script.spawn(self.requests.request(Message("orders", b"x"), queue=QUEUE, timeout_ms=3_000))


def test_one_broker_that_does_not_answer_makes_the_first_requests_wait_half_of_their_time_and_later_ones_not_at_all() -> None:
    asker = Asker()

    first = [asker.request() for _ in range(100)]
    asker.script.run_for(1_400)
    assert not any(each.done for each in first)
    asker.script.run_for(200)
    assert [each.value.body for each in first] == [b"reply"] * 100
    assert len(asker.script.asked(HeartBeat)) == 2, "one round for all"

    asker.script.run_for(5_000)
    later = asker.request()
    asker.script.run_for(100)
    assert later.value.body == b"reply"
    assert len(asker.script.asked(HeartBeat)) == 2


def test_a_request_that_is_cancelled_leaves_the_heartbeats_to_those_that_wait_for_them() -> None:
    asker = Asker()
    asker.script.on(HeartBeat, Reply(ms=500))
    first, second = asker.request(), asker.request()
    asker.script.run_for(100)

    first.cancel()
    asker.script.run_for(600)

    assert second.value.body == b"reply"
    assert len(asker.script.asked(HeartBeat)) == 2
