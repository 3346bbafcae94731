"""The asyncio API: producers, consumers and administration. Thin: joins the operations of `halfmoon.client.core` to the shell.

`halfmoon.client.sync` is generated from this file by ``tools/generate_sync.py``; run it after every change here. For the generator,
each public method is one of: a coroutine, a plain function, or one that returns an asyncio.Future.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from inspect import isgenerator
from typing import Any, Generic, TypeVar

from halfmoon.client.core.admin import AdminCore
from halfmoon.client.core.find import message_by_id, message_by_offset_id, messages_by_key
from halfmoon.client.core.instance import Instance, client_id
from halfmoon.client.core.names import check_group
from halfmoon.client.core.offsets import LocalOffsets, RemoteOffsets
from halfmoon.client.core.poll import PollCore
from halfmoon.client.core.pull import max_offset, min_offset, offset_at
from halfmoon.client.core.push import PushCore
from halfmoon.client.core.rebalance import Strategy
from halfmoon.client.core.send import Selector, Sender
from halfmoon.client.files import OffsetsOnDisk
from halfmoon.client.settings import (
    AdminSettings,
    ClientSettings,
    ConsumerSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    settings_of,
)
from halfmoon.effects import Op, run
from halfmoon.errors import NoNameServer, NotRunning, UsageError
from halfmoon.model import Message, MessageModel, MessageQueue, SendResult, StoredMessage
from halfmoon.shell.aio import Connections, local_ip
from halfmoon.shell.clock import Clock
from halfmoon.shell.drive import THREADS, Driver
from halfmoon.wire.bodies import (
    ClusterInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicRouteData,
)
from halfmoon.wire.codes import JSON, ROCKETMQ
from halfmoon.wire.command import Command
from halfmoon.wire.ids import UniqueIds, pack_ip

S = TypeVar("S", bound=ClientSettings)
T = TypeVar("T")
Callback = Callable[[SendResult | None, Exception | None], Any]
"""Told of an asynchronous send's result or its error. A plain function runs in a thread."""

CLOSE_TIMEOUT_S = 10.0
"""Closing gives up on brokers that do not answer after this."""


class _AsyncClient(Generic[S]):
    """What all clients share: connections, a driver, an instance, and the way from start to close."""

    def __init__(self, settings: S, *, stable_id: bool = False, threads: int = THREADS) -> None:
        if not settings.nameserver and (known := os.environ.get("NAMESRV_ADDR", "")):
            settings = settings_of(type(settings), {**_values(settings), "nameserver": known})
        self.settings = settings
        ip = local_ip(settings.nameserver.split(";")[0] or None)
        process = f"{os.getpid()}#{time.monotonic_ns() + random.SystemRandom().randrange(1000)}"
        self.client_id = client_id(ip, settings, process, stable=stable_id)
        self._instance = Instance(settings, self.client_id, random.Random())
        self._ids = UniqueIds(pack_ip(ip), os.getpid(), random.Random())
        self._clock = Clock()
        self._threads = threads
        self._driver: Driver | None = None
        self._state = "new"

    async def start(self) -> None:
        """Open for business: find routes, show the client to the brokers, begin what runs beside. Once in a life."""
        if self._state != "new":
            raise UsageError(f"The {type(self).__name__} service state not OK, maybe started once")
        if not self.settings.nameserver:
            raise NoNameServer("No name server address, please set it.")
        self._state = "starting"
        serialization = ROCKETMQ if self.settings.serialization == "ROCKETMQ" else JSON
        self._driver = Driver(Connections(self._asked, serialization=serialization), self._clock, threads=self._threads)
        try:
            await self._begin(self._driver)
        except BaseException:
            await self._end()
            raise
        self._state = "running"

    async def close(self) -> None:
        """Finish what is under way, leave the brokers, close all connections. Closing again does nothing."""
        if self._state != "running":
            return
        self._state = "closing"
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._finish(self._running())
        except TimeoutError:
            pass
        finally:
            await self._end()

    async def __aenter__(self) -> Any:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _begin(self, driver: Driver) -> None:
        raise NotImplementedError

    async def _finish(self, driver: Driver) -> None:
        raise NotImplementedError

    async def _end(self) -> None:
        self._state = "closed"
        if self._driver is not None:
            await self._driver.close()
            await self._driver.connections.close()

    def _running(self) -> Driver:
        if self._driver is None or self._state == "closed":
            raise NotRunning(f"The {type(self).__name__} is not running: start it first, and use it before it is closed")
        return self._driver

    async def _run(self, operation: Op[T]) -> T:
        return await self._running().run(operation)

    def _asked(self, address: str, command: Command) -> Any:
        answer = self._instance.asked(address, command)
        return self._running().run(answer) if isgenerator(answer) else answer


