"""Bodies about connected clients: heartbeats, subscriptions, locks, connections, running info. Holds shapes; decides nothing.

`halfmoon.wire.bodies` gives all of these names.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from halfmoon.model import ConsumeType, MessageModel, MessageQueue, Subscription
from halfmoon.wire.json import Body
from halfmoon.wire.table import I32, I64


class ConsumeFromWhere(IntEnum):
    """Start of a group without progress, under the protocol's names. Numbers as in `halfmoon.model.ConsumeFrom`."""

    CONSUME_FROM_LAST_OFFSET = 0
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = 1
    CONSUME_FROM_MIN_OFFSET = 2
    CONSUME_FROM_MAX_OFFSET = 3
    CONSUME_FROM_FIRST_OFFSET = 4
    CONSUME_FROM_TIMESTAMP = 5


CLASS = "CLASS"
"""Type of a subscription whose filter is a class of the consumer, sent as a flag. No longer supported by any broker."""


class SubscriptionData(Body):
    """Subscription on the wire; ``code_set`` are the Java hashes of ``tags_set``."""

    topic: str = ""
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[I32] = []
    sub_version: I64 | None = None
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    @classmethod
    def of(cls, subscription: Subscription) -> SubscriptionData:
        """Return a subscription in its wire form."""
        by_class = subscription.expression_type == CLASS
        return cls(
            subscription.topic, subscription.expression, sorted(subscription.tags), sorted(subscription.codes),
            subscription.version, "TAG" if by_class else subscription.expression_type, by_class,
        )  # fmt: skip

    def subscription(self, now: int = 0) -> Subscription:
        """Return the plain value; its version is ``now`` if it has none, as in the original."""
        tags, codes = frozenset(self.tags_set), frozenset(self.code_set)
        version = now if self.sub_version is None else self.sub_version
        return Subscription(
            self.topic, self.sub_string, CLASS if self.class_filter_mode else self.expression_type, tags, codes, version
        )


class GroupSubscription(Body):
    """Subscription of a group to a topic: reply of 345. None: not subscribed, or not online."""

    group: str = ""
    topic: str = ""
    subscription_data: SubscriptionData | None = None


class ConsumeQueueEntry(Body):
    """Stored entry of a consume queue. Fields of extended entries are never set."""

    physic_offset: I64 = 0
    physic_size: I32 = 0
    tags_code: I64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class ConsumeQueueEntries(Body):
    """Entries of a consume queue, its bounds, and the subscription of the given group to the topic: reply of 321."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: list[ConsumeQueueEntry] = []
    max_queue_index: I64 = 0
    min_queue_index: I64 = 0


class ProducerData(Body):
    """Producer group of a client."""

    group_name: str = ""


class ConsumerData(Body):
    """Consumer group of a client and its subscriptions. An enum with an unknown value is None."""

    group_name: str = ""
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Body):
    """All groups of a client: body of 34."""

    client_id: str = msgspec.field(default="", name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: I32 | None = None
    """5.x."""
    without_sub: bool | None = None
    """5.x."""


class CheckClientBody(Body):
    """Subscription to check: body of 46."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData = msgspec.field(default_factory=SubscriptionData)
    namespace: str | None = None
    """5.x."""


class ConsumerIdList(Body):
    """Client ids of a consumer group: reply of 38."""

    consumer_id_list: list[str] = []


class LockBatchRequest(Body):
    """Queues to lock or unlock for a client: body of 41 and 42."""

    client_id: str = ""
    consumer_group: str = ""
    mq_set: list[MessageQueue] = []
    only_this_broker: bool | None = None
    """5.x."""


class LockBatchReply(Body):
    """Queues locked for the requesting client: reply of 41."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(default_factory=list, name="lockOKMQSet")


class ClientConnection(Body):
    """Connection of a client. ``language`` is a name of `halfmoon.wire.codes.Language`."""

    client_id: str = ""
    client_addr: str = ""
    language: str = "OTHER"
    version: I32 = 0


class ConsumerConnection(Body):
    """Connected consumers of a group and their settings: reply of 203."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerConnection(Body):
    """Connected producers of a group: reply of 204."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Body):
    """Producer connected to a broker."""

    client_id: str = ""
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    language: str = "OTHER"
    version: I32 = 0
    last_update_timestamp: I64 = 0


class ProducerTable(Body):
    """Producers by group: reply of 328."""

    data: dict[str, list[ProducerInfo]] = {}


class ProcessQueueInfo(Body):
    """State of a consumer in one queue."""

    commit_offset: I64 = 0
    cached_msg_min_offset: I64 = 0
    cached_msg_max_offset: I64 = 0
    cached_msg_count: I32 = 0
    cached_msg_size_in_mib: I32 = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: I64 = 0
    transaction_msg_max_offset: I64 = 0
    transaction_msg_count: I32 = 0
    locked: bool = False
    try_unlock_times: I64 = 0
    last_lock_timestamp: I64 = 0
    droped: bool = False
    """Spelt so on the wire."""
    last_pull_timestamp: I64 = 0
    last_consume_timestamp: I64 = 0
    failed_offset: I64 | None = None
    """Halfmoon's, as the next three: the message that holds an ordered queue, as its listener fails to consume it."""
    failed_tries: I64 | None = None
    failed_since_ms: I64 | None = None
    failed_reason: str | None = None


class ConsumeFigures(Body):
    """Rates (a second), times (ms) and failures (the last hour) of a consumer in one topic."""

    pull_rt: float = msgspec.field(default=0.0, name="pullRT")
    pull_tps: float = msgspec.field(default=0.0, name="pullTPS")
    consume_rt: float = msgspec.field(default=0.0, name="consumeRT")
    consume_ok_tps: float = msgspec.field(default=0.0, name="consumeOKTPS")
    consume_failed_tps: float = msgspec.field(default=0.0, name="consumeFailedTPS")
    consume_failed_msgs: I64 = 0


class ConsumerRunningInfo(Body):
    """Running info of a consumer: reply of 307. Administration tools rely on the first four fields."""

    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeFigures] = {}
    user_consumer_info: dict[str, str] | None = None
    """5.x."""
    jstack: str | None = None


class ConsumeResult(StrEnum):
    """Result of a listener for a message. Java clients send its name, Go clients its number. Follows CMResult (RocketMQ 4.9.8)."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeDirectlyResult(Body):
    """Result of consuming one message directly: reply of 309. ``spent_time_mills`` is spelt so on the wire."""

    order: bool = False
    auto_commit: bool = True
    consume_result: ConsumeResult = ConsumeResult.CR_SUCCESS
    remark: str | None = None
    spent_time_mills: I64 = 0
