"""Our client against Apache's published brokers 4.7.1, 4.9.7 and 5.3.3, and, with the same words, against our own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.aio import AsyncProducer, AsyncPullConsumer
from halfmoon.client.sync import Producer, PullConsumer, PushConsumer
from halfmoon.errors import BrokerError, ConsumerNotOnline, MessageIllegal, OffsetIllegal
from halfmoon.model import ConsumeFrom, Message, MessageModel, MessageQueue, SendStatus, StoredMessage
from tests.interop.apache import Cluster
from tests.interop.ours import Serve
from tests.interop.servers import running

BROKERS = [
    pytest.param("4.9.7", marks=pytest.mark.mission("000-01")),
    pytest.param("5.3.3"),
    pytest.param("4.7.1", marks=pytest.mark.mission("000-01")),
    pytest.param("ours"),
]
_NUMBERS = count(1)


@pytest.fixture(scope="module", params=BROKERS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve | Cluster]:
    with running(request.param, tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture
def settings(server: Serve | Cluster) -> dict[str, Any]:
    number = next(_NUMBERS)
    return {"nameserver": server.nameserver, "group": f"group-{number}", "instance_name": f"test-{number}"}


@pytest.fixture
def admin(server: Serve | Cluster) -> Iterator[Admin]:
    with Admin(nameserver=server.nameserver) as found:
        yield found


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"Client{next(_NUMBERS)}"
    admin.create_topic(name, queue_count=2)
    wait_for(lambda: bool(admin.topic_route(name).queue_datas))
    return name


def wait_for(ready: Callable[[], bool], timeout_s: float = 60) -> None:
    """Wait until something holds; a refusal counts as not yet."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        try:
            if ready():
                return
        except BrokerError:
            pass
        time.sleep(0.02)
    raise AssertionError("it never came")


def keep(bodies: list[bytes], messages: list[StoredMessage]) -> None:
    """A listener that keeps what it hears."""
    bodies += [message.body for message in messages]


def drain(consumer: PullConsumer, message_count: int, timeout_s: float = 60) -> list[StoredMessage]:
    """Poll until so many messages came."""
    found: list[StoredMessage] = []
    end = time.monotonic() + timeout_s
    while len(found) < message_count and time.monotonic() < end:
        found += consumer.poll(200)
    return found


@pytest.mark.parametrize("serialization", ["JSON", "ROCKETMQ"])
def test_what_is_sent_in_every_way_is_received_whole(settings: dict[str, Any], topic: str, serialization: str) -> None:
    settings["serialization"] = serialization
    message = Message(topic, b"sync", tag="a", keys=["k1", "k2"], properties={"colour": "blau \xe9"}, flag=7)
    with Producer(**settings) as producer, PullConsumer(**settings | {"instance_name": "other"}) as consumer:
        result = producer.send(message)
        later = [producer.send_async(Message(topic, f"async {i}".encode())) for i in range(5)]
        statuses = {future.result(60).status for future in later}
        batch = producer.send_batch([Message(topic, f"batch {i}".encode()) for i in range(5)])
        producer.send_oneway(Message(topic, b"oneway"))
        chosen = producer.send(Message(topic, b"chosen"), selector=lambda queues, _, key: queues[key % len(queues)], key=1)
        consumer.assign(consumer.queues(topic))
        for queue in consumer.assignment():
            consumer.seek_to_begin(queue)
        received = {m.body.decode(): m for m in drain(consumer, 13)}

    assert {result.status, batch.status, chosen.status, *statuses} == {SendStatus.SEND_OK}
    assert sorted(received) == sorted(["sync", "oneway", "chosen", *(f"{way} {i}" for way in ("async", "batch") for i in range(5))])
    found = received["sync"]
    assert (found.tag, found.keys, found.flag, found.properties["colour"]) == ("a", ("k1", "k2"), 7, "blau \xe9")
    assert (found.queue, found.queue_offset) == (result.queue, result.queue_offset)
    assert (found.msg_id, found.offset_msg_id) == (result.msg_id, result.offset_msg_id)
    assert received["chosen"].queue_id == 1
    assert batch.queue_offset == received["batch 0"].queue_offset


