"""Names of topics and groups: legal characters, system topics, retry and dead-letter topics.

Follows TopicValidator, MixAll and TopicPublishInfo (RocketMQ 4.9.8). Holds no state.
"""

from __future__ import annotations

import re

from halfmoon.errors import BrokerError
from halfmoon.limits import TOPIC_LENGTH_MAX
from halfmoon.store import layout

TEMPLATE_TOPIC = "TBW102"
SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
HALF_TOPIC, OP_TOPIC = layout.HALF_TOPIC, layout.OP_TOPIC
TRANSACTIONS_GROUP = "CID_RMQ_SYS_TRANS"
"""The consumer group under which the original keeps how far the half and op queues are settled."""
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
BATCH_TOPIC = "rmq_sys_HALFMOON_BATCHES"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC = "BenchmarkTest"
RETRY_PREFIX, DEAD_PREFIX = "%RETRY%", "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

SYSTEM_TOPICS = frozenset({
    TEMPLATE_TOPIC, SCHEDULE_TOPIC, BENCHMARK_TOPIC, HALF_TOPIC, "RMQ_SYS_TRACE_TOPIC", OP_TOPIC, EXPIRED_TOPIC,
    SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
})  # fmt: skip
FORBIDDEN_TO_SEND = frozenset({
    SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, BATCH_TOPIC, EXPIRED_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC,
})  # fmt: skip

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")


def is_system_topic(topic: str) -> bool:
    """Whether commands may not create, change or delete it."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic(topic: str) -> None:
    """Raise the refusal (code 1) of a topic name that is blank, too long or has other characters than ``%|A-Za-z0-9_-``."""
    if not topic.strip():
        raise BrokerError("The specified topic is blank.")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise BrokerError("The specified topic is longer than topic max length.")
    if _LEGAL.fullmatch(topic) is None:
        raise BrokerError("The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")


def check_group(group: str) -> None:
    """Raise the refusal (code 1) of a group name. A group's name with ``%RETRY%`` before it must still be a topic's."""
    if not group.strip():
        raise BrokerError("The specified group is blank.")
    if len(group) > 255:
        raise BrokerError("The specified group is longer than group max length: 255.")
    if _LEGAL.fullmatch(group) is None:
        raise BrokerError("The specified group contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")


def retry_topic(group: str) -> str:
    """Return the topic from which a group receives messages again that it could not consume."""
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DEAD_PREFIX + group
