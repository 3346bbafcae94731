"""The blocking API: producers, consumers and administration. Generated from `halfmoon.client.aio`; do not edit.

Every call runs on one background event loop of the process (`halfmoon.shell.threads`); safe to use from many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from halfmoon.client.aio import AsyncAdmin, AsyncProducer, AsyncPullConsumer, AsyncPushConsumer, Callback, _AsyncClient
from halfmoon.client.core.rebalance import Strategy
from halfmoon.client.core.send import Selector
from halfmoon.client.settings import AdminSettings, ProducerSettings, PullSettings, PushSettings
from halfmoon.model import Message, MessageQueue, SendResult, StoredMessage
from halfmoon.shell.threads import BackgroundLoop, background
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

T = TypeVar("T")


class _Client:
    """What all blocking clients share: the asyncio client behind them, and the loop on which it lives."""

    _client: _AsyncClient[Any]

    def __init__(self, client: _AsyncClient[Any], loop: BackgroundLoop) -> None:
        self._client = client
        self._loop = loop

    @property
    def settings(self) -> Any:
        """The settings it was made with, checked."""
        return self._client.settings

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._client.client_id

    def start(self) -> None:
        """Open for business: find routes, show the client to the brokers, begin what runs beside. Once in a life."""
        self._loop.call(self._client.start())

    def close(self) -> None:
        """Finish what is under way, leave the brokers, close all connections. Closing again does nothing."""
        self._loop.call(self._client.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Producer(_Client):
    """Sends messages.

    ::

        with Producer(group="P_shop", nameserver="127.0.0.1:9876") as producer:
            result = producer.send(Message("orders", b"paid", tag="A", keys=["k1"]))

    Settings are those of `halfmoon.client.settings.ProducerSettings`, by keyword. May be shared by everything that sends.
    """

    _client: AsyncProducer

    def __init__(self, settings: ProducerSettings | None = None, **values: Any) -> None:
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
        return self._loop.call(self._client.send(message, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms))

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
        """Begin a send and return at once; the future gives the result, and ``callback(result, error)`` is told of it.

        Only failures of the network are tried again; a broker's refusal is reported at once.
        """
        return self._loop.submit(
            lambda: self._client.send_async(message, callback, queue=queue, selector=selector, key=key, timeout_ms=timeout_ms)
        )

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None, key: Any = None
    ) -> None:
        """Hand a message to the network without asking for an answer: fast, and lost without a word when something fails."""
        self._loop.call(self._client.send_oneway(message, queue=queue, selector=selector, key=key))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send messages of one topic as one request, at most ``body_bytes_max`` bytes together; one queue takes them all."""
        return self._loop.call(self._client.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages of a topic may go to."""
        return self._loop.call(self._client.queues(topic))


class PushConsumer(_Client):
    """Hands messages to a listener as they come.

    ::

        consumer = PushConsumer(group="C_shop", nameserver="127.0.0.1:9876", consume_from=ConsumeFrom.FIRST_OFFSET)
        consumer.subscribe("orders", "A || B")

        @consumer.on_message
        def handle(messages): ...

        with consumer: ...

    The listener returns nothing or CONSUME_SUCCESS when the messages are consumed; RECONSUME_LATER or an exception has them
    delivered again later. It may take a second argument, a `ConsumeContext`. Plain functions run in up to ``threads`` threads.
    """

    _client: AsyncPushConsumer

    def __init__(self, settings: PushSettings | None = None, *, allocate: Strategy | None = None, **values: Any) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncPushConsumer, settings, allocate=allocate, **values), loop)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic: all (``*``), those with one of some tags (``A || B``), or by an SQL92 expression."""
        self._loop.plain(self._client.subscribe, topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._loop.plain(self._client.unsubscribe, topic)

    def on_message(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Set the listener; may be used as a decorator."""
        return self._loop.plain(self._client.on_message, listener)

    def suspend(self) -> None:
        """Pull nothing until `resume`; what was pulled is still handed over."""
        self._loop.plain(
            self._client.suspend,
        )

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._loop.plain(
            self._client.resume,
        )

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours now, those of redeliveries included."""
        return self._loop.plain(
            self._client.assignment,
        )


class PullConsumer(_Client):
    """Gives messages when asked, in the manner of RocketMQ's lite pull consumer.

    ::

        with PullConsumer(group="C_shop", nameserver="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")                # queues shared out by the group, or: consumer.assign(queues)
            messages = consumer.poll(timeout_ms=1000)
            consumer.commit()

    ``for message in consumer`` goes on without end.
    """

    _client: AsyncPullConsumer

    def __init__(self, settings: PullSettings | None = None, *, allocate: Strategy | None = None, **values: Any) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncPullConsumer, settings, allocate=allocate, **values), loop)

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Have queues of a topic shared out by the group. Excludes `assign`."""
        self._loop.plain(self._client.subscribe, topic, expression, expression_type)

    def unsubscribe(self, topic: str) -> None:
        """Want no more messages of a topic."""
        self._loop.plain(self._client.unsubscribe, topic)

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Take exactly these queues. Excludes `subscribe`."""
        self._loop.call(self._client.assign(queues))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours now."""
        return self._loop.plain(
            self._client.assignment,
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic."""
        return self._loop.call(self._client.queues(topic))

    def poll(self, timeout_ms: int | None = None) -> list[StoredMessage]:
        """Return the next messages, at most ``batch_max``, or an empty list when none came in time."""
        return self._loop.call(self._client.poll(timeout_ms))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, *, persist: bool = True) -> None:
        """Commit what `poll` returned, or these offsets (each the next one to read)."""
        self._loop.call(self._client.commit(offsets, persist=persist))

    def committed(self, queue: MessageQueue) -> int:
        """Return the committed offset of a queue, -1 for none."""
        return self._loop.call(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on with a queue of ours at an offset. Raises OffsetIllegal when the broker has no such offset."""
        self._loop.call(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with a queue of ours at its oldest message."""
        self._loop.call(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with a queue of ours behind its newest message."""
        self._loop.call(self._client.seek_to_end(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return self._loop.call(self._client.offset_for_timestamp(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull and return nothing of these queues until `resume`."""
        self._loop.plain(self._client.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Go on with these queues."""
        self._loop.plain(self._client.resume, queues)

    def __iter__(self) -> Iterator[StoredMessage]:
        return self

    def __next__(self) -> StoredMessage:
        try:
            return self._loop.call(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None


class Admin(_Client):
    """Looks into a cluster and changes it: topics, groups, progress, messages, brokers.

    ::

        with Admin(nameserver="127.0.0.1:9876") as admin:
            admin.create_topic("orders", queue_count=4)
            print(admin.lag("C_shop"))
    """

    _client: AsyncAdmin

    def __init__(self, settings: AdminSettings | None = None, **values: Any) -> None:
        loop = background()
        super().__init__(loop.plain(AsyncAdmin, settings, **values), loop)

    def cluster(self) -> ClusterInfo:
        """Return all brokers, by cluster."""
        return self._loop.call(self._client.cluster())

    def create_topic(
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
        self._loop.call(
            self._client.create_topic(
                topic,
                queue_count=queue_count,
                write_queue_count=write_queue_count,
                perm=perm,
                order=order,
                cluster=cluster,
                broker_address=broker_address,
            )
        )

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic and its messages."""
        self._loop.call(self._client.delete_topic(topic, cluster=cluster))

    def topics(self, cluster: str | None = None) -> list[str]:
        """Return the names of all topics, those of the protocol included."""
        return self._loop.call(self._client.topics(cluster))

    def topic_configs(self, broker_address: str) -> dict[str, TopicConfig]:
        """Return the configuration of a broker's topics."""
        return self._loop.call(self._client.topic_configs(broker_address))

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return which brokers hold a topic, with how many queues."""
        return self._loop.call(self._client.topic_route(topic))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the ends of every queue of a topic."""
        return self._loop.call(self._client.topic_stats(topic))

    def groups(self, topic: str | None = None) -> list[str]:
        """Return the names of all consumer groups, or of those that consume a topic."""
        return self._loop.call(self._client.groups(topic))

    def create_group(self, group: str, *, cluster: str | None = None, config: SubscriptionGroupConfig | None = None) -> None:
        """Make or change a consumer group."""
        self._loop.call(self._client.create_group(group, cluster=cluster, config=config))

    def delete_group(self, group: str, *, cluster: str | None = None, delete_offsets: bool = True) -> None:
        """Delete a consumer group, its retry and dead-letter topics, and its progress."""
        self._loop.call(self._client.delete_group(group, cluster=cluster, delete_offsets=delete_offsets))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress against the end of every queue."""
        return self._loop.call(self._client.consume_stats(group, topic))

    def lag(self, group: str, topic: str | None = None) -> int:
        """Return how many messages a group has not consumed yet."""
        return self._loop.call(self._client.lag(group, topic))

    def reset_offsets(self, group: str, topic: str, timestamp_ms: int = -1, *, force: bool = True) -> dict[MessageQueue, int]:
        """Move a group to the messages of a time (ms; -1: the end), online or not; return the new offsets."""
        return self._loop.call(self._client.reset_offsets(group, topic, timestamp_ms, force=force))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return who consumes in a group. Raises ConsumerNotOnline."""
        return self._loop.call(self._client.consumer_connections(group))

    def producer_connections(self, group: str, topic: str) -> ProducerConnection:
        """Return who produces in a group, at the brokers of a topic."""
        return self._loop.call(self._client.producer_connections(group, topic))

    def consumer_running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """Ask one consumer how it is."""
        return self._loop.call(self._client.consumer_running_info(group, client_id))

    def broker_runtime_info(self, broker_address: str) -> dict[str, str]:
        """Return the figures of a broker."""
        return self._loop.call(self._client.broker_runtime_info(broker_address))

    def broker_config(self, broker_address: str) -> dict[str, str]:
        """Return the settings of a broker."""
        return self._loop.call(self._client.broker_config(broker_address))

    def update_broker_config(self, broker_address: str, settings: dict[str, str]) -> None:
        """Change settings of a running broker."""
        self._loop.call(self._client.update_broker_config(broker_address, settings))

    def messages_by_key(
        self, topic: str, key: str, *, count_max: int = 64, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return messages of a topic that carry a key, stored between two times, oldest first."""
        return self._loop.call(self._client.messages_by_key(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms))

    def message_by_id(self, topic: str, msg_id: str) -> StoredMessage:
        """Return the message with a sender's id, or a broker's. Raises QueryNotFound."""
        return self._loop.call(self._client.message_by_id(topic, msg_id))

    def message_by_offset_id(self, offset_msg_id: str) -> StoredMessage:
        """Return the message with a broker's id, which names the broker itself."""
        return self._loop.call(self._client.message_by_offset_id(offset_msg_id))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message of a queue."""
        return self._loop.call(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will get."""
        return self._loop.call(self._client.max_offset(queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored at or near a time, ms since the epoch."""
        return self._loop.call(self._client.search_offset(queue, timestamp_ms))

    def kv(self, namespace: str, key: str) -> str | None:
        """Return a value that the name servers keep, or None."""
        return self._loop.call(self._client.kv(namespace, key))

    def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace of the name servers."""
        return self._loop.call(self._client.kv_list(namespace))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        self._loop.call(self._client.put_kv(namespace, key, value))

    def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value at every name server."""
        self._loop.call(self._client.delete_kv(namespace, key))
