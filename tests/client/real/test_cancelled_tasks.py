"""Clients of all kinds whose background tasks somebody else cancels: messages flow again, and the end is quiet."""

from __future__ import annotations

import asyncio
import threading
from itertools import count
from typing import Any

import pytest

from halfmoon import (
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConsumeFrom,
    LocalTransactionState,
    Message,
    MessageModel,
)
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from tests.topics import new_topic
from tests.waiting import soon

FIRST = ConsumeFrom.FIRST_OFFSET
_numbers = count()


@pytest.fixture(scope="module")
def broker_settings() -> dict[str, Any]:
    return {"messageDelayLevel": "1s 1s 1s 1s", "transactionCheckInterval": "200", "transactionTimeOut": "200"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(AsyncioDriver, "resume_s", 0.02)


class Flow:
    """A producer and a consumer; one of them is under test, and messages flow through both."""

    def __init__(self, cluster: Any, tmp_path: Any) -> None:
        self.names = {"nameserver": cluster.nameserver, "heartbeat_ms": 1_000}
        self.topic, self.group = new_topic(cluster.nameserver), f"G_cancelled_{next(_numbers)}"
        self.offsets_dir = str(tmp_path)
        self.got: list[bytes] = []
        self.sent = 0

    def producer(self, kind: type[Any] = AsyncProducer, **values: Any) -> Any:
        return kind(group=f"P_{self.group}", **self.names, **values)

    def listening(self, *, plain: bool = False, **values: Any) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(group=self.group, consume_from=FIRST, **self.names, **values)
        consumer.subscribe(self.topic)

        def listen(messages: Any) -> None:
            self.got.extend(message.body for message in messages)

        async def listens(messages: Any) -> None:
            listen(messages)

        consumer.on_message(listen if plain else listens)
        return consumer

    async def flows(self, producer: Any, consumer: Any) -> None:
        """Send a message in each way that the producer has, and wait until all have come."""
        wanted = [f"{self.sent} sent".encode()]
        await producer.send(Message(self.topic, wanted[0]))
        if isinstance(producer, AsyncTransactionProducer):
            wanted.append(f"{self.sent} checked".encode())
            (await producer.prepare(Message(self.topic, wanted[1]), check_after_s=0)).leave()
        self.sent += 1

        async def come() -> bool:
            if isinstance(consumer, AsyncPullConsumer):
                self.got += [message.body for message in await consumer.poll(timeout_ms=100)]
            return set(wanted) <= set(self.got)

        async with asyncio.timeout(60):
            while not await come():
                await asyncio.sleep(0.01)


PRODUCERS = {
    "plain": {},
    "traced": {"trace": True},
    "lingering": {"linger_ms": 5},
    "transactional": {"kind": AsyncTransactionProducer, "check": lambda message: LocalTransactionState.COMMIT},
}
CONSUMERS = {
    "concurrent": {},
    "in threads": {"plain": True},
    "traced": {"trace": True},
    "orderly": {"orderly": True},
    "broadcasting": {"model": MessageModel.BROADCASTING},
    "pulling": None,
}


async def cancelled_one_by_one_and_all(flow: Flow, producer: Any, consumer: Any) -> None:
    before = asyncio.all_tasks()
    for client in (consumer, producer):
        await client.start()
    await flow.flows(producer, consumer)
    mine = sorted({task.get_name() for task in asyncio.all_tasks() - before})
    for names in [*([name] for name in mine), mine]:
        tasks = [task for task in asyncio.all_tasks() - before if task.get_name() in names]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await flow.flows(producer, consumer)
    lasting = {name for name in mine if not name.startswith(("consume ", "watch ", "linger ", "greeting", "connect "))}
    await soon(lambda: {task.get_name() for task in asyncio.all_tasks() - before} >= lasting)
    assert lasting
    for client in (producer, consumer):
        await client.close()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("kind", PRODUCERS)
async def test_a_producer_goes_on_whichever_of_its_tasks_is_cancelled(kind, cluster, tmp_path):
    flow = Flow(cluster, tmp_path)
    producer = flow.producer(**PRODUCERS[kind])
    await cancelled_one_by_one_and_all(flow, producer, flow.listening())


@pytest.mark.parametrize("kind", CONSUMERS)
async def test_a_consumer_goes_on_whichever_of_its_tasks_is_cancelled(kind, cluster, tmp_path):
    flow = Flow(cluster, tmp_path)
    values = CONSUMERS[kind]
    if values is None:
        consumer: Any = AsyncPullConsumer(group=flow.group, consume_from=FIRST, **flow.names)
        consumer.subscribe(flow.topic)
    else:
        more = {"offsets_dir": str(tmp_path)} if "model" in values else {}
        consumer = flow.listening(**values, **more)
    await cancelled_one_by_one_and_all(flow, flow.producer(), consumer)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_message_whose_listener_is_cancelled_is_consumed_all_the_same(orderly, cluster, tmp_path):
    flow, begun = Flow(cluster, tmp_path), []
    consumer = flow.listening(orderly=orderly, suspend_queue_ms=20)

    @consumer.on_message
    async def listens(messages: Any) -> None:
        begun.append(messages[0].body)
        if len(begun) == 1:
            await asyncio.Event().wait()
        flow.got.extend(message.body for message in messages)

    async with flow.producer() as producer, consumer:
        await producer.send(Message(flow.topic, b"the first"))
        await soon(lambda: begun)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await flow.flows(producer, consumer)
        await soon(lambda: b"the first" in flow.got)

    assert begun.count(b"the first") == 2


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_plain_listener_that_is_at_work_while_all_tasks_are_cancelled_is_called_once(orderly, cluster, tmp_path):
    flow, begun, gate = Flow(cluster, tmp_path), [], threading.Event()
    consumer = flow.listening(orderly=orderly, suspend_queue_ms=20)

    @consumer.on_message
    def listens(messages: Any) -> None:
        begun.extend(message.body for message in messages)
        gate.wait(60)
        flow.got.extend(message.body for message in messages)

    async with flow.producer() as producer, consumer:
        await producer.send(Message(flow.topic, b"the first"))
        await soon(lambda: begun)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        gate.set()
        await flow.flows(producer, consumer)

    assert sorted(begun) == sorted(flow.got) == [b"0 sent", b"the first"]
