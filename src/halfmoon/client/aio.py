"""Producers and consumers on asyncio. Thin: joins the operations of `halfmoon.client.core` to the runtime.

`halfmoon.client.sync` is generated from this file by ``tools/generate_sync.py``; run it after every change here. For the generator,
each public method is one of: a coroutine, a plain function, or one that returns an asyncio.Future.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from threading import RLock
from typing import Any, TypeVar, Unpack

from halfmoon.allocation import Strategy
from halfmoon.client.constructors.options import ProducerArguments, PullArguments, PushArguments
from halfmoon.client.core.admin.delay import recall
from halfmoon.client.core.consume.listener import ConsumeContext, check_callable
from halfmoon.client.core.consume.member import GroupMember
from halfmoon.client.core.consume.offsets import LocalOffsets, RemoteOffsets, offsets_of
from halfmoon.client.core.consume.orderly import push_core
from halfmoon.client.core.consume.pull_consumer import HandedOut, PullConsumerCore
from halfmoon.client.core.consume.push_consumer import PushConsumerCore
from halfmoon.client.core.instance import Instance
from halfmoon.client.core.names import check_group
from halfmoon.client.core.produce.attempts import FirstAttempt
from halfmoon.client.core.produce.linger import LingeringSender
from halfmoon.client.core.produce.requests import Requests
from halfmoon.client.core.produce.selector import Selector, select_by_hash
from halfmoon.client.core.produce.send import Sender
from halfmoon.client.core.produce.send_result import Callback, send_result, tell_callback
from halfmoon.client.core.produce.tracing import Tracer
from halfmoon.client.core.produce.transaction_check import answer_not_mine
from halfmoon.client.files import OffsetsOnDisk
from halfmoon.client.lifecycle import Client, values_of
from halfmoon.client.settings import (
    ConsumerSettings,
    ProducerSettings,
    PullSettings,
    PushSettings,
    settings_of,
)
from halfmoon.client.spans import INSTALLED, add_spans, listener_with_spans
from halfmoon.effects import at_once
from halfmoon.errors import BrokerError, NetworkError, NotRunning, TooManyRequests
from halfmoon.model import Message, MessageModel, MessageQueue, SendResult, StoredMessage
from halfmoon.runtime.drivers.asyncio_driver import AsyncioDriver
from halfmoon.wire.command import Command
from halfmoon.wire.headers.send import SendBatchMessage, SendMessageV2
from halfmoon.wire.headers.transaction import EndTransaction

__all__ = [
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "Callback",
    "ConsumeContext",
    "ProducerSettings",
    "PullSettings",
    "PushSettings",
    "select_by_hash",
]

C = TypeVar("C", bound=ConsumerSettings)
P = TypeVar("P", bound=ProducerSettings)

ASYNC_MAX = 50_000
"""Asynchronous sends of one producer in flight; one more is refused. Follows the queue of the original's sender pool."""


