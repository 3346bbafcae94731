"""The clients against a real broker of ours on real sockets: the whole way of a message, asyncio and blocking."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from itertools import count, islice
from typing import Any

import pytest

from halfmoon import (
    Admin,
    AsyncAdmin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    ConsumeFrom,
    Message,
    MessageModel,
    MessageQueue,
    NoNameServer,
    NoRoute,
    Producer,
    PullConsumer,
    SendFailed,
    SendStatus,
    UsageError,
)
from halfmoon.errors import NotRunning, OffsetIllegal, TooManyRequests
from halfmoon.testing.local import LocalCluster
from tests.waiting import soon, until

FIRST = ConsumeFrom.FIRST_OFFSET
_numbers = count()


@pytest.fixture(scope="module")
def cluster(cluster: LocalCluster) -> LocalCluster:
    with Admin(nameserver=cluster.nameserver) as admin:
        until(lambda: "TBW102" in admin.topics())
    return cluster


@pytest.fixture
def names(cluster: LocalCluster) -> dict[str, Any]:
    number = next(_numbers)
    return {"nameserver": cluster.nameserver, "topic": f"topic_{number}", "group": f"group_{number}"}


@pytest.mark.mission("002-31", "002-32", "000-55")
async def test_messages_go_round_in_all_ways_of_sending(names):
    topic, at = names["topic"], names["nameserver"]
    told, got = [], []
    consumer = AsyncPushConsumer(group=names["group"], nameserver=at, consume_from=FIRST)
    consumer.subscribe(topic)

    @consumer.on_message
    async def handle(messages):
        got.extend(messages)

    async with AsyncProducer(group="P", nameserver=at) as producer, consumer:
        waited = await producer.send(Message(topic, b"waited", tag="A", keys=["k"], properties={"who": "me"}))
        future = producer.send_async(Message(topic, b"asynchronous"), lambda result, error: told.append((result, error)))
        assert (await future).status is SendStatus.SEND_OK
        await producer.send_oneway(Message(topic, b"oneway"))
        batch = await producer.send_batch([Message(topic, b"batch 1"), Message(topic, b"batch 2")])
        await producer.send(Message(topic, b"long" * 5_000), queue=MessageQueue(topic, "broker-a", 1))
        await soon(lambda: len(got) == 6)

    assert {message.body for message in got} == {
        b"waited", b"asynchronous", b"oneway", b"batch 1", b"batch 2", b"long" * 5_000,
    }  # fmt: skip
    first = next(message for message in got if message.body == b"waited")
    assert (first.msg_id, first.tag, first.keys, first.properties["who"]) == (waited.msg_id, "A", ("k",), "me")
    assert first.queue == waited.queue
    assert first.offset_msg_id == waited.offset_msg_id
    assert [message.msg_id for message in got if message.body.startswith(b"batch")] == batch.msg_id.split(",")
    assert [(result.status, error) for result, error in told] == [(SendStatus.SEND_OK, None)]
    assert next(message for message in got if len(message.body) > 10_000).queue_id == 1


@pytest.mark.mission("001-05", "001-09")
async def test_a_subscription_by_tags_gets_these_tags_only_hash_collisions_left_out(names):
    topic, at, got = names["topic"], names["nameserver"], []
    consumer = AsyncPushConsumer(group=names["group"], nameserver=at, consume_from=FIRST)
    consumer.subscribe(topic, "Aa || C")
    consumer.on_message(lambda messages: got.extend(messages))

    async with AsyncProducer(group="P", nameserver=at) as producer, consumer:
        for tag in ("Aa", "BB", "C", "D", None):
            await producer.send(Message(topic, b"x", tag=tag))
        await soon(lambda: len(got) == 2)

    assert {message.tag for message in got} == {"Aa", "C"}


async def test_a_message_is_there_within_milliseconds_of_its_sending(names):
    topic, at, got = names["topic"], names["nameserver"], asyncio.Event()
    consumer = AsyncPushConsumer(group=names["group"], nameserver=at, consume_from=FIRST)
    consumer.subscribe(topic)

    @consumer.on_message
    async def handle(messages):
        got.set()

    async with AsyncProducer(group="P", nameserver=at) as producer, consumer:
        await producer.send(Message(topic, b"first"))
        await asyncio.wait_for(got.wait(), 60)
        got.clear()
        await producer.send(Message(topic, b"second"))
        await asyncio.wait_for(got.wait(), 10)


async def test_progress_survives_the_consumer(names):
    topic, at, got = names["topic"], names["nameserver"], []

    async def consume(number: int) -> None:
        consumer = AsyncPushConsumer(group=names["group"], nameserver=at, consume_from=FIRST)
        consumer.subscribe(topic)
        consumer.on_message(lambda messages: got.extend(messages))
        async with consumer:
            await soon(lambda: len(got) >= number)

    async with AsyncProducer(group="P", nameserver=at) as producer:
        for i in range(5):
            await producer.send(Message(topic, b"%d" % i))
        await consume(5)
        await producer.send(Message(topic, b"5"))
        await consume(6)

    assert sorted(message.body for message in got) == [b"%d" % i for i in range(6)]


async def test_two_members_share_the_queues_and_each_broadcasting_one_gets_all(names, tmp_path):
    topic, at = names["topic"], names["nameserver"]

    def consumer(group: str, **values: Any) -> tuple[AsyncPushConsumer, list[Any]]:
        got: list[Any] = []
        found = AsyncPushConsumer(group=group, nameserver=at, consume_from=FIRST, rebalance_ms=500, **values)
        found.subscribe(topic)
        found.on_message(lambda messages: got.extend(messages))
        return found, got

    async with AsyncProducer(group="P", nameserver=at) as producer:
        await producer.send(Message(topic, b"x"))
        (one, _), (two, _) = consumer(names["group"]), consumer(names["group"])

        def share(member: AsyncPushConsumer) -> set[MessageQueue]:
            return {queue for queue in member.assignment() if queue.topic == topic}

        async with one, two:
            await soon(lambda: len(share(one)) == len(share(two)) == 2)
            assert share(one) | share(two) == set(await producer.queues(topic))
        broadcasting = {"model": MessageModel.BROADCASTING, "offsets_dir": str(tmp_path)}
        (three, got3), (four, got4) = (consumer(names["group"] + "b", **broadcasting, instance_name=f"i{i}") for i in range(2))
        async with three, four:
            await soon(lambda: len(got3) == len(got4) == 1)


async def test_a_pull_consumer_seeks_polls_and_commits(names):
    topic, at = names["topic"], names["nameserver"]
    queue = MessageQueue(topic, "broker-a", 0)
    async with AsyncProducer(group="P", nameserver=at) as producer:
        async with AsyncAdmin(nameserver=at) as admin:
            await admin.create_topic(topic, queue_count=1)
        for i in range(20):
            await producer.send(Message(topic, b"%d" % i), queue=queue)
        async with AsyncPullConsumer(group=names["group"], nameserver=at) as consumer:
            await consumer.assign([queue])
            await consumer.seek_to_begin(queue)
            assert [message.queue_offset for message in await consumer.poll(5_000)] == list(range(10))
            await consumer.seek(queue, 17)
            assert [message.body for message in await consumer.poll(5_000)] == [b"17", b"18", b"19"]
            with pytest.raises(OffsetIllegal):
                await consumer.seek(queue, 99)
            await consumer.commit()
        async with AsyncPullConsumer(group=names["group"], nameserver=at) as consumer:
            assert await consumer.committed(queue) == 20
            await consumer.assign([queue])
            await producer.send(Message(topic, b"20"), queue=queue)
            async for message in consumer:
                assert message.body == b"20"
                break


async def test_an_administrator_sees_and_changes_the_cluster(names, cluster):
    topic, group, at = names["topic"], names["group"], names["nameserver"]
    consumer = AsyncPushConsumer(group=group, nameserver=at, consume_from=FIRST)
    consumer.subscribe(topic)
    got: list[Any] = []
    consumer.on_message(lambda messages: got.extend(messages))
    async with AsyncAdmin(nameserver=at) as admin, AsyncProducer(group="P_admin", nameserver=at) as producer:
        await admin.create_topic(topic, queue_count=2)
        assert (await admin.topic_route(topic)).queue_datas[0].write_queue_nums == 2
        sent = [await producer.send(Message(topic, b"%d" % i, keys=[f"k{i}"])) for i in range(4)]
        async with consumer:
            await soon(lambda: len(got) == 4)
            assert [one.client_id for one in (await admin.consumer_connections(group)).connection_set] == [consumer.client_id]
            info = await admin.consumer_running_info(group, consumer.client_id)
            assert {queue.topic for queue in info.mq_table} >= {topic}
        assert await admin.lag(group, topic) == 0
        await admin.reset_offsets(group, topic, "earliest")
        assert await admin.lag(group, topic) == 4
        assert sum(one.max_offset for one in (await admin.topic_stats(topic)).values()) == 4
        assert topic in await admin.topics()
        assert group in await admin.groups()
        assert [message.body for message in await admin.messages_by_key(topic, "k2")] == [b"2"]
        assert (await admin.message_by_id(topic, sent[3].msg_id)).body == b"3"
        assert (await admin.message_by_offset_id(sent[1].offset_msg_id)).body == b"1"
        queue = sent[0].queue
        assert (await admin.min_offset(queue), await admin.max_offset(queue), await admin.search_offset(queue, 0)) == (0, 2, 0)
        await admin.put_kv("n", "k", "v")
        assert await admin.kv("n", "k") == "v"
        assert "brokerVersionDesc" in await admin.broker_runtime_info(cluster.broker)
        await admin.delete_topic(topic)
        assert topic not in await admin.topics()


@pytest.mark.parametrize("error", [False, True])
def test_ten_messages_and_a_break_after_three_leave_eight_for_the_next_one(names, error):
    topic, group, at = names["topic"], names["group"], names["nameserver"]
    with Producer(group="P", nameserver=at) as producer:
        queue = producer.queues(topic)[0]
        for i in range(10):
            producer.send(Message(topic, b"%d" % i), queue=queue)

    def worked_on(count: int) -> list[bytes]:
        found = []
        with PullConsumer(group=group, nameserver=at, consume_from=FIRST) as consumer:
            consumer.subscribe(topic)
            for message in consumer:
                found.append(message.body)
                if len(found) == count:
                    if error:
                        raise RuntimeError("the body fails")
                    break
        return found

    try:
        worked_on(3)
    except RuntimeError:
        pass
    error = False
    with Admin(nameserver=at) as admin:
        assert admin.lag(group, topic) == 8
    assert worked_on(8) == [b"%d" % i for i in range(2, 10)]


def test_one_step_after_the_other_gives_each_message_once_and_keeps_the_last_one_for_who_comes_next(names):
    topic, at = names["topic"], names["nameserver"]
    with Producer(group="P", nameserver=at) as producer:
        [queue, *_] = producer.queues(topic)
        for start in range(0, 200, 40):
            producer.send_batch([Message(topic, b"%d" % (start + i)) for i in range(40)], queue=queue)

    def bodies(count: int) -> list[bytes]:
        with PullConsumer(group=names["group"], nameserver=at, consume_from=FIRST) as consumer:
            consumer.subscribe(topic)
            return [message.body for message in islice(consumer, count)]

    assert bodies(45) == [b"%d" % i for i in range(45)]
    assert bodies(100) == [b"%d" % i for i in range(44, 144)]


async def test_a_seek_within_an_iteration_is_the_next_step(names):
    topic, at, found = names["topic"], names["nameserver"], []
    async with AsyncProducer(group="P", nameserver=at) as producer:
        queue = (await producer.queues(topic))[0]
        for i in range(10):
            await producer.send(Message(topic, b"%d" % i), queue=queue)
    async with AsyncPullConsumer(group=names["group"], nameserver=at, consume_from=FIRST) as consumer:
        consumer.subscribe(topic)
        async for message in consumer:
            found.append(int(message.body))
            if found == [0, 1, 2]:
                await consumer.seek(queue, 8)
            if len(found) == 5:
                break

    assert found == [0, 1, 2, 8, 9]


def test_what_threads_and_tasks_send_together_is_stored_once_each_where_its_result_says(names):
    topic, at, results, told = names["topic"], names["nameserver"], [], []
    bodies = [b"%d" % number for number in range(64)]
    with Producer(group="P", nameserver=at, linger_ms=20) as producer:
        producer.send(Message(topic, b"first"))
        waiting = [producer.send_async(Message(topic, body), lambda *outcome: told.append(outcome)) for body in bodies[:32]]
        threads = [threading.Thread(target=lambda b=b: results.append((b, producer.send(Message(topic, b))))) for b in bodies[32:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        results += zip(bodies, [future.result(60) for future in waiting])
    got = {}
    with PullConsumer(group=names["group"], nameserver=at, consume_from=FIRST) as puller:
        puller.subscribe(topic)
        while len(got) < 65:
            for message in puller.poll(timeout_ms=5_000):
                assert got.setdefault(message.body, message) is message, "stored twice"

    assert len(results) == 64
    assert sorted(result.msg_id for result, error in told if error is None) == sorted(one.msg_id for _, one in results[-32:])
    for body, result in results:
        stored = got[body]
        assert (stored.queue, stored.queue_offset) == (result.queue, result.queue_offset)
        assert (stored.msg_id, stored.offset_msg_id) == (result.msg_id, result.offset_msg_id)
    assert len({(result.queue, result.queue_offset) for _, result in results}) == 64


@pytest.mark.mission("002-33")
async def test_when_the_broker_is_gone_a_send_fails_and_nothing_is_stored(tmp_path):
    with LocalCluster(tmp_path / "data") as gone:
        with Admin(nameserver=gone.nameserver) as admin:
            until(lambda: "TBW102" in admin.topics())
        async with AsyncProducer(group="P", nameserver=gone.nameserver) as producer:
            await producer.send(Message("orders", b"stored"))
            gone.stop()
            with pytest.raises(SendFailed) as caught:
                await producer.send(Message("orders", b"lost"))
            assert caught.value.code == 10001
            assert len(caught.value.brokers) == 3


@pytest.mark.mission("000-39", "000-24")
async def test_a_send_whose_connection_was_lost_under_way_is_tried_again_and_stored_once_more_at_most(names):
    async with AsyncProducer(group="P", nameserver=names["nameserver"]) as producer:
        first = await producer.send(Message(names["topic"], b"first"))
        connection = next(iter(producer.driver.connections._connections.values()))

        sends = [asyncio.ensure_future(producer.send(Message(names["topic"], b"x"))) for _ in range(20)]
        cancelled = asyncio.ensure_future(producer.send(Message(names["topic"], b"y")))
        await asyncio.sleep(0)
        assert producer.driver.connections.in_flight == 21
        cancelled.cancel()
        connection.abort("a test")

        found = await asyncio.gather(*sends)
        assert {result.status for result in found} == {SendStatus.SEND_OK}
        assert len({result.msg_id for result in [first, *found]}) == 21
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert producer.driver.connections.in_flight == 0


async def test_what_cannot_be_says_so(names):
    at = names["nameserver"]
    with pytest.raises(NoNameServer):
        await AsyncProducer(group="P").start()
    with pytest.raises(UsageError, match="blank"):
        AsyncProducer(nameserver=at)
    with pytest.raises(NotRunning):
        await AsyncProducer(group="P", nameserver=at).send(Message("t", b"x"))
    async with AsyncProducer(group="P", nameserver=at, create_topic_key="nothing") as producer:
        with pytest.raises(NoRoute):
            await producer.send(Message("ghost", b"x"))
        with pytest.raises(UsageError, match="started once"):
            await producer.start()
    with pytest.raises(NotRunning):
        await producer.send(Message("t", b"x"))
    await producer.close()


async def test_asynchronous_sends_are_bounded(names, monkeypatch):
    monkeypatch.setattr("halfmoon.client.aio.ASYNC_MAX", 3)
    async with AsyncProducer(group="P", nameserver=names["nameserver"]) as producer:
        futures = [producer.send_async(Message(names["topic"], b"x")) for _ in range(3)]
        with pytest.raises(TooManyRequests, match="rejected"):
            producer.send_async(Message(names["topic"], b"x"))
        await asyncio.gather(*futures)
        assert (await producer.send_async(Message(names["topic"], b"x"))).status is SendStatus.SEND_OK


def _priced(messages: Any) -> None:
    raise KeyError("price")


async def _priced_async(messages: Any) -> None:
    raise KeyError("price")


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("listener", [_priced, _priced_async])
async def test_the_log_of_a_listener_that_raises_has_one_line_and_the_listeners_own_frames(names, caplog, listener, orderly):
    settings = {"group": names["group"], "nameserver": names["nameserver"], "consume_from": FIRST, "orderly": orderly}
    async with AsyncProducer(group="P", nameserver=names["nameserver"]) as producer:
        sent = await producer.send(Message(names["topic"], b"x"))
    consumer = AsyncPushConsumer(**settings)
    consumer.subscribe(names["topic"])
    consumer.on_message(listener)
    async with consumer:
        await soon(lambda: "KeyError" in caplog.text)

    (line,) = [entry for entry in caplog.records if entry.levelno == logging.ERROR]
    where = f"queue=broker-a:{sent.queue.queue_id} offset=0 message={sent.msg_id} try=1"
    assert line.getMessage().startswith(f"listener failed: group={names['group']} topic={names['topic']} {where}")
    assert [text for text in caplog.text.splitlines() if text.startswith("  File ")] == [
        f'  File "{__file__}", line {listener.__code__.co_firstlineno + 1}, in {listener.__name__}'
    ]


def _raising(result: Any, error: Any) -> None:
    raise KeyError("price")


async def _raising_async(result: Any, error: Any) -> None:
    raise KeyError("price")


@pytest.mark.parametrize("callback", [_raising, _raising_async])
async def test_a_callback_that_raises_is_logged_and_its_send_is_stored_all_the_same(names, caplog, callback):
    async with AsyncProducer(group="P", nameserver=names["nameserver"]) as producer:
        result = await producer.send_async(Message(names["topic"], b"x"), callback)
    with Producer(group="P", nameserver=names["nameserver"]) as producer:
        assert producer.send_async(Message(names["topic"], b"x"), callback).result(60).status is SendStatus.SEND_OK

    header = f"callback of a send failed: group=P topic={names['topic']} message="
    first, second = [entry.getMessage() for entry in caplog.records if entry.levelname == "ERROR"]
    assert first == f"{header}{result.msg_id}; the message is stored"
    assert second.startswith(header)
    assert "halfmoon/" not in caplog.text
    assert caplog.text.count("KeyError: 'price'") == 2


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(100)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("a broker", "{} is a broker, not a name server"),
        ("a web server", "connection to {} lost: it speaks HTTP, not RocketMQ's protocol (wrong port?)"),
        ("nobody", "connect to {} failed: Connection refused"),
    ],
)
async def test_a_wrong_port_of_a_name_server_is_one_line_with_the_address_the_reason_and_the_remedy(cluster, caplog, kind, reason):
    web = await asyncio.start_server(_refuse, "127.0.0.1", 0)
    port = web.sockets[0].getsockname()[1]
    address = {"a broker": cluster.broker, "a web server": f"127.0.0.1:{port}", "nobody": "127.0.0.1:1"}[kind]
    consumer = AsyncPushConsumer(group="C", nameserver=address)
    consumer.subscribe("orders")
    consumer.on_message(lambda messages: None)
    async with web, consumer:
        await asyncio.sleep(1.2)  # it asks again meanwhile, after 0.25 s and 0.75 s

    (line,) = [entry for entry in caplog.records if entry.levelno >= logging.WARNING]
    remedy = "check the address (port 9876 by default), that a name server runs there, and whether it requires TLS"
    assert line.getMessage() == f"C cannot consume orders: no name server answers: {reason.format(address)}; {remedy}; trying again"
    assert line.exc_info is None


async def test_a_send_that_fails_with_a_callback_is_left_to_the_callback_and_the_log_has_no_traceback(cluster, caplog):
    told = []
    async with AsyncProducer(group="P", nameserver=cluster.broker) as producer:
        producer.send_async(Message("orders", b"x"), lambda result, error: told.append(error))
        await soon(lambda: told)
        await asyncio.sleep(0.05)
        gc.collect()  # a task that nobody looked at says so when it is collected

    assert isinstance(told[0], NoRoute)
    assert "Traceback" not in caplog.text


@pytest.mark.filterwarnings("error")
async def test_an_asynchronous_send_that_is_cancelled_before_it_begins_leaves_nothing_behind(names):
    told = []
    async with AsyncProducer(group="P", nameserver=names["nameserver"]) as producer:
        first = await producer.send(Message(names["topic"], b"x"))
        future = producer.send_async(Message(names["topic"], b"never"), lambda result, error: told.append((result, error)))
        future.cancel()
        with pytest.raises(asyncio.CancelledError):
            await future
        second = await producer.send(Message(names["topic"], b"x"), queue=first.queue)

    assert second.queue_offset == first.queue_offset + 1
    assert not told


async def test_both_header_serialisations_work(names):
    async with AsyncProducer(group="P", nameserver=names["nameserver"], serialization="ROCKETMQ") as producer:
        assert (await producer.send(Message(names["topic"], b"x"))).status is SendStatus.SEND_OK
