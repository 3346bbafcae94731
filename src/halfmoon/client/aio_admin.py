"""Administration on asyncio. Thin, as `halfmoon.client.aio`; `halfmoon.client.sync_admin` is generated from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from halfmoon.client.core.admin.admin import AdminCore
from halfmoon.client.core.admin.batches import BatchesAt, batches
from halfmoon.client.core.admin.dead_letters import Choice, dead_letter, dead_letters
from halfmoon.client.core.admin.delay import DelayedFound, cancel_delayed, delayed_messages
from halfmoon.client.core.admin.find import message_by_id, message_by_offset_id, messages_by_key
from halfmoon.client.core.admin.replay import Edit, replay_dead_letter, replays
from halfmoon.client.core.admin.resend import resend
from halfmoon.client.core.admin.reset import Target, consume_directly, consumer_offsets, reset_offsets
from halfmoon.client.core.admin.trace import message_trace
from halfmoon.client.core.admin.transaction_facts import GivenUpTransaction, TransactionAt, TransactionStatsAt
from halfmoon.client.core.admin.transactions import (
    check_transaction,
    decide_transaction,
    end_transaction,
    given_up,
    pending_transactions,
    resume_half,
    transaction,
    transaction_stats,
)
from halfmoon.client.core.consume.pull import max_offset, min_offset, offset_at
from halfmoon.client.lifecycle import Client, values_of
from halfmoon.client.settings import (
    AdminSettings,
    settings_of,
)
from halfmoon.model import DeadLetter, LocalTransactionState, MessageQueue, Replayed, StoredMessage
from halfmoon.results import MessageTrace, OffsetMove
from halfmoon.runtime.drivers.asyncio_driver import Driver
from halfmoon.wire.bodies import (
    ClusterInfo,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    OffsetWrapper,
    ProducerConnection,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicOffset,
    TopicRouteData,
)
from halfmoon.wire.bodies.traces import TRACE_TOPIC


class AsyncAdmin(Client[AdminSettings]):
    """Looks into a cluster and changes it: topics, groups, progress, messages, brokers.

    ::

        async with AsyncAdmin(nameserver="127.0.0.1:9876") as admin:
            await admin.create_topic("orders", queue_count=4)
            print(await admin.lag("C_shop"))
    """

    def __init__(self, settings: AdminSettings | None = None, **values: Any) -> None:
        super().__init__(settings_of(AdminSettings, {**(values_of(settings) if settings else {}), **values}))
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

    async def reset_offsets(
        self, group: str, topic: str, to: Target, *, queues: Collection[MessageQueue] | None = None, dry_run: bool = False
    ) -> list[OffsetMove]:
        """Move a group in a topic, or in some of its queues, online or not; return what moved. ``dry_run`` changes nothing.

        ``to``: "earliest", "latest", a time (ms since the epoch or a datetime), or a table of offsets by queue. All is checked
        before anything is moved. Raises OffsetIllegal for an offset that a queue does not have.
        """
        chosen = None if queues is None else set(queues)
        return await self._run(reset_offsets(self._core, group, topic, to, queues=chosen, dry_run=dry_run))

    async def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumeDirectlyResult:
        """Have one online push consumer consume one message now, its progress untouched; the id is the broker's."""
        return await self._run(consume_directly(self._core, group, client_id, offset_msg_id))

    async def consumer_offsets(self, group: str, topic: str) -> dict[str, dict[MessageQueue, int]]:
        """Ask the online members of a group how far they are in a topic; return it by client id."""
        return await self._run(consumer_offsets(self._core, group, topic))

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

    async def trace(self, msg_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return the life of the message with a sender's id, or a broker's; ``topic`` spares the search for it.

        Told from what brokers keep anyway, and from what clients with tracing switched on sent to ``trace_topic``.
        """
        return await self._run(message_trace(self._core, msg_id, topic, trace_topic=trace_topic))

    async def resend(self, message: StoredMessage, *, group: str | None = None) -> str:
        """Store a copy of an old message again, for all groups or for one alone; return its id at the broker."""
        return await self._run(resend(self._core, message, group=group))

    async def delayed_messages(self, *, topic: str | None = None, count_max: int = 100) -> DelayedFound:
        """Return messages of all Halfmoon brokers that wait for their time, the next first, and how many wait in all.

        Raises RequestNotSupported for a broker that keeps no such list.
        """
        return await self._run(delayed_messages(self._core, topic=topic, count_max=count_max))

    async def cancel_delayed(self, topic: str, name: str) -> str:
        """Cancel a message that waits for a point in time, by its handle or its id; return its id.

        Raises IllegalOperation when no broker has such a message (any more); one that waits on a level cannot be cancelled.
        """
        return await self._run(cancel_delayed(self._core, topic, name))

    async def pending_transactions(
        self, *, group: str | None = None, older_than_ms: int = 0, count_max: int = 100
    ) -> list[TransactionAt]:
        """Return undecided half messages of all brokers, or of one producer group, at least so old, the oldest first.

        Of brokers that keep no table of them the half queue is read; ``not_told`` says what is not known then.
        """
        return await self._run(pending_transactions(self._core, group=group, older_than_ms=older_than_ms, count_max=count_max))

    async def transaction(self, name: str | int) -> TransactionAt:
        """Return one transaction, pending or decided; the name is its id, a key of its message or the broker's id; a number
        is the offset in the half queue. Raises QueryNotFound, and UsageError or BrokerError when it names several."""
        return await self._run(transaction(self._core, name))

    async def check_transaction(self, name: str | int) -> TransactionAt:
        """Have a producer asked now what became of a transaction. Raises BrokerError when there is none, or on Apache's brokers."""
        return await self._run(check_transaction(self._core, name))

    async def decide_transaction(self, name: str | int, *, commit: bool, operator: str) -> TransactionAt:
        """Commit or roll back by hand; who does it is written into the broker's log and op record, where it is one of ours.

        A repeat changes nothing; BrokerError refuses a contradiction.
        """
        return await self._run(decide_transaction(self._core, name, commit=commit, operator=operator))

    async def transaction_stats(self) -> list[TransactionStatsAt]:
        """Return what is pending by producer group, and what happened since the start, of every broker."""
        return await self._run(transaction_stats(self._core))

    async def batches(self, transactional_id: str | None = None) -> list[BatchesAt]:
        """Return transactional ids of batch transactions of every broker, or one of them, with what is undecided."""
        return await self._run(batches(self._core, transactional_id))

    async def given_up(self, *, count_max: int = 100) -> list[GivenUpTransaction]:
        """Return the newest half messages that were given up, the oldest first; `resume_half` takes their offset_msg_id."""
        return await self._run(given_up(self._core, count_max=count_max))

    async def end_transaction(self, offset_msg_id: str, state: LocalTransactionState) -> StoredMessage:
        """Commit or roll back by hand the half message with a broker's id; return it once the broker agreed.

        Against Apache's brokers give the id of the newest copy (each check writes one), and decide once.
        """
        return await self._run(end_transaction(self._core, offset_msg_id, state))

    async def resume_half(self, offset_msg_id: str) -> None:
        """Have a half message that was given up checked again; the id is that of its copy in TRANS_CHECK_MAX_TIME_TOPIC."""
        await self._run(resume_half(self._core, offset_msg_id))

    async def dead_letters(
        self,
        group: str | None = None,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        key: str | None = None,
        reason: str | None = None,
        expression: str = "*",
        expression_type: str = "TAG",
        count_max: int = 100,
    ) -> list[DeadLetter]:
        """Return what a group gave up, or all groups, the oldest first.

        Those given up between two times, with a key or an id, with a part of a reason, by tags or by an SQL92 expression.
        """
        choice = Choice(begin_ms, end_ms, key, reason, expression, expression_type)
        return await self._run(dead_letters(self._core, group, choice, count_max))

    async def dead_letter(self, name: str, group: str | None = None) -> DeadLetter:
        """Return the dead letter with a broker's id, or the newest one of a group with a sender's id. Raises QueryNotFound."""
        return await self._run(dead_letter(self._core, name, group))

    async def replays(self, letter: DeadLetter, topic: str) -> list[StoredMessage]:
        """Return the messages of a topic that come from a dead letter, the oldest first."""
        return await self._run(replays(self._core, letter, topic))

    async def replay_dead_letter(
        self,
        letter: DeadLetter,
        *,
        to: str | None = None,
        body: bytes | None = None,
        tag: str | None = None,
        keys: str | None = None,
        properties: dict[str, str | None] | None = None,
        again: bool = False,
        dry_run: bool = False,
    ) -> Replayed:
        """Send a copy of a dead letter to its group alone, or to a topic, unless one went there before.

        What is given replaces what the dead letter has (a property of None is taken out). ``again`` sends another copy all the
        same; ``dry_run`` only says what would be done. Raises UsageError, MessageIllegal, BrokerError.
        """
        edit = Edit(body, tag, keys, properties or {})
        return await self._run(replay_dead_letter(self._core, letter, to=to, edit=edit, again=again, dry=dry_run))

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
