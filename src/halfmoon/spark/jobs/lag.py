"""Lag of a consumer group in messages, bytes and seconds, once or at an interval, as the brokers report it. Needs no session."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from halfmoon.client.admin import Admin
from halfmoon.client.ranges import Ranges
from halfmoon.model import MessageQueue
from halfmoon.spark.cluster import Cluster
from halfmoon.wire.record import decode_records

SAMPLES_MAX = 100_000


class QueueLag(NamedTuple):
    """Lag of a group in one queue. ``bytes`` are about those of the log, ``seconds`` the age of the oldest message not consumed."""

    topic: str
    broker: str
    queue: int
    progress: int
    end: int
    messages: int
    bytes: int
    seconds: float


class Sample(NamedTuple):
    """Lag of a group in one topic at a time. ``behind_ms`` is the age of the oldest message not consumed; 0 where none waits."""

    at_ms: int
    topic: str
    messages: int
    behind_ms: int


def lag(cluster: Cluster, group: str, topic: str | None = None) -> list[QueueLag]:
    """Return the lag of a group by queue, a few requests a broker. A queue without progress counts from its beginning.

    Raises BrokerError for a group without progress anywhere.
    """
    client = cluster.client()
    with cluster.admin() as admin:
        queues = _queues(client, admin, group, topic)
    for name in sorted({queue.topic for queue in queues if queue.messages}):
        backlog = {(q.broker, q.queue): (q.progress, q.end) for q in queues if q.topic == name and q.messages}
        sizes = client.weigh(name, backlog)
        queues = [q._replace(bytes=sum(sizes.get((q.broker, q.queue), ()))) if q.topic == name else q for q in queues]
    return queues


def sample_lag(
    cluster: Cluster, group: str, topic: str | None = None, *, every_s: float, for_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Sample]:  # fmt: skip
    """Yield the lag of a group by topic at an interval, at most `SAMPLES_MAX` times."""
    client, started = cluster.client(), time.monotonic()
    with cluster.admin() as admin:
        for number in range(SAMPLES_MAX):
            now, queues = time.time_ns() // 1_000_000, _queues(client, admin, group, topic)
            for name in sorted({queue.topic for queue in queues}):
                same = [queue for queue in queues if queue.topic == name]
                behind = max(queue.seconds for queue in same)
                yield Sample(now, name, sum(queue.messages for queue in same), round(1000 * behind))
            left = started + (number + 1) * every_s - time.monotonic()
            if time.monotonic() - started + max(0.0, left) > for_s:
                return
            wait(max(0.0, left))


def _queues(client: Ranges, admin: Admin, group: str, topic: str | None) -> list[QueueLag]:
    """Return the lag by queue, without bytes."""
    stats, queues = admin.consume_stats(group, topic), []
    bounds = {name: client.bounds(name) for name in {queue.topic for queue in stats}}
    for queue, figures in sorted(stats.items()):
        low, visible = bounds[queue.topic].get((queue.broker_name, queue.queue_id), (0, 0))
        end = figures.broker_offset
        progress = min(max(low, figures.consumer_offset), end)
        seconds = _age_s(client, queue, progress) if progress < min(end, visible) else 0.0
        queues.append(QueueLag(queue.topic, queue.broker_name, queue.queue_id, progress, end, end - progress, 0, seconds))
    return queues


def _age_s(client: Ranges, queue: MessageQueue, offset: int) -> float:
    """Return how long ago the message at an offset was stored; 0 for one that expired meanwhile."""
    pieces = client.read(queue.broker_name, queue.topic, queue.queue_id, offset, offset + 1, missing=lambda *_: None)
    return max([0.0, *(time.time() - message.store_ms / 1000 for piece in pieces for message in decode_records(piece))])
