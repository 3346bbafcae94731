"""Bodies about groups: configuration, progress, statistics. Holds shapes; decides nothing.

Includes the shapes of ``subscriptionGroup.json``, ``consumerOffset.json`` and ``delayOffset.json``. `halfmoon.wire.bodies`
gives all of these names.
"""

# ruff: noqa: RUF012 - msgspec gives each value its own copy of an empty default

from __future__ import annotations

from typing import Any

import msgspec

from halfmoon.model import MessageQueue
from halfmoon.wire.bodies.topics import DataVersion
from halfmoon.wire.json import Body, to_json
from halfmoon.wire.table import I32, I64


class SubscriptionGroupConfig(Body):
    """Consumer group at one broker: body of 200, reply of 352."""

    group_name: str = ""
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: I32 = 1
    retry_max_times: I32 = 16
    broker_id: I64 = 0
    which_broker_when_consume_slowly: I64 = 1
    notify_consumer_ids_changed_enable: bool = True
    attributes: dict[str, str] | None = None  # from here on 5.x: kept and passed on
    consume_message_orderly: bool | None = None
    consume_timeout_minute: I32 | None = None
    group_retry_policy: dict[str, Any] | None = None
    group_sys_flag: I32 | None = None
    subscription_data_set: list[dict[str, Any]] | None = None


class SubscriptionGroupTable(Body):
    """All groups of a broker: reply of 201, and ``subscriptionGroup.json``."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    forbidden_table: dict[str, dict[str, I32]] | None = None
    """5.x: forbidden operations by group and topic, bits of `halfmoon.wire.codes.Perm`."""


class GroupForbidden(Body):
    """Whether a group may read a topic: reply of 353."""

    group: str = ""
    topic: str = ""
    readable: bool = True


class SubscriptionGroupList(Body):
    """Groups to create or change: body of 225."""

    group_config_list: list[SubscriptionGroupConfig] = []


class GroupList(Body):
    """Names of groups: reply of 300."""

    group_list: list[str] = []


class ConsumerOffsetTable(Body):
    """Progress by ``topic@group`` and queue id: reply of 43, and ``consumerOffset.json``."""

    offset_table: dict[str, dict[int, int]] = {}
    data_version: DataVersion | None = None
    """5.x."""


class CorrectionOffsets(Body):
    """Queue offsets by queue id: reply of 308."""

    correction_offsets: dict[int, I64] = {}


class DelayOffsetTable(Body):
    """Progress by delay level: reply of 45, and ``delayOffset.json``."""

    offset_table: dict[int, int] = {}
    data_version: DataVersion | None = None
    """5.x."""


class LocalOffsetTable(Body):
    """Progress of a broadcasting consumer, as in its local file."""

    offset_table: dict[MessageQueue, I64] = {}
    topic_births: dict[MessageQueue, I64] | None = None
    """Halfmoon's: creation times of the topics of these queues, ms, as far as known. Java clients leave it out."""


class ResetOffsetBody(Body):
    """New offsets of queues: body of 220, reply of 222. Read in both forms, written by `to_json` with queues as keys."""

    offset_table: dict[MessageQueue, I64] = {}

    def list_json(self) -> bytes:
        """Return the form for C++ clients: a list of queues with their offsets."""
        rows = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in self.offset_table.items()
        ]
        return to_json({"offsetTable": rows})


class ConsumerStatus(Body):
    """Offsets of a consumer: reply of 221; of all consumers by client id: reply of 223."""

    message_queue_table: dict[MessageQueue, I64] = {}
    consumer_table: dict[str, dict[MessageQueue, I64]] = {}


# ---------------------------------------------------------------- statistics


class OffsetWrapper(Body):
    """Progress of a group in one queue against its end. ``last_timestamp``: store time of the last consumed message."""

    broker_offset: I64 = 0
    consumer_offset: I64 = 0
    last_timestamp: I64 = 0
    pull_offset: I64 | None = None
    """5.x."""
    unmoved_ms: I64 | None = None
    """Halfmoon's: how long the progress has not moved though messages wait, counted since the broker started at most."""


class ConsumeStats(Body):
    """Progress of a group: reply of 208. ``consume_tps`` is messages a second."""

    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0
    delayed_redeliveries: I64 | None = None
    """Halfmoon's: messages that are delayed until the group is given them again. None: not counted yet, after a start."""


class BrokerConsumeStats(Body):
    """Progress of all groups: reply of 317."""

    broker_addr: str = ""
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    total_diff: I64 = 0


class TopicOffset(Body):
    """Bounds of one queue, and the time of its last message (0: none is left)."""

    min_offset: I64 = 0
    max_offset: I64 = 0
    last_update_timestamp: I64 = 0


class TopicStatsTable(Body):
    """Bounds of a topic's queues: reply of 202."""

    offset_table: dict[MessageQueue, TopicOffset] = {}
    topic_put_tps: float | None = None
    """5.x."""
    topic_birth_ms: I64 | None = None
    """Halfmoon's: `TopicConfig.birth_ms`."""


class TopicFigures(Body):
    """Figures of one topic at one broker, part of the reply of 31050. None: the broker does not know."""

    topic: str = ""
    messages: I64 = 0
    in_per_second: float | None = None
    """Messages stored a second, mean of the last minute."""
    size_bytes: I64 = 0
    """Bytes of its messages in the log: exact up to 256 messages a queue, otherwise from a sample of as many."""
    groups: list[str] = []
    """Groups that consume it now or have progress in it."""


class TopicFiguresTable(Body):
    """Figures of the first ``answered`` topics of a request, without those that the broker does not have: reply of 31050."""

    topics: list[TopicFigures] = []
    answered: I32 = 0


class TrimmedQueue(Body):
    """Lowest offset of a queue before and after a trim, part of the reply of 31051."""

    queue_id: I32 = 0
    min_offset: I64 = 0
    then: I64 = 0


class TrimmedQueues(Body):
    """Queues of a topic that ever had a message, or the one that was asked for: reply of 31051."""

    queues: list[TrimmedQueue] = []


class TrimTable(Body):
    """Offsets below which nothing is delivered, by topic and queue: ``topicTrims.json``."""

    trims: dict[str, dict[int, I64]] = {}


class LockTable(Body):
    """Clients that own queues, by group, topic and queue: ``queueLocks.json``."""

    locks: dict[str, dict[str, dict[int, str]]] = {}


class QueueTimeSpan(Body):
    """Store times of one queue: oldest, newest, next to be consumed; and the group's delay, ms."""

    message_queue: MessageQueue = MessageQueue("", "", 0)
    min_time_stamp: I64 = 0
    max_time_stamp: I64 = 0
    consume_time_stamp: I64 = 0
    delay_time: I64 = 0


class ConsumeTimeSpans(Body):
    """Store times of the queues that a group consumes: reply of 303."""

    consume_time_span_set: list[QueueTimeSpan] = []


class BrokerStatsItem(Body):
    """Statistic over a time span: sum, events per second, average size of an event."""

    sum: I64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Body):
    """Statistic over a minute, an hour and a day: reply of 315."""

    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
