"""Offsets of queues: their shapes, and messages that are gone before they are read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from halfmoon.model import MessageQueue

QueueOffsets = dict[str, dict[str, dict[int, int]]]
"""Topic, broker name, queue number, offset: as options give them."""

Offsets = dict[MessageQueue, int]
Bounds = Mapping[MessageQueue, tuple[int, int]]
"""Offset of the first message of each queue that is still there, and the one behind its last."""

CreationTimes = Mapping[tuple[str, str], int]
"""Creation times of topics, ms since the epoch, by topic and broker."""


@dataclass(frozen=True)
class Loss:
    """Loss of messages that were deleted before a stream read them: its next offset, and the bounds of the queue."""

    queue: MessageQueue
    next_offset: int
    min_offset: int
    max_offset: int

    def __str__(self) -> str:
        name = f"{self.queue.topic} {self.queue.broker_name} queue {self.queue.queue_id}"
        if self.next_offset < self.min_offset:
            return f"{name}: offsets {self.next_offset} to {self.min_offset - 1} are gone; the oldest there is {self.min_offset}"
        cause = "was the topic created again, or a store lost?"
        return f"{name}: read up to {self.next_offset}, but it ends at {self.max_offset}; {cause}"


def flat(offsets: Any) -> Offsets:
    """Return offsets by queue from topic -> broker -> queue -> offset."""
    return {
        MessageQueue(topic, broker, int(queue)): offset
        for topic, brokers in offsets.items()
        for broker, queues in brokers.items()
        for queue, offset in queues.items()
    }


def nested(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return offsets as JSON has them: topic -> broker -> queue -> offset, topics and brokers by name, queues by number."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return topics


def recreated_topics(at: CreationTimes, now: CreationTimes) -> set[tuple[str, str]]:
    """Return the (topic, broker) pairs whose topic was deleted and created again under the same name."""
    return {place for place, ms in at.items() if now.get(place, ms) != ms}


def places(queues: Iterable[MessageQueue]) -> set[tuple[str, str]]:
    """Return the (topic, broker) pairs of queues."""
    return {(queue.topic, queue.broker_name) for queue in queues}


def losses(at: Offsets, bounds: Bounds) -> list[Loss]:
    """Return the messages of each queue that were deleted before they were read."""
    return [
        Loss(queue, offset, *bounds[queue])
        for queue, offset in sorted(at.items())
        if queue in bounds and not bounds[queue][0] <= offset <= bounds[queue][1]
    ]
