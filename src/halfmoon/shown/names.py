"""Topics and groups that belong to the protocol, and which are the users'. Pure functions."""

from __future__ import annotations

from halfmoon.model import MessageQueue

SYSTEM_TOPICS = frozenset(
    {
        *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    }
)
"""Topics that every broker has. Follows TopicValidator (RocketMQ 4.9.8)."""

SYSTEM_GROUPS = frozenset(
    {
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "__MONITOR_CONSUMER"),
        *("CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
    }
)
"""Groups that every broker has. Follows SubscriptionGroupManager.init (RocketMQ 4.9.8)."""


def is_users_topic(name: str) -> bool:
    """Whether a topic is one of the users', not of the protocol. Topics named after brokers and clusters look like users'."""
    return (
        name not in SYSTEM_TOPICS
        and not name.startswith(("%RETRY%", "%DLQ%", "rmq_sys_", "RMQ_SYS_"))
        and not name.endswith("_REPLY_TOPIC")
    )


def is_users_group(name: str) -> bool:
    """Whether a consumer group is one of the users', not of the protocol."""
    return name not in SYSTEM_GROUPS and not name.startswith("CID_RMQ_SYS_")


def queue_name(queue: MessageQueue, topic: str = "") -> str:
    """Return the name of a queue in log lines: ``broker-a:0`` where ``topic`` is its own, else ``orders/broker-a:0``."""
    return f"{'' if topic == queue.topic else f'{queue.topic}/'}{queue.broker_name}:{queue.queue_id}"