@pytest.mark.parametrize("size_bytes", [1, 4097, 1 << 20])
def test_a_body_comes_back_as_it_was_compressed_or_not(settings: dict[str, Any], topic: str, size_bytes: int) -> None:
    body = (b"all work and no play " * (size_bytes // 20 + 1))[:size_bytes]
    with Producer(**settings) as producer, PullConsumer(**settings | {"instance_name": "other"}) as consumer:
        producer.send(Message(topic, body))
        consumer.assign(consumer.queues(topic))
        for queue in consumer.assignment():
            consumer.seek_to_begin(queue)
        received = drain(consumer, 1)

    assert [m.body for m in received] == [body]


def test_a_push_consumer_gets_the_tags_it_wants(settings: dict[str, Any], topic: str) -> None:
    received: list[StoredMessage] = []
    consumer = PushConsumer(**settings, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic, "a || AaAa")
    consumer.on_message(received.extend)
    with Producer(**settings | {"instance_name": "other"}) as producer:
        for tag in ("a", "b", "AaAa", "BBBB"):
            producer.send(Message(topic, tag.encode(), tag=tag))
        with consumer:
            wait_for(lambda: len(received) >= 2)
            producer.send(Message(topic, b"late", tag="a"))
            wait_for(lambda: len(received) >= 3)

    assert sorted(m.body for m in received) == [b"AaAa", b"a", b"late"]


def test_a_group_goes_on_where_it_was(settings: dict[str, Any], topic: str, admin: Admin) -> None:
    with Producer(**settings | {"instance_name": "other"}) as producer:
        for i in range(10):
            producer.send(Message(topic, f"m {i}".encode()))
        with PullConsumer(**settings, consume_from=ConsumeFrom.FIRST_OFFSET, auto_commit=False) as first:
            first.subscribe(topic)
            one = drain(first, 10)
            first.commit()
        producer.send(Message(topic, b"m 10"))
        wait_for(lambda: admin.lag(settings["group"], topic) == 1)
        with PullConsumer(**settings, auto_commit=False) as second:
            second.subscribe(topic)
            two = drain(second, 1)

    assert sorted(m.body for m in one) == sorted(f"m {i}".encode() for i in range(10))
    assert [m.body for m in two] == [b"m 10"]


def test_a_pull_consumer_seeks_and_refuses_what_is_not_there(settings: dict[str, Any], topic: str) -> None:
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(**settings | {"instance_name": "other"}) as producer, PullConsumer(**settings) as consumer:
        for i in range(5):
            producer.send(Message(topic, str(i).encode()), queue=queue)
        consumer.assign([queue])
        consumer.seek(queue, 3)
        tail = drain(consumer, 2)
        consumer.seek_to_begin(queue)
        again = drain(consumer, 5)
        at = consumer.offset_for_timestamp(queue, again[2].store_ms)
        with pytest.raises(OffsetIllegal):
            consumer.seek(queue, 99)

    assert [m.body for m in tail] == [b"3", b"4"]
    assert [m.queue_offset for m in again] == [0, 1, 2, 3, 4]
    assert again[at].store_ms == again[2].store_ms


def test_every_member_of_a_broadcast_group_gets_everything(settings: dict[str, Any], topic: str, tmp_path: Any) -> None:
    heard: dict[str, list[bytes]] = {"one": [], "two": []}
    members = []
    for name, bodies in heard.items():
        member = PushConsumer(
            **settings | {"instance_name": name},
            model=MessageModel.BROADCASTING, consume_from=ConsumeFrom.FIRST_OFFSET, offsets_dir=str(tmp_path / name),
        )  # fmt: skip
        member.subscribe(topic)
        member.on_message(partial(keep, bodies))
        members.append(member)
    with members[0], members[1], Producer(**settings | {"instance_name": "other"}) as producer:
        for i in range(6):
            producer.send(Message(topic, str(i).encode()))
        wait_for(lambda: all(len(bodies) >= 6 for bodies in heard.values()))

    assert [sorted(bodies) for bodies in heard.values()] == [[str(i).encode() for i in range(6)]] * 2


def test_two_members_share_the_queues_at_once(settings: dict[str, Any], topic: str) -> None:
    members = [PushConsumer(**settings | {"instance_name": name}) for name in ("one", "two")]
    for member in members:
        member.subscribe(topic)
        member.on_message(lambda messages: None)
    begin = time.monotonic()
    with members[0], members[1]:
        wait_for(lambda: [sum(q.topic == topic for q in m.assignment()) for m in members] == [1, 1])
        elapsed_s = time.monotonic() - begin

    assert elapsed_s < 15, "a notice tells the first member, not its own timer of 20 s"


def test_an_administrator_sees_topics_groups_and_messages(settings: dict[str, Any], topic: str, admin: Admin) -> None:
    seen = threading.Event()
    consumer = PushConsumer(**settings, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic)
    consumer.on_message(lambda messages: seen.set())
    with consumer, Producer(**settings | {"instance_name": "other"}) as producer:
        result = producer.send(Message(topic, b"body", keys=["the-key"]))
        assert seen.wait(60)
        wait_for(lambda: len(admin.messages_by_key(topic, "the-key")) == 1)
        by_key = admin.messages_by_key(topic, "the-key")
        by_id = admin.message_by_id(topic, result.msg_id)
        by_offset = admin.message_by_offset_id(result.offset_msg_id)
        stats = admin.topic_stats(topic)
        member = admin.consumer_connections(settings["group"])
        address = next(iter(admin.topic_route(topic).broker_datas[0].broker_addrs.values()))

        assert [m.body for m in (*by_key, by_id, by_offset)] == [b"body"] * 3
        assert stats[result.queue].max_offset == 1
        assert [c.client_id for c in member.connection_set] == [consumer.client_id]
        assert topic in admin.topics()
        assert (admin.min_offset(result.queue), admin.max_offset(result.queue)) == (0, 1)
        # Apache's broker fails on this request for its first second, until it has taken a sample of its rates
        wait_for(lambda: int(admin.broker_runtime_info(address)["putMessageTimesTotal"].split(".")[0]) >= 1)
        assert admin.broker_config(address)["brokerName"] == "broker-a"
    admin.delete_topic(topic)
    wait_for(lambda: topic not in admin.topics())
    with pytest.raises((ConsumerNotOnline, BrokerError)):
        admin.consumer_connections("nobody-" + settings["group"])


def test_the_name_server_keeps_values(settings: dict[str, Any], admin: Admin) -> None:
    admin.put_kv("INTEROP", settings["group"], "value")
    found = admin.kv("INTEROP", settings["group"])
    admin.delete_kv("INTEROP", settings["group"])

    assert found == "value"
    assert admin.kv("INTEROP", settings["group"]) is None


def test_a_topic_is_made_by_the_first_send(settings: dict[str, Any]) -> None:
    name = f"Made{next(_NUMBERS)}"
    with Producer(**settings) as producer:
        result = producer.send(Message(name, b"first"))

    assert (result.status, result.queue.topic, result.queue_offset) == (SendStatus.SEND_OK, name, 0)


def test_a_message_too_large_is_refused_before_it_is_sent(settings: dict[str, Any], topic: str) -> None:
    with Producer(**settings) as producer, pytest.raises(MessageIllegal, match="4194304"):
        producer.send(Message(topic, bytes(4_194_305)))


async def test_the_asyncio_client_does_the_same(settings: dict[str, Any], topic: str) -> None:
    async with AsyncProducer(**settings) as producer, AsyncPullConsumer(**settings | {"instance_name": "other"}) as consumer:
        results = await asyncio.gather(*(producer.send(Message(topic, str(i).encode())) for i in range(20)))
        await consumer.assign(await consumer.queues(topic))
        for queue in consumer.assignment():
            await consumer.seek_to_begin(queue)
        received: list[bytes] = []
        while len(received) < 20:
            received += [m.body for m in await consumer.poll(5_000)]

    assert {r.status for r in results} == {SendStatus.SEND_OK}
    assert sorted(received) == sorted(str(i).encode() for i in range(20))
