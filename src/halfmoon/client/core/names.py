"""Names and their rules: what a topic, group or message may be, and how a namespace wraps them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from halfmoon.errors import MessageIllegal, UsageError
from halfmoon.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from halfmoon.model import Message
from halfmoon.model.message import FITTING

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"

UNSENDABLE_TOPICS = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)
"""Topics that only brokers write. Follows TopicValidator.isNotAllowedSendTopic (RocketMQ 4.9.8)."""

SYSTEM_TOPICS = UNSENDABLE_TOPICS | {"TBW102", "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC", "CHECKPOINT_TOPIC"}
"""Topics that cannot be created and that no namespace wraps. Follows TopicValidator (RocketMQ 5.3.3)."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_RULE = r"^[%|a-zA-Z0-9_-]+$"


def is_system_topic(topic: str) -> bool:
    """Whether the topic belongs to brokers."""
    return topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_")


def check_topic(topic: object) -> None:
    """Raise UsageError unless the text may name a topic. Follows Validators.checkTopic."""
    if topic is None:
        raise UsageError("The specified topic is blank")
    if not isinstance(topic, str):
        raise UsageError(f"topic is {topic!r:.60} ({type(topic).__name__}): give one text")
    _check_name(topic)


@lru_cache(1024)
def _check_name(topic: str) -> None:
    """Names that passed are remembered, errors are not."""
    if not topic.strip():
        raise UsageError("The specified topic is blank")
    if not _NAME.match(topic):
        raise UsageError(f"The specified topic[{topic}] contains illegal characters, allowing only {_RULE}")
    if len(topic) > TOPIC_LENGTH_MAX:
        raise UsageError(f"The specified topic is longer than topic max length {TOPIC_LENGTH_MAX}.")


def check_sendable(topic: str) -> None:
    """Raise UsageError for a topic that only brokers write."""
    if topic in UNSENDABLE_TOPICS:
        raise UsageError(f"Sending message to topic[{topic}] is forbidden.")


@lru_cache(1024)
def _check_target(topic: str) -> None:
    _check_name(topic)
    check_sendable(topic)


def check_group(group: object, forbidden: str = "") -> None:
    """Raise UsageError unless the text may name a group; ``forbidden`` is the default that nobody may keep."""
    if not isinstance(group, str) or not group.strip():
        raise UsageError("the specified group is blank: give group=…")
    if len(group) > GROUP_LENGTH_MAX:
        raise UsageError(f"the specified group is longer than group max length {GROUP_LENGTH_MAX}.")
    if not _NAME.match(group):
        raise UsageError(f"the specified group[{group}] contains illegal characters, allowing only {_RULE}")
    if group == forbidden:
        raise UsageError(f"the group can not equal {forbidden}, please specify another one.")


def check_message(message: Message | None, body_bytes_max: int) -> None:
    """Raise MessageIllegal or UsageError unless the message can be sent. Follows Validators.checkMessage (RocketMQ 4.9.8)."""
    if message is None:
        raise MessageIllegal("the message is null")
    if not isinstance(message, Message):
        raise no_message(message)
    if message.topic is None:
        raise UsageError("The specified topic is blank")
    if message.body is None:
        raise MessageIllegal("the message body is null")
    if tuple(map(type, msgspec.structs.astuple(message))) not in FITTING:
        message.check_types()
    _check_target(message.topic)
    body = message.body
    if len(body) == 0:
        raise MessageIllegal("the message body length is zero")
    if len(body) > body_bytes_max:
        raise MessageIllegal(f"the message body size over max value, MAX: {body_bytes_max}")


def whole(name: str, value: object) -> int:
    """Return the value of an argument that is a whole number. Raises UsageError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r:.60} ({type(value).__name__}): give a whole number")
    return value


def no_message(given: object) -> MessageIllegal:
    """Return the error for something else in place of a message."""
    return MessageIllegal(f"{given!r:.60} ({type(given).__name__}) is no message: give Message(topic, body)")


def check_batch(messages: object, bytes_max: int) -> None:
    """Raise UsageError, MessageIllegal unless it is a list of messages that go together. Follows MessageBatch.generateFromList."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise UsageError(f"send_batch takes a list of messages, not {messages!r:.60} ({type(messages).__name__})")
    if not messages:
        raise UsageError("messages must not be empty")
    for message in messages:
        check_message(message, bytes_max)
        if why := _why_not_together(message, messages[0]):
            raise UsageError(why)


def _why_not_together(message: Message, first: Message) -> str:
    """Return why a message may not be in a batch with the first one of it; empty when it may."""
    if message.is_delayed:
        return "TimeDelayLevel is not supported for batching"
    if message.topic.startswith(RETRY_PREFIX):
        return "Retry Group is not supported for batching"
    if message.topic != first.topic:
        return "The topic of the messages in one batch should be the same"
    if message.wait_store != first.wait_store:
        return "The waitStoreMsgOK of the messages in one batch should the same"
    return "a batch is not merged with an earlier attempt: send the message alone" if message.attempt != 1 else ""


# ---------------------------------------------------------------- namespaces


def wrap(name: str, namespace: str) -> str:
    """Return a topic or group as it is called on the wire. Follows NamespaceUtil.wrapNamespace."""
    if not namespace or not name or is_system_topic(name) or name.startswith("CID_RMQ_SYS_"):
        return name
    prefix, rest = _split(name)
    return name if rest.startswith(namespace + "%") else f"{prefix}{namespace}%{rest}"


def unwrap(name: str, namespace: str) -> str:
    """Return a topic or group as the user calls it."""
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(namespace + "%")


def retry_topic(group: str) -> str:
    """Return the topic of a group's redeliveries (both as on the wire)."""
    return RETRY_PREFIX + group


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
