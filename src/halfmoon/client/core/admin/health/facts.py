"""`GroupFacts`, what brokers and members report of a consumer group, and the words for its parts. Asks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from halfmoon.client.core.names import RETRY_PREFIX
from halfmoon.errors import HalfmoonError
from halfmoon.model import MessageQueue

NAMED_MAX = 5
"""Most queues and members that a sentence names; the others are counted."""


class GroupFacts(msgspec.Struct):
    """Facts about a group. ``members`` are client ids, ``infos`` how they are, or the error of one that does not say.

    ``unreadable``: topics and brokers that give them out to nobody; ``disabled``: brokers at which the group may not consume;
    ``dead_letters``: None if they were not asked for; ``delayed``: redeliveries on their way to the retry topic, None if a broker
    does not report them.
    """

    group: str = ""
    members: list[str] = []
    connections: Mapping[str, Any] = {}
    model: str = ""
    queues: Mapping[MessageQueue, Any] = {}
    infos: Mapping[str, Any] = {}
    unreadable: list[str] = []
    disabled: list[str] = []
    dead_letters: int | None = None
    delayed: int | None = None

    def lag(self, queues: Iterable[MessageQueue] | None = None) -> int:
        """Return how many messages of some queues, or of all, are not consumed."""
        known = [self.queues[queue] for queue in (self.queues if queues is None else queues) if queue in self.queues]
        return sum(max(0, one.broker_offset - one.consumer_offset) for one in known)

    def late(self) -> list[MessageQueue]:
        """Return the queues in which messages wait."""
        return [queue for queue in self.queues if self.lag([queue])]

    def retries(self) -> int:
        """Return how many messages wait in the retry topic."""
        return self.lag(queue for queue in self.queues if queue.topic.startswith(RETRY_PREFIX))

    def redelivery(self) -> int | None:
        """Return how many messages wait to be delivered again; None: not reported."""
        return None if self.delayed is None else self.retries() + self.delayed

    def unmoved_ms(self) -> int | None:
        """Return for how long the progress has stood still somewhere though messages wait; 0: nowhere; None: not reported.

        Where all that waits for a group without members is delayed until its redelivery, that is since the last move of any queue.
        """
        times = [self.queues[queue].unmoved_ms for queue in self.late()]
        if not times and self.delayed and not self.members:
            return min((one.unmoved_ms for one in self.queues.values() if one.unmoved_ms is not None), default=None)
        return None if None in times else max(times, default=0)

    def answers(self) -> dict[str, Any]:
        """Return the information of the members that answered."""
        return {member: info for member, info in self.infos.items() if not isinstance(info, HalfmoonError)}

    def has_consumed(self) -> bool:
        """Whether the group has progress in any queue."""
        return any(one.consumer_offset > 0 for one in self.queues.values())


def subscriptions(info: Any) -> list[str]:
    """Return what a member subscribes to: topics with expressions."""
    return sorted(f"{data.topic} {data.sub_string or '*'}" for data in info.subscription_set)


def started_ms(info: Any) -> int:
    """Return when a member started, ms since the epoch; 0: it does not say."""
    text = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def queues_text(queues: Iterable[MessageQueue]) -> str:
    """Return one queue, or the count of several with the first by name."""
    found = sorted(queues)
    if len(found) == 1:
        return queue_text(found[0])
    return f"{len(found):,} queues ({some_text([f'{queue.topic} {queue.broker_name}/{queue.queue_id}' for queue in found])})"


def queue_text(queue: MessageQueue) -> str:
    """Return the name of a queue."""
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


def some_text(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join([*names[:NAMED_MAX], *([f"{len(names) - NAMED_MAX:,} more"] if len(names) > NAMED_MAX else [])])
