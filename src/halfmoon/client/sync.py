"""Blocking clients: producers and consumers. Generated from `halfmoon.client.aio`; do not edit.

Calls run on one background event loop of the process (`halfmoon.runtime.drivers.threads`); safe to use from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Unpack

from halfmoon.allocation import Strategy
from halfmoon.client.aio import AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, handed_next
from halfmoon.client.blocking import Blocking, BlockingSender
from halfmoon.client.constructors.options import ProducerArguments, PullArguments, PushArguments
from halfmoon.client.core.produce.selector import Selector
from halfmoon.client.core.produce.send_result import Callback
from halfmoon.client.settings import ProducerSettings, PullSettings, PushSettings
from halfmoon.model import Message, MessageQueue, SendResult, StoredMessage
from halfmoon.runtime.drivers.threads import background


class Producer(BlockingSender):
    """Sends messages.

    ::

        with Producer(group="P_shop", nameserver="127.0.0.1:9876") as producer:
            result = producer.send(Message("orders", b"paid", tag="A", keys=["k1"]))

    Settings are those of `halfmoon.client.settings.ProducerSettings`, by keyword. May be shared by everything that sends.

    With ``linger_ms`` a send waits that long for others of its topic (and queue, where one is chosen), and they leave as one batch:
    more throughput where many tasks or threads send small messages at once, more latency where one does. Each send returns the
    result of its own message; an error is raised in all of a batch. Messages that no batch may hold leave alone, at once.
    """

    _client: AsyncProducer

    def __init__(self, settings: ProducerSettings | None = None, **values: Unpack[ProducerArguments]) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncProducer, settings, **values), loop)

    def send(
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
        return self.run(
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
    ) -> Future[SendResult]:
        """Begin a send and return at once; the future gives the result, and ``callback(result, error)`` is called with it.

        What the callback raises is logged, and changes neither. Only network failures are retried; a broker's refusal is raised
        at once. Raises TooManyRequests when `ASYNC_MAX` are under way.
        """
        return self._loop.submit(
            lambda: self._client.send_async(message, callback, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)
        )

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: Any = None
    ) -> None:
        """Hand a message to the network without waiting for a reply: fast, but the message is lost silently if anything fails."""
        self._loop.call(self._client.send_oneway(message, queue=queue, selector=selector, key=key))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic as one request, at most ``body_bytes_max`` bytes together, to one queue."""
        return self.run(self.sender.placed(self.sender.send_batch(messages, queue=queue, timeout_ms=timeout_ms)))

    def request(
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
        return self._loop.call(self._client.request(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))

    def reply(self, request: StoredMessage, body: bytes, *, timeout_ms: int | None = None) -> SendResult:
        """Reply to a message that was sent by `request` (Java's, too); its asker has the reply when this returns.

        Raises UsageError if it is no request, and what `send` raises: SendFailed with code 1 if the asker is gone.
        """
        return self._loop.call(self._client.reply(request, body, timeout_ms=timeout_ms))

    def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a message that waits for a point in time, by the handle of its `SendResult`; return its id.

        Raises:
            UsageError: no handle.
            IllegalOperation: it is delivered, cancelled or unknown (code 604).
            BrokerError: the broker refuses, or knows no recall (code 3).
        """
        return self._loop.call(self._client.recall(topic, recall_handle))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        return self._loop.call(self._client.queues(topic))


class PushConsumer(Blocking):
    """Hands messages to a listener as they arrive.

    ::

        consumer = PushConsumer(group="C_shop", nameserver="127.0.0.1:9876", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "A || B")

        @consumer.on_message
        def handle(messages): ...

        with consumer: ...

    The listener returns nothing or CONSUME_SUCCESS when the messages are consumed; after RECONSUME_LATER or an exception they are
    delivered again later. It may take a second argument, a `ConsumeContext`. Plain functions run in up to ``threads`` threads.

    With ``orderly=True`` each queue has one owner in the group and is consumed in order, one call at a time; messages that failed
    are delivered again after ``suspend_queue_ms``, and those behind them wait.
    """

    _client: AsyncPushConsumer

    def __init__(
        self, settings: PushSettings | None = None, *, allocate: Strategy | None = None, **values: Unpack[PushArguments]
    ) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncPushConsumer, settings, allocate=allocate, **values), loop)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG", *, sql: str | None = None) -> None:
        """Subscribe to a topic: all messages, those with one of some tags, or those that match an SQL92 expression.

        ``expression`` is ``*`` or tags (``A || B``), ``sql`` an expression over properties (``"a > 5 AND b = 'x'"``).
        A broker that refuses the expression does so when the consumer starts: SubscriptionParseFailed names the place and a remedy.
        """
        self._loop.plain(self._client.subscribe, topic, expression, expression_type, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._loop.plain(self._client.unsubscribe, topic)

    def on_message(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Set the listener; may be used as a decorator."""
        return self._loop.plain(self._client.on_message, listener)

    def suspend(self) -> None:
        """Pull nothing until `resume`; messages already pulled are still handed to the listener."""
        self._loop.plain(
            self._client.suspend,
        )

    def resume(self) -> None:
        """Pull again after `suspend`."""
        self._loop.plain(
            self._client.resume,
        )

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer, those of redeliveries included."""
        return self._loop.plain(
            self._client.assignment,
        )


class PullConsumer(Blocking):
    """Returns messages on request, like RocketMQ's lite pull consumer.

    ::

        with PullConsumer(group="C_shop", nameserver="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")                # the group assigns queues; or: consumer.assign(queues)
            messages = consumer.poll(timeout_ms=1000)
            consumer.commit()

    ``for message in consumer`` goes on without end, one message a step.

    The next `poll`, the next step of the iteration and `commit` confirm the messages returned before, and nothing else does. With
    ``auto_commit`` confirmed messages are committed every ``auto_commit_ms``, when the consumer closes, and when a queue goes to
    another member; without it, by `commit` alone. The last messages before a ``break``, an exception or the close are delivered
    again, unless `commit` was called. Let one task at a time poll: a poll confirms what other tasks were given, too.
    """

    _client: AsyncPullConsumer

    def __init__(
        self, settings: PullSettings | None = None, *, allocate: Strategy | None = None, **values: Unpack[PullArguments]
    ) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncPullConsumer, settings, allocate=allocate, **values), loop)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG", *, sql: str | None = None) -> None:
        """Subscribe to a topic whose queues the group shares, filtered by tags or an SQL92 expression. Excludes `assign`."""
        self._loop.plain(self._client.subscribe, topic, expression, expression_type, sql=sql)

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._loop.plain(self._client.unsubscribe, topic)

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, sql: str | None = None) -> None:
        """Consume exactly these queues, filtered by tags or an SQL92 expression. Excludes `subscribe`."""
        self._loop.call(self._client.assign(queues, expression, sql=sql))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues assigned to this consumer."""
        return self._loop.plain(
            self._client.assignment,
        )

    def position(self, queue: MessageQueue) -> int:
        """Return the offset behind what `poll` returned of an assigned queue, and behind what the filter left out there."""
        return self._loop.plain(self._client.position, queue)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic."""
        return self._loop.call(self._client.queues(topic))

    def on_queues_changed(self, topic: str, listener: Callable[[str, list[MessageQueue]], Any]) -> None:
        """Call ``listener(topic, queues)`` whenever the queues of a topic change: a broker came or went, a topic got more queues.

        They are checked every ``queues_check_ms``. A plain function runs in a thread. For consumers that `assign`; to those that
        `subscribe` the group assigns new queues by itself.
        """
        self._loop.call(self._client.on_queues_changed(topic, listener))

    def poll(self, timeout_ms: int | None = None) -> list[StoredMessage]:
        """Return the next messages, at most ``batch_max``, or an empty list when none came in time.

        Confirms what was returned before: it may be committed from now on. A poll that is cancelled or interrupted (Ctrl-C) returns
        nothing: its messages come with the next one.
        """
        return self._loop.hand_over(
            lambda: self._client.run(self._client.core.hand_out(timeout_ms)),
            self._client.core.take_back,
            take=lambda place: self._client.core.take(self._client.clock.steady(), place),
        ).messages

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> None:
        """Confirm and commit what `poll` and the iteration returned, or commit these offsets (each the next one to read).

        Offsets of a queue that is not assigned (any more) raise UsageError, and none is committed; without offsets, what was
        returned from such a queue is left to its new owner, which gets it again.
        """
        self._loop.call(self._client.commit(offsets, persist=persist))

    def committed(self, queue: MessageQueue) -> int:
        """Return the committed offset of a queue, -1 for none. Where a new group began counts as committed."""
        return self._loop.call(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue an assigned queue at an offset. Raises OffsetIllegal when the broker has no such offset.

        Nothing of the queue that was fetched before comes after this, also not within an iteration. What lies before the offset
        counts as consumed from now on, and what lies behind it as not consumed.
        """
        self._loop.call(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue an assigned queue at its oldest message."""
        self._loop.call(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue an assigned queue behind its newest message."""
        self._loop.call(self._client.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return self._loop.call(self._client.offset_for_timestamp(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull and return nothing from these queues until `resume`."""
        self._loop.plain(self._client.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        self._loop.plain(self._client.resume, queues)

    def __iter__(self) -> Iterator[StoredMessage]:
        self._client.running()
        return self

    def __next__(self) -> StoredMessage:
        try:
            core, steady = self._client.core, self._client.clock.steady
            return self._loop.hand_over(
                lambda: handed_next(self._client), core.take_back, take=lambda place: core.take(steady(), place, 1)
            ).messages[0]
        except StopAsyncIteration:
            raise StopIteration from None
