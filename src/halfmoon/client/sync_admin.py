"""The blocking API. Generated from `halfmoon.client.aio_admin`; do not edit.

Every call runs on one background event loop of the process (`halfmoon.runtime.drivers.threads`); safe to use from many threads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from halfmoon.client.aio_admin import AsyncAdmin
from halfmoon.client.blocking import Blocking
from halfmoon.client.core.admin.batches import BatchesAt
from halfmoon.client.core.admin.delay import DelayedFound
from halfmoon.client.core.admin.reset import Target
from halfmoon.client.core.admin.transaction_facts import GivenUpTransaction, TransactionAt, TransactionStatsAt
from halfmoon.client.settings import AdminSettings
from halfmoon.model import DeadLetter, LocalTransactionState, MessageQueue, Replayed, StoredMessage
from halfmoon.results import MessageTrace, OffsetMove
from halfmoon.runtime.drivers.threads import background
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


class Admin(Blocking):
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

    def reset_offsets(
        self, group: str, topic: str, to: Target, *, queues: Collection[MessageQueue] | None = None, dry_run: bool = False
    ) -> list[OffsetMove]:
        """Move a group in a topic, or in some of its queues, online or not; return what moved. ``dry_run`` changes nothing.

        ``to``: "earliest", "latest", a time (ms since the epoch or a datetime), or a table of offsets by queue. All is checked
        before anything is moved. Raises OffsetIllegal for an offset that a queue does not have.
        """
        return self._loop.call(self._client.reset_offsets(group, topic, to, queues=queues, dry_run=dry_run))

    def consume_directly(self, group: str, client_id: str, offset_msg_id: str) -> ConsumeDirectlyResult:
        """Have one online push consumer consume one message now, its progress untouched; the id is the broker's."""
        return self._loop.call(self._client.consume_directly(group, client_id, offset_msg_id))

    def consumer_offsets(self, group: str, topic: str) -> dict[str, dict[MessageQueue, int]]:
        """Ask the online members of a group how far they are in a topic; return it by client id."""
        return self._loop.call(self._client.consumer_offsets(group, topic))

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

    def trace(self, msg_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC) -> MessageTrace:
        """Return the life of the message with a sender's id, or a broker's; ``topic`` spares the search for it.

        Told from what brokers keep anyway, and from what clients with tracing switched on sent to ``trace_topic``.
        """
        return self._loop.call(self._client.trace(msg_id, topic, trace_topic=trace_topic))

    def resend(self, message: StoredMessage, *, group: str | None = None) -> str:
        """Store a copy of an old message again, for all groups or for one alone; return its id at the broker."""
        return self._loop.call(self._client.resend(message, group=group))

    def delayed_messages(self, *, topic: str | None = None, count_max: int = 100) -> DelayedFound:
        """Return messages of all Halfmoon brokers that wait for their time, the next first, and how many wait in all.

        Raises RequestNotSupported for a broker that keeps no such list.
        """
        return self._loop.call(self._client.delayed_messages(topic=topic, count_max=count_max))

    def cancel_delayed(self, topic: str, name: str) -> str:
        """Cancel a message that waits for a point in time, by its handle or its id; return its id.

        Raises IllegalOperation when no broker has such a message (any more); one that waits on a level cannot be cancelled.
        """
        return self._loop.call(self._client.cancel_delayed(topic, name))

    def pending_transactions(
        self, *, group: str | None = None, older_than_ms: int = 0, count_max: int = 100
    ) -> list[TransactionAt]:
        """Return undecided half messages of all brokers, or of one producer group, at least so old, the oldest first.

        Of brokers that keep no table of them the half queue is read; ``not_told`` says what is not known then.
        """
        return self._loop.call(self._client.pending_transactions(group=group, older_than_ms=older_than_ms, count_max=count_max))

    def transaction(self, name: str | int) -> TransactionAt:
        """Return one transaction, pending or decided; the name is its id, a key of its message or the broker's id; a number
        is the offset in the half queue. Raises QueryNotFound, and UsageError or BrokerError when it names several.
        """
        return self._loop.call(self._client.transaction(name))

    def check_transaction(self, name: str | int) -> TransactionAt:
        """Have a producer asked now what became of a transaction. Raises BrokerError when there is none, or on Apache's brokers."""
        return self._loop.call(self._client.check_transaction(name))

    def decide_transaction(self, name: str | int, *, commit: bool, operator: str) -> TransactionAt:
        """Commit or roll back by hand; who does it is written into the broker's log and op record, where it is one of ours.

        A repeat changes nothing; BrokerError refuses a contradiction.
        """
        return self._loop.call(self._client.decide_transaction(name, commit=commit, operator=operator))

    def transaction_stats(self) -> list[TransactionStatsAt]:
        """Return what is pending by producer group, and what happened since the start, of every broker."""
        return self._loop.call(self._client.transaction_stats())

    def batches(self, transactional_id: str | None = None) -> list[BatchesAt]:
        """Return transactional ids of batch transactions of every broker, or one of them, with what is undecided."""
        return self._loop.call(self._client.batches(transactional_id))

    def given_up(self, *, count_max: int = 100) -> list[GivenUpTransaction]:
        """Return the newest half messages that were given up, the oldest first; `resume_half` takes their offset_msg_id."""
        return self._loop.call(self._client.given_up(count_max=count_max))

    def end_transaction(self, offset_msg_id: str, state: LocalTransactionState) -> StoredMessage:
        """Commit or roll back by hand the half message with a broker's id; return it once the broker agreed.

        Against Apache's brokers give the id of the newest copy (each check writes one), and decide once.
        """
        return self._loop.call(self._client.end_transaction(offset_msg_id, state))

    def resume_half(self, offset_msg_id: str) -> None:
        """Have a half message that was given up checked again; the id is that of its copy in TRANS_CHECK_MAX_TIME_TOPIC."""
        self._loop.call(self._client.resume_half(offset_msg_id))

    def dead_letters(
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
        return self._loop.call(
            self._client.dead_letters(
                group,
                begin_ms=begin_ms,
                end_ms=end_ms,
                key=key,
                reason=reason,
                expression=expression,
                expression_type=expression_type,
                count_max=count_max,
            )
        )

    def dead_letter(self, name: str, group: str | None = None) -> DeadLetter:
        """Return the dead letter with a broker's id, or the newest one of a group with a sender's id. Raises QueryNotFound."""
        return self._loop.call(self._client.dead_letter(name, group))

    def replays(self, letter: DeadLetter, topic: str) -> list[StoredMessage]:
        """Return the messages of a topic that come from a dead letter, the oldest first."""
        return self._loop.call(self._client.replays(letter, topic))

    def replay_dead_letter(
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
        return self._loop.call(
            self._client.replay_dead_letter(
                letter, to=to, body=body, tag=tag, keys=keys, properties=properties, again=again, dry_run=dry_run
            )
        )

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
