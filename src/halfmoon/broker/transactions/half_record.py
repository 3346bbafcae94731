"""What the record of a half message says: where it belongs, whose it is, and what a commit stores of it. Keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from halfmoon.broker.names import check_topic
from halfmoon.broker.transactions.half import PRODUCER_GROUP, REAL_QUEUE, REAL_TOPIC
from halfmoon.errors import BrokerError
from halfmoon.hot import Messages, Parts, tag_hash
from halfmoon.wire import properties as wire_properties


class HalfMessage(msgspec.Struct, gc=False):
    """One half message: where it lies, its producer group, where it belongs, and ``message``, which is that one alone."""

    physical_offset: int
    group: str
    topic: str
    queue_id: int
    message: Messages


def real_queue(properties: bytes) -> tuple[str, int]:
    """Return topic and queue where a half message belongs; ("", 0) when it does not say, or names what can be no topic."""
    topic = (wire_properties.value_of(properties, REAL_TOPIC.encode()) or b"").decode("utf-8", "replace")
    queue = wire_properties.value_of(properties, REAL_QUEUE.encode()) or b""
    try:
        check_topic(topic)
    except BrokerError:
        return "", 0
    return (topic, int(queue)) if queue.isdigit() and len(queue) < 10 else ("", 0)


def half_message(parts: Parts) -> HalfMessage:
    """Return a half message as it was stored."""
    tag = wire_properties.value_of(parts.properties, b"TAGS") if b"TAGS\x01" in parts.properties else None
    group = (wire_properties.value_of(parts.properties, PRODUCER_GROUP.encode()) or b"").decode("utf-8", "replace")
    draft = (
        parts.body, parts.properties, parts.flag, parts.sys_flag, parts.born_ms, parts.born_host, parts.reconsume_times, 0,
        tag_hash(tag) if tag else 0,
    )  # fmt: skip
    return HalfMessage(parts.physical_offset, group, *real_queue(parts.properties), Messages([draft]))


def committed(halves: Iterable[HalfMessage]) -> Messages:
    """Return what commits of half messages store."""
    return Messages.committed([(half.message, half.physical_offset) for half in halves])
