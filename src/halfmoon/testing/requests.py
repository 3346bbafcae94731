"""Requests to a simulated broker as plain headers, and the messages in what it answers. Pure; sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from halfmoon.model import KEYS, TAGS, UNIQ_KEY, StoredMessage
from halfmoon.wire import properties
from halfmoon.wire.codes import PULL_SUBSCRIPTION, PULL_SUSPEND
from halfmoon.wire.command import Command
from halfmoon.wire.headers.pull import PullMessage
from halfmoon.wire.headers.send import SendMessage, SendMessageV2
from halfmoon.wire.record import decode_record

Header = TypeVar("Header")

QUEUES = 4
"""Queues of a topic that a send creates."""


def send_request(
    topic: str, queue_id: int, tag: str | None, keys: str, unique: str, born_ms: int, *, long: bool
) -> SendMessage | SendMessageV2:
    """Return the header of a plain send, with long (10) or short (310) field names."""
    fields = {KEYS: keys, UNIQ_KEY: unique, "WAIT": "true"} | ({TAGS: tag} if tag else {})
    if long:
        return send_header(SendMessage, topic, queue_id, born_ms, fields)
    return send_header(SendMessageV2, topic, queue_id, born_ms, fields)


def send_header(
    kind: Callable[..., Header], topic: str, queue_id: int, born_ms: int, fields: dict[str, str], **more: Any
) -> Header:  # fmt: skip
    """Return the header of a send of one ``kind``, with properties; ``more`` are other fields of it."""
    return kind(
        producer_group="senders", topic=topic, default_topic="TBW102", default_topic_queue_nums=QUEUES, queue_id=queue_id,
        sys_flag=0, born_timestamp=born_ms, flag=0, properties=properties.encode(fields).decode(), **more,
    )  # fmt: skip


def pull_request(
    group: str, topic: str, queue_id: int, offset: int, *, count: int = 32, wait_ms: int = 0, expression: str = "*"
) -> PullMessage:
    """Return the header of a pull that carries its subscription and may be held ``wait_ms``."""
    return PullMessage(
        consumer_group=group, topic=topic, queue_id=queue_id, queue_offset=offset, max_msg_nums=count,
        sys_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if wait_ms else 0), commit_offset=0, suspend_timeout_millis=wait_ms,
        sub_version=1, subscription=expression, expression_type="TAG",
    )  # fmt: skip


def messages_of(reply: Command) -> Iterator[tuple[StoredMessage, bytes]]:
    """Return the messages of a pull's answer with their records. Raises BadMessage."""
    body = memoryview(bytes(reply.body))
    at = 0
    while at < len(body):
        message = decode_record(body, at)
        yield message, bytes(body[at : at + message.size_bytes])
        at += message.size_bytes
