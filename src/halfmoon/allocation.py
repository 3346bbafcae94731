"""How the queues of a topic are shared out to the members of a group: the strategies, as pure functions.

Every member computes the shares of all alike, so queues and members must come sorted: queues by (topic, broker name, queue
number), members by text. Follows AllocateMessageQueueStrategy and its classes (RocketMQ 4.9.8).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from hashlib import md5

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue

Strategy = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""Given our client id, all queues and all client ids, both sorted: our queues."""

VIRTUAL_NODES = 10
"""Points of each member on the ring of CONSISTENT_HASH."""


def average(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AVG: neighbouring queues to each; the first members get one more when it does not come out even."""
    if member not in members:
        return []
    count, share_count = len(queues), len(members)
    index, rest = members.index(member), len(queues) % len(members)
    size = 1 if count <= share_count else count // share_count + (1 if index < rest else 0)
    start = index * size if rest and index < rest else index * size + rest
    return list(queues[start : start + size])


def by_circle(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """AVG_BY_CIRCLE: one queue to each in turn."""
    return list(queues[members.index(member) :: len(members)]) if member in members else []


def consistent_hash(member: str, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[MessageQueue]:
    """CONSISTENT_HASH: a member that joins or leaves moves few queues."""
    if member not in members:
        return []
    ring = sorted((_point(f"{name}-{i}"), name) for name in members for i in range(VIRTUAL_NODES))
    points = [point for point, _ in ring]
    return [queue for queue in queues if ring[bisect_left(points, _point(_queue_text(queue))) % len(ring)][1] == member]


STRATEGIES: dict[str, Strategy] = {"AVG": average, "AVG_BY_CIRCLE": by_circle, "CONSISTENT_HASH": consistent_hash}


def strategy(name: str) -> Strategy:
    """Return a strategy by its name on the wire. Raises UsageError."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise UsageError(f"unknown allocation {name!r}; one of {', '.join(STRATEGIES)}, or a function") from None


def _queue_text(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _point(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:4], "big")