class AsyncProducer(_AsyncClient[ProducerSettings]):
    """Sends messages.

    ::

        async with AsyncProducer(group="P_shop", nameserver="127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"paid", tag="A", keys=["k1"]))

    Settings are those of `halfmoon.client.settings.ProducerSettings`, by keyword. May be shared by everything that sends.
    """

    def __init__(self, settings: ProducerSettings | None = None, **values: Any) -> None:
        found = settings_of(ProducerSettings, {**(_values(settings) if settings else {}), **values})
        check_group(found.group, "DEFAULT_PRODUCER")
        super().__init__(found)
        self._sender = Sender(found, self._instance.routes, self._ids)
        self._instance.producer_group = self._sender.group

    async def _begin(self, driver: Driver) -> None:
        self._sender.running = True
        for operation in self._instance.tend():
            driver.spawn(operation, "producer")

    async def _finish(self, driver: Driver) -> None:
        self._sender.running = False
        await driver.run(self._instance.leave())

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait until a broker stored the message; others are tried when one fails, within ``timeout_ms`` in all.

        With ``queue``, or the queue that ``selector(queues, message, key)`` returns, there is one attempt. A result with another
        status than SEND_OK is stored too, but a promise of the broker (flush, slave) was not kept in time.

        Raises:
            MessageIllegal, UsageError: the message cannot be sent; nothing was.
            NoRoute: no broker for the topic.
            BrokerError: a broker refused with a code that is not worth another try.
            SendFailed: every attempt failed; the message may have been stored if an answer was lost (see ``code`` and ``cause``).
            TooManyRequests: the time was over before an attempt could be made.
            NotRunning: not started, or closed.
        """
        return await self._run(self._sender.send(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))

    def send_async(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Begin a send and return at once; the future gives the result, and ``callback(result, error)`` is told of it.

        Only failures of the network are tried again; a broker's refusal is reported at once.
        """
        operation = self._sender.send_async(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)
        return asyncio.ensure_future(self._send_then_tell(operation, callback))

    async def _send_then_tell(self, operation: Op[SendResult], callback: Callback | None) -> SendResult:
        if callback is None:
            return await self._run(operation)
        try:
            result = await self._run(operation)
        except Exception as exc:
            await self._run(run(callback, None, exc))
            raise
        await self._run(run(callback, result, None))
        return result

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: Any = None
    ) -> None:
        """Hand a message to the network without asking for an answer: fast, and lost without a word when something fails."""
        await self._run(self._sender.send_oneway(message, queue=queue, selector=selector, key=key))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic as one request, at most ``body_bytes_max`` bytes together; one queue takes them all."""
        return await self._run(self._sender.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        return await self._run(self._sender.queues(topic))


class AsyncPushConsumer(_AsyncClient[PushSettings]):
    """Hands messages to a listener as they come.

    ::

        consumer = AsyncPushConsumer(group="C_shop", nameserver="127.0.0.1:9876", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "A || B")

        @consumer.on_message
        async def handle(messages): ...

        async with consumer: ...

    The listener returns nothing or CONSUME_SUCCESS when the messages are consumed; RECONSUME_LATER or an exception has them
    delivered again later. It may take a second argument, a `ConsumeContext`. Plain functions run in up to ``threads`` threads.
    """

    def __init__(self, settings: PushSettings | None = None, *, allocate: Strategy | None = None, **values: Any) -> None:
        found = settings_of(PushSettings, {**(_values(settings) if settings else {}), **values})
        check_group(found.group, "DEFAULT_CONSUMER")
        super().__init__(found, stable_id=found.model is MessageModel.BROADCASTING, threads=found.threads)
        self._core = PushCore(found, self._instance, _offsets(found, self._instance), self._ids, allocate)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic: all (``*``), those with one of some tags (``A || B``), or by an SQL92 expression."""
        self._core.subscribe(topic, expression, expression_type, version=self._clock.now())

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._core.unsubscribe(topic)

    def on_message(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Set the listener; may be used as a decorator."""
        self._core.on_message(listener)
        return listener

    def suspend(self) -> None:
        """Pull nothing until `resume`; what was pulled is still handed over."""
        self._core.paused = True

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._core.paused = False

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours now, those of redeliveries included."""
        return sorted(self._core.user_queue(queue) for queue in self._core.held)

    async def _begin(self, driver: Driver) -> None:
        await driver.run(self._core.start())
        for operation in self._core.tend():
            driver.spawn(operation, f"consumer {self.settings.group}")

    async def _finish(self, driver: Driver) -> None:
        await driver.run(self._core.stop())


class AsyncPullConsumer(_AsyncClient[PullSettings]):
    """Gives messages when asked, in the manner of RocketMQ's lite pull consumer.

    ::

        async with AsyncPullConsumer(group="C_shop", nameserver="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")                # queues shared out by the group, or: await consumer.assign(queues)
            messages = await consumer.poll(timeout_ms=1000)
            await consumer.commit()

    ``async for message in consumer`` goes on without end.
    """

    def __init__(self, settings: PullSettings | None = None, *, allocate: Strategy | None = None, **values: Any) -> None:
        found = settings_of(PullSettings, {**(_values(settings) if settings else {}), **values})
        check_group(found.group, "DEFAULT_CONSUMER")
        super().__init__(found, stable_id=found.model is MessageModel.BROADCASTING)
        self._core = PollCore(found, self._instance, _offsets(found, self._instance), allocate)
        self._rest: list[StoredMessage] = []

    async def _begin(self, driver: Driver) -> None:
        await driver.run(self._core.start())
        for operation in self._core.tend():
            driver.spawn(operation, f"consumer {self.settings.group}")

    async def _finish(self, driver: Driver) -> None:
        await driver.run(self._core.stop())

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Have queues of a topic shared out by the group. Excludes `assign`."""
        self._core.subscribe(topic, expression, expression_type, version=self._clock.now())

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._core.unsubscribe(topic)

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Take exactly these queues. Excludes `subscribe`."""
        operation = self._core.assign(queues)
        if self._state == "new":
            for _ in operation:
                raise AssertionError("assigning before the start asks for nothing")
        else:
            await self._run(operation)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours now."""
        return self._core.assignment()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic."""
        return await self._run(self._core.queues(topic))

    async def poll(self, timeout_ms: int | None = None) -> list[StoredMessage]:
        """Return the next messages, at most ``batch_max``, or an empty list when none came in time."""
        return await self._run(self._core.poll(timeout_ms))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> None:
        """Commit what `poll` returned, or these offsets (each the next one to read)."""
        await self._run(self._core.commit(offsets, persist=persist))

    async def committed(self, queue: MessageQueue) -> int:
        """Return the committed offset of a queue, -1 for none."""
        return await self._run(self._core.committed(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with a queue of ours at an offset. Raises OffsetIllegal when the broker has no such offset."""
        await self._run(self._core.seek(queue, offset))

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with a queue of ours at its oldest message."""
        await self._run(self._core.seek_to_begin(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with a queue of ours behind its newest message."""
        await self._run(self._core.seek_to_end(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return await self._run(self._core.offset_for_timestamp(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull and return nothing of these queues until `resume`."""
        self._core.pause(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Go on with these queues."""
        self._core.resume(queues)

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        return self

    async def __anext__(self) -> StoredMessage:
        while not self._rest:
            if self._state != "running":
                raise StopAsyncIteration
            try:
                self._rest = (await self.poll())[::-1]
            except NotRunning:
                raise StopAsyncIteration from None
        return self._rest.pop()


class AsyncAdmin(_AsyncClient[AdminSettings]):
    """Looks into a cluster and changes it: topics, groups, progress, messages, brokers.

    ::

        async with AsyncAdmin(nameserver="127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queue_count=4)
            print(await admin.lag("C_shop"))
    """

    def __init__(self, settings: AdminSettings | None = None, **values: Any) -> None:
        super().__init__(settings_of(AdminSettings, {**(_values(settings) if settings else {}), **values}))
        self._core = AdminCore(self._instance)

    async def _begin(self, driver: Driver) -> None:
        pass

    async def _finish(self, driver: Driver) -> None:
        pass

    async def cluster(self) -> ClusterInfo:
        """Return all brokers, by cluster."""
        return await self._run(self._core.cluster())

    async def create_topic(
        self,
        topic: str,
        *,
        queue_count: int = 8,
        write_queue_count: int | None = None,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker_address: str | None = None,
    ) -> None:
        """Make or change a topic on one broker, or on all masters (of a cluster). ``perm``: 2 write, 4 read, 6 both."""
        await self._run(
            self._core.create_topic(
                topic,
                queue_count=queue_count,
                write_queue_count=write_queue_count,
                perm=perm,
                order=order,
                cluster=cluster,
                broker_address=broker_address,
            )
        )

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages."""
        await self._run(self._core.delete_topic(topic, cluster=cluster))

    async def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, those of the protocol included."""
        return await self._run(self._core.topics(cluster))

    async def topic_configs(self, broker_address: str) -> dict[str, TopicConfig]:
        """Return the configuration of a broker's topics."""
        return await self._run(self._core.topic_configs(broker_address))

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers hold a topic, with how many queues."""
        return await self._run(self._core.topic_route(topic))

    async def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the ends of every queue of a topic."""
        return await self._run(self._core.topic_stats(topic))

    async def groups(self, topic: str | None = None) -> list[str]:
        """Return the names of all consumer groups, or of those that consume a topic."""
        return await self._run(self._core.groups(topic))

    async def create_group(self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None) -> None:
        """Make or change a consumer group."""
        await self._run(self._core.create_group(group, cluster=cluster, config=config))

    async def delete_group(self, group: str, *, cluster: str | None = None, delete_offsets: bool = True) -> None:
        """Delete a consumer group, its retry and dead-letter topics, and its progress."""
        await self._run(self._core.delete_group(group, cluster=cluster, delete_offsets=delete_offsets))

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress against the end of every queue."""
        return await self._run(self._core.consume_stats(group, topic))

    async def lag(self, group: str, topic: str | None = None) -> int:
        """Return how many messages a group has not consumed yet."""
        return await self._run(self._core.lag(group, topic))

    async def reset_offsets(self, group: str, topic: str, timestamp_ms: int = -1, *, force: bool = True) -> dict[MessageQueue, int]:
        """Move a group to the messages of a time (ms; -1: the end), online or not; return the new offsets."""
        return await self._run(self._core.reset_offsets(group, topic, timestamp_ms, force=force))

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return who consumes in a group. Raises ConsumerNotOnline."""
        return await self._run(self._core.consumer_connections(group))

    async def producer_connections(self, group: str, topic: str) -> ProducerConnection:
        """Return who produces in a group, at the brokers of a topic."""
        return await self._run(self._core.producer_connections(group, topic))

    async def consumer_running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Ask one consumer how it is."""
        return await self._run(self._core.consumer_running_info(group, client_id))

    async def broker_runtime_info(self, broker_address: str) -> dict[str, str]:
        """Return the figures of a broker."""
        return await self._run(self._core.broker_runtime_info(broker_address))

    async def broker_config(self, broker_address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return await self._run(self._core.broker_config(broker_address))

    async def update_broker_config(self, broker_address: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker."""
        await self._run(self._core.update_broker_config(broker_address, settings))

    async def messages_by_key(
        self, topic: str, key: str, *, count_max: int = 64, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return messages of a topic that carry a key, stored between two times, oldest first."""
        return await self._run(messages_by_key(self._core, topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms))

    async def message_by_id(self, topic: str, msg_id: str) -> StoredMessage:
        """Return the message with a sender's id, or a broker's. Raises QueryNotFound."""
        return await self._run(message_by_id(self._core, topic, msg_id))

    async def message_by_offset_id(self, offset_msg_id: str) -> StoredMessage:
        """Return the message with a broker's id, which names the broker itself."""
        return await self._run(message_by_offset_id(self._core, offset_msg_id))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return await self._run(min_offset(self._instance.routes, self._wire(queue)))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return await self._run(max_offset(self._instance.routes, self._wire(queue)))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return await self._run(offset_at(self._instance.routes, self._wire(queue), timestamp_ms))

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        return self._core.wire_queue(queue)

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a value that the name servers keep, or None."""
        return await self._run(self._core.kv(namespace, key))

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace of the name servers."""
        return await self._run(self._core.kv_list(namespace))

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        await self._run(self._core.put_kv(namespace, key, value))

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value at every name server."""
        await self._run(self._core.delete_kv(namespace, key))


# ---------------------------------------------------------------- joints


def _values(settings: ClientSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def _offsets(settings: ConsumerSettings, instance: Instance) -> RemoteOffsets | LocalOffsets:
    group = instance.wire(settings.group)
    if settings.model is MessageModel.CLUSTERING:
        return RemoteOffsets(group, instance.routes, settings.request_timeout_ms)
    return LocalOffsets(OffsetsOnDisk(settings.offsets_dir, instance.client_id, group))
