"""JSON bodies of requests and replies as plain values, by name; and settings as text. Decides nothing.

The shapes are in `wire.bodies.clients`, `wire.bodies.groups` and `wire.bodies.topics`; `to_json` and `from_json` turn
all of them to text and back. Times are milliseconds since the epoch. A field marked 5.x is left out when None, and 4.x
peers ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping

from halfmoon.wire.bodies.assignments import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MessageRequestMode,
    QueueAssignment,
    RequestModeTable,
)
from halfmoon.wire.bodies.clients import (
    CheckClientBody,
    ClientConnection,
    ConsumeDirectlyResult,
    ConsumeFigures,
    ConsumeFromWhere,
    ConsumeQueueEntries,
    ConsumeQueueEntry,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerIdList,
    ConsumerRunningInfo,
    GroupSubscription,
    HeartbeatData,
    LockBatchReply,
    LockBatchRequest,
    ProcessQueueInfo,
    ProducerConnection,
    ProducerData,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
)
from halfmoon.wire.bodies.copies import CopiesState, MasterState, SlaveState
from halfmoon.wire.bodies.delays import DelayedMessage, DelayedMessages, TimerCheckpoint, TimerCount, TimerCounts, TimerOffset
from halfmoon.wire.bodies.groups import (
    BrokerConsumeStats,
    BrokerStatsData,
    BrokerStatsItem,
    ConsumerOffsetTable,
    ConsumerStatus,
    ConsumeStats,
    ConsumeTimeSpans,
    CorrectionOffsets,
    DelayOffsetTable,
    GroupForbidden,
    GroupList,
    LocalOffsetTable,
    LockTable,
    OffsetWrapper,
    QueueTimeSpan,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    SubscriptionGroupTable,
    TopicFigures,
    TopicFiguresTable,
    TopicOffset,
    TopicStatsTable,
    TrimmedQueue,
    TrimmedQueues,
    TrimTable,
)
from halfmoon.wire.bodies.topics import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicRouteData,
    decode_register_body,
    encode_register_body,
    ordered_queues,
)
from halfmoon.wire.bodies.transactions import (
    Downtime,
    GroupTransactions,
    PendingTransactions,
    SentCheck,
    Transaction,
    TransactionStats,
    UptimeTable,
)
from halfmoon.wire.json import BadBody, Buffer, from_json, to_json

__all__ = [
    "CONFIG_LINES_MAX",
    "AssignmentQuery",
    "Assignments",
    "BadBody",
    "BrokerConsumeStats",
    "BrokerData",
    "BrokerStatsData",
    "BrokerStatsItem",
    "CheckClientBody",
    "ClientConnection",
    "ClusterInfo",
    "ConsumeDirectlyResult",
    "ConsumeFigures",
    "ConsumeFromWhere",
    "ConsumeQueueEntries",
    "ConsumeQueueEntry",
    "ConsumeResult",
    "ConsumeStats",
    "ConsumeTimeSpans",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIdList",
    "ConsumerOffsetTable",
    "ConsumerRunningInfo",
    "ConsumerStatus",
    "CopiesState",
    "CorrectionOffsets",
    "DataVersion",
    "DelayOffsetTable",
    "DelayedMessage",
    "DelayedMessages",
    "Downtime",
    "GroupForbidden",
    "GroupList",
    "GroupRequestMode",
    "GroupSubscription",
    "GroupTransactions",
    "HeartbeatData",
    "KVTable",
    "LocalOffsetTable",
    "LockBatchReply",
    "LockBatchRequest",
    "LockTable",
    "MasterState",
    "MessageRequestMode",
    "OffsetWrapper",
    "PendingTransactions",
    "ProcessQueueInfo",
    "ProducerConnection",
    "ProducerData",
    "ProducerInfo",
    "ProducerTable",
    "QueueAssignment",
    "QueueData",
    "QueueTimeSpan",
    "RegisterBrokerBody",
    "RequestModeTable",
    "ResetOffsetBody",
    "SentCheck",
    "SlaveState",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "SubscriptionGroupList",
    "SubscriptionGroupTable",
    "TimerCheckpoint",
    "TimerCount",
    "TimerCounts",
    "TimerOffset",
    "TopicConfig",
    "TopicConfigList",
    "TopicConfigTable",
    "TopicFigures",
    "TopicFiguresTable",
    "TopicList",
    "TopicOffset",
    "TopicRouteData",
    "TopicStatsTable",
    "Transaction",
    "TransactionStats",
    "TrimTable",
    "TrimmedQueue",
    "TrimmedQueues",
    "UptimeTable",
    "config_text",
    "decode_register_body",
    "encode_register_body",
    "from_json",
    "ordered_queues",
    "parse_config_text",
    "to_json",
]

# ---------------------------------------------------------------- settings as text

CONFIG_LINES_MAX = 10_000
"""Lines of a settings body. A broker has some 300 settings."""


def parse_config_text(data: Buffer) -> dict[str, str]:
    """Return the settings of Java properties text: ``name=value`` lines; blank lines and those that begin with # or ! are skipped.

    A name ends at the first ``=`` or ``:``; a backslash before a character stands for that character. Continued lines are not read.

    Raises:
        BadBody: not UTF-8, or more than `CONFIG_LINES_MAX` lines.
    """
    try:
        lines = str(data, "utf-8").splitlines()
    except UnicodeDecodeError:
        raise BadBody("settings are not UTF-8 text") from None
    if len(lines) > CONFIG_LINES_MAX:
        raise BadBody(f"more than {CONFIG_LINES_MAX} lines of settings")
    settings: dict[str, str] = {}
    for line in map(str.strip, lines):
        if line and line[0] not in "#!":
            name, value = _split_line(line)
            if name:
                settings[name] = value
    return settings


def config_text(settings: Mapping[str, str]) -> bytes:
    """Return settings as ``name=value`` lines, as brokers and name servers answer. Line ends inside a value become blanks."""
    return "".join(f"{name}={' '.join(value.splitlines())}\n" for name, value in settings.items()).encode()


def _split_line(line: str) -> tuple[str, str]:
    sides: list[list[str]] = [[], []]
    side, escaped = 0, False
    for character in line:
        if escaped or (character != "\\" and (side or character not in "=:")):
            sides[side].append(character)
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            side = 1
    return "".join(sides[0]).strip(), "".join(sides[1]).strip()
