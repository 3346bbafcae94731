"""How a sender chooses the queue of a message, by a function of the user's or by a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from halfmoon.errors import UsageError
from halfmoon.model import Message, MessageQueue, java_hash

Selector = Callable[[list[MessageQueue], Message, Any], "MessageQueue | None"]
"""Chooses a queue from all writable ones (with the user's topic name), the message and the key. Runs in the event loop: quick."""


def check_choice(queue: object, selector: object) -> None:
    """Raise UsageError for a queue that is none, and a selector that is no function."""
    if queue is not None and not isinstance(queue, MessageQueue):
        raise UsageError(f"queue is {queue!r:.60} ({type(queue).__name__}): give a MessageQueue, as producer.queues(topic) does")
    if selector is not None and not callable(selector):
        raise UsageError(f"selector is {selector!r:.60} ({type(selector).__name__}): give a function of queues, message and key")


def selected(found: object) -> MessageQueue:
    """Return the queue that a selector returned. Raises UsageError for anything else."""
    if found is None:
        raise UsageError("select message queue return null.")
    if not isinstance(found, MessageQueue):
        raise UsageError(f"the selector returned {found!r:.60} ({type(found).__name__}): it is to return one of the queues")
    return found


def select_by_hash(queues: list[MessageQueue], message: Message, key: Any) -> MessageQueue | None:
    """Choose by the key's Java hash: equal keys go to one queue. Follows SelectMessageQueueByHash (RocketMQ 4.9.8).

    ``key`` is a str, or an int taken as a Java Integer or Long.
    """
    value = java_key_hash(key)
    return queues[abs(value) % len(queues)]


def java_key_hash(key: Any) -> int:
    """Return Java's hashCode of a str or an int. Raises UsageError for other types."""
    if isinstance(key, str):
        return java_hash(key)
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**63) <= key < 2**63:
        raise UsageError(f"expected a str or a 64-bit int as key, got {key!r}")
    if not -(2**31) <= key < 2**31:
        key &= 2**64 - 1
        key = (key ^ key >> 32) & 0xFFFFFFFF
        key = key - 2**32 if key & 0x80000000 else key
    return int(key)