def producer_settings(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return checked settings of a producer from keyword arguments. Raises SettingError, and UsageError for its group."""
    checked = settings_of(kind, values)
    check_group(checked.group, "DEFAULT_PRODUCER")
    return checked


class AsyncProducer(Client[ProducerSettings]):
    """Sends messages.

    ::

        async with AsyncProducer(group="P_shop", nameserver="127.0.0.1:9876") as producer:
            result = await producer.send(Message("orders", b"paid", tag="A", keys=["k1"]))

    Settings are those of `halfmoon.client.settings.ProducerSettings`, by keyword. May be shared by everything that sends.

    With ``linger_ms`` a send waits that long for others of its topic (and queue, where one is chosen), and they leave as one batch:
    more throughput where many tasks or threads send small messages at once, more latency where one does. Each send returns the
    result of its own message; an error is raised in all of a batch. Messages that no batch may hold leave alone, at once.
    """

    _kind: type[ProducerSettings] = ProducerSettings

    sender: Sender
    """Sends as operations."""

    def __init__(self, settings: ProducerSettings | None = None, **values: Unpack[ProducerArguments]) -> None:
        checked = producer_settings(self._kind, {**(values_of(settings) if settings else {}), **values})
        super().__init__(checked)
        kind = LingeringSender if checked.linger_ms else Sender
        self.sender = kind(checked, self.instance.routes, self._ids)
        if checked.spans and INSTALLED:
            add_spans(self.sender, checked.group)
        self._requests = Requests(self.sender, self.instance)
        self.instance.producer_group = self.sender.group
        self.instance.on_asked[39] = answer_not_mine(self.sender.group)
        self._tracer = Tracer(checked, self.instance, self._ids) if checked.trace else None
        self.sender.tracer = self._tracer
        # What tracing, latencies and lingering remember belongs to the loop.
        self.sender.anywhere = self._tracer is None and not checked.latency_avoidance and not checked.linger_ms
        self.blocking_requests = frozenset((SendMessageV2, SendBatchMessage, EndTransaction))
        self._pending = 0

    async def _begin(self, driver: AsyncioDriver) -> None:
        self.sender.running = True
        for operation in self.instance.background_work():
            driver.spawn(operation, f"producer {self.settings.group}")
        if self._tracer is not None:
            driver.spawn(self._tracer.keep_sending(), f"traces of producer {self.settings.group}")

    async def _finish(self, driver: AsyncioDriver) -> None:
        self.sender.running = False
        await driver.run(self.sender.flush())
        if self._tracer is not None:
            await driver.run(self._tracer.flush())
        await driver.run(self.instance.leave())

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send and wait until a broker stored the message; when one fails others are tried, within ``timeout_ms`` in all.

        Messages with equal ``key`` go to one queue, so that their order can be kept (`select_by_hash`, as Java chooses). With it,
        with ``queue``, or with the queue that ``selector(queues, message, key)`` returns, there is one attempt. A result with
        another status than SEND_OK is stored too, but a promise of the broker (flush, slave) was not kept in time.

        Raises:
            MessageIllegal, UsageError: the message cannot be sent; nothing was.
            NoRoute: no broker for the topic.
            BrokerError: a broker refused with a code that is not worth another try.
            SendFailed: every attempt failed; the message may have been stored if an answer was lost (see ``code`` and ``cause``).
            TooManyRequests: the time was over before an attempt could be made.
            NotRunning: not started, or closed.
        """
        if (begun := self._begun(message, queue, selector, key, timeout_ms)) is not None:
            return await self._ended(*begun)
        return await self.run(
            self.sender.placed(self.sender.send(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))
        )

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
        """Begin a send and return at once; the future gives the result, and ``callback(result, error)`` is called with it.

        What the callback raises is logged, and changes neither. Only network failures are retried; a broker's refusal is raised
        at once. Raises TooManyRequests when `ASYNC_MAX` are under way.
        """
        self._check_loop()
        if callback is not None:
            check_callable("send_async", callback)
        self._pending += 1
        if self._pending > ASYNC_MAX:
            self._pending -= 1
            raise TooManyRequests(f"executor rejected: {ASYNC_MAX} asynchronous sends are under way")
        chosen = message, queue, selector, key, timeout_ms
        future = asyncio.ensure_future(self._send_async(*chosen) if callback is None else self._then_tell(callback, *chosen))
        future.add_done_callback(self._sent if callback is None else self._told)
        return future

    def _sent(self, future: asyncio.Future[SendResult]) -> None:
        self._pending -= 1

    def _told(self, future: asyncio.Future[SendResult]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # looked at: the callback has been given it

    async def _send_async(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, timeout_ms: int | None
    ) -> SendResult:
        if (begun := self._begun(message, queue, selector, key, timeout_ms)) is not None:
            return await self._ended(*begun, asynchronous=True)
        return await self.run(self.sender.send_async(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))

    def _begun(
        self, message: Message, queue: MessageQueue | None, selector: Selector | None, key: Any, timeout_ms: int | None
    ) -> tuple[FirstAttempt, asyncio.Future[Command] | None] | None:
        """Begin to send a message whose route is known, and return its first attempt; None: nothing was done.

        The future is None where the socket must be waited for. Raises as `send`.
        """
        connections = self.running().connections
        self._check_loop()
        born_ms = self.clock.now()
        first = self.sender.first(message, queue, selector, key, timeout_ms, self.clock.steady(), born_ms)
        if first is None:
            return None
        header = self.sender.header(first.outgoing, first.queue, born_ms)
        return first, connections.begin(first.address, header, first.outgoing.body, first.wait_ms)

    async def _ended(self, first: FirstAttempt, reply: asyncio.Future[Command] | None, *, asynchronous: bool = False) -> SendResult:
        """Return the result of a send that was begun, making all further attempts."""
        error = None
        if reply is not None:
            try:
                return send_result(await reply, first.outgoing, first.queue, first.address, self.settings.namespace)
            except (NetworkError, BrokerError) as exc:
                error = exc
        return await self.run(self.sender.continue_send(first, error, asynchronous=asynchronous))

    async def _then_tell(self, callback: Callback, message: Message, *chosen: Any) -> SendResult:
        result = error = None
        try:
            result = await self._send_async(message, *chosen)
        except Exception as exc:
            error = exc
        await self.run(tell_callback(callback, self.sender.group, message, result, error))
        if result is None:
            assert error is not None
            raise error
        return result

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: Any = None
    ) -> None:
        """Hand a message to the network without waiting for a reply: fast, but the message is lost silently if anything fails."""
        await self.run(self.sender.send_oneway(message, queue=queue, selector=selector, key=key))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic as one request, at most ``body_bytes_max`` bytes together, to one queue."""
        return await self.run(self.sender.placed(self.sender.send_batch(messages, queue=queue, timeout_ms=timeout_ms)))

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        key: Any = None,
        timeout_ms: int | None = None,
    ) -> StoredMessage:
        """Send a message, wait for what a consumer replies to it, and return that, within ``timeout_ms`` in all.

        The reply has no offsets and no id of the broker. Raises RequestTimeout when the message was sent and no reply came,
        TooManyRequests when too many wait for theirs, and what `send` raises.
        """
        return await self.run(self._requests.request(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))

    async def reply(self, request: StoredMessage, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Reply to a message that was sent by `request` (Java's, too); its asker has the reply when this returns.

        Raises UsageError if it is no request, and what `send` raises: SendFailed with code 1 if the asker is gone.
        """
        return await self.run(self._requests.reply(request, body, timeout_ms))

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a message that waits for a point in time, by the handle of its `SendResult`; return its id.

        Raises:
            UsageError: no handle.
            IllegalOperation: it is delivered, cancelled or unknown (code 604).
            BrokerError: the broker refuses, or knows no recall (code 3).
        """
        return await self.run(recall(self.sender, topic, recall_handle))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        return await self.run(self.sender.queues(topic))


class GroupClient(Client[C]):
    """The life of a consumer, as its core says."""

    core: GroupMember

    async def _begin(self, driver: AsyncioDriver) -> None:
        await driver.run(self.core.start())
        for operation in self.core.background_work():
            driver.spawn(operation, f"consumer {self.settings.group}")

    async def _finish(self, driver: AsyncioDriver) -> None:
        await driver.run(self.core.stop())


class AsyncPushConsumer(GroupClient[PushSettings]):
    """Hands messages to a listener as they arrive.

    ::

        consumer = AsyncPushConsumer(group="C_shop", nameserver="127.0.0.1:9876", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "A || B")

        @consumer.on_message
        async def handle(messages): ...

        async with consumer: ...

    The listener returns nothing or CONSUME_SUCCESS when the messages are consumed; after RECONSUME_LATER or an exception they are
    delivered again later. It may take a second argument, a `ConsumeContext`. Plain functions run in up to ``threads`` threads.

    With ``orderly=True`` each queue has one owner in the group and is consumed in order, one call at a time; messages that failed
    are delivered again after ``suspend_queue_ms``, and those behind them wait.
    """

    core: PushConsumerCore

    def __init__(
        self, settings: PushSettings | None = None, *, allocate: Strategy | None = None, **values: Unpack[PushArguments]
    ) -> None:
        checked = settings_of(PushSettings, {**(values_of(settings) if settings else {}), **values})
        check_group(checked.group, "DEFAULT_CONSUMER")
        super().__init__(checked, stable_id=checked.model is MessageModel.BROADCASTING, threads=checked.threads)
        self.core = push_core(checked, self.instance, _offsets(checked, self.instance), self._ids, allocate)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG", *, sql: str | None = None) -> None:
        """Subscribe to a topic: all messages, those with one of some tags, or those that match an SQL92 expression.

        ``expression`` is ``*`` or tags (``A || B``), ``sql`` an expression over properties (``"a > 5 AND b = 'x'"``).
        A broker that refuses the expression does so when the consumer starts: SubscriptionParseFailed names the place and a remedy.
        """
        self.core.subscribe(topic, expression, expression_type, sql=sql, version=self.clock.now())

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self.core.unsubscribe(topic)

    def on_message(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Set the listener; may be used as a decorator."""
        self.core.on_message(listener)
        if self.settings.spans and INSTALLED:
            self.core.on_message(listener_with_spans(listener, self.settings.group))
        return listener

    def suspend(self) -> None:
        """Pull nothing until `resume`; messages already pulled are still handed to the listener."""
        self.core.paused = True

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self.core.paused = False

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer, those of redeliveries included."""
        return sorted(self.core.user_queue(queue) for queue in self.core.held)


class AsyncPullConsumer(GroupClient[PullSettings]):
    """Returns messages on request, like RocketMQ's lite pull consumer.

    ::

        async with AsyncPullConsumer(group="C_shop", nameserver="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")                # the group assigns queues; or: await consumer.assign(queues)
            messages = await consumer.poll(timeout_ms=1000)
            await consumer.commit()

    ``async for message in consumer`` goes on without end, one message a step.

    The next `poll`, the next step of the iteration and `commit` confirm the messages returned before, and nothing else does. With
    ``auto_commit`` confirmed messages are committed every ``auto_commit_ms``, when the consumer closes, and when a queue goes to
    another member; without it, by `commit` alone. The last messages before a ``break``, an exception or the close are delivered
    again, unless `commit` was called. Let one task at a time poll: a poll confirms what other tasks were given, too.
    """

    core: PullConsumerCore

    def __init__(
        self, settings: PullSettings | None = None, *, allocate: Strategy | None = None, **values: Unpack[PullArguments]
    ) -> None:
        checked = settings_of(PullSettings, {**(values_of(settings) if settings else {}), **values})
        check_group(checked.group, "DEFAULT_CONSUMER")
        super().__init__(checked, stable_id=checked.model is MessageModel.BROADCASTING)
        self.core = PullConsumerCore(checked, self.instance, _offsets(checked, self.instance), allocate, RLock())

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG", *, sql: str | None = None) -> None:
        """Subscribe to a topic whose queues the group shares, filtered by tags or an SQL92 expression. Excludes `assign`."""
        self.core.subscribe(topic, expression, expression_type, sql=sql, version=self.clock.now())

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self.core.unsubscribe(topic)

    async def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, sql: str | None = None) -> None:
        """Consume exactly these queues, filtered by tags or an SQL92 expression. Excludes `subscribe`."""
        operation = self.core.assign(queues, expression, sql=sql)
        if self.state == "new":
            at_once(operation)
        else:
            await self.run(operation)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer."""
        return self.core.assignment()

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind what `poll` returned of an assigned queue, and behind what the filter left out there."""
        return self.core.position(queue)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic."""
        return await self.run(self.core.queues(topic))

    async def on_queues_changed(self, topic: str, listener: Callable[[str, list[MessageQueue]], Any]) -> None:
        """Call ``listener(topic, queues)`` whenever the queues of a topic change: a broker came or went, a topic got more queues.

        They are checked every ``queues_check_ms``. A plain function runs in a thread. For consumers that `assign`; to those that
        `subscribe` the group assigns new queues by itself.
        """
        operation = self.core.on_queues_changed(topic, listener)
        if self.state == "new":
            at_once(operation)
        else:
            await self.run(operation)

    async def poll(self, timeout_ms: int | None = None) -> list[StoredMessage]:
        """Return the next messages, at most ``batch_max``, or an empty list when none came in time.

        Confirms what was returned before: it may be committed from now on. A poll that is cancelled or interrupted (Ctrl-C) returns
        nothing: its messages come with the next one.
        """
        self._check_loop()
        if (taken := self._taken()) is None:
            taken = await self.run(self.core.hand_out(timeout_ms))
        return taken.messages

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> None:
        """Confirm and commit what `poll` and the iteration returned, or commit these offsets (each the next one to read).

        Offsets of a queue that is not assigned (any more) raise UsageError, and none is committed; without offsets, what was
        returned from such a queue is left to its new owner, which gets it again.
        """
        await self.run(self.core.commit(offsets, persist=persist))

    async def committed(self, queue: MessageQueue) -> int:
        """Return the committed offset of a queue, -1 for none. Where a new group began counts as committed."""
        return await self.run(self.core.committed(queue))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue an assigned queue at an offset. Raises OffsetIllegal when the broker has no such offset.

        Nothing of the queue that was fetched before comes after this, also not within an iteration. What lies before the offset
        counts as consumed from now on, and what lies behind it as not consumed.
        """
        await self.run(self.core.seek(queue, offset))

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue an assigned queue at its oldest message."""
        await self.run(self.core.seek_to_begin(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue an assigned queue behind its newest message."""
        await self.run(self.core.seek_to_end(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return await self.run(self.core.offset_for_timestamp(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull and return nothing from these queues until `resume`."""
        self.core.pause(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        self.core.resume(queues)

    def __aiter__(self) -> AsyncIterator[StoredMessage]:
        self.running()
        return self

    async def __anext__(self) -> StoredMessage:
        self._check_loop()
        return (self._taken(1) or await handed_next(self)).messages[0]

    def _taken(self, count_max: int | None = None) -> HandedOut | None:
        place: list[HandedOut | None] = [None]
        self.core.take(self.clock.steady(), place, count_max)
        return place[0]


async def handed_next(consumer: AsyncPullConsumer) -> HandedOut:
    """Return the next message of an iteration. Raises StopAsyncIteration when the consumer is closed."""
    while consumer.state == "running":
        try:
            handed = await consumer.run(consumer.core.hand_out(count_max=1))
        except NotRunning:
            break
        if handed.messages:
            return handed
    raise StopAsyncIteration


def _offsets(settings: ConsumerSettings, instance: Instance) -> RemoteOffsets | LocalOffsets:
    group = instance.wire(settings.group)
    if settings.model is MessageModel.CLUSTERING:
        return RemoteOffsets(group, instance.routes, settings.request_timeout_ms)
    return LocalOffsets(OffsetsOnDisk(settings.offsets_dir, instance.client_id, group, offsets_of))
