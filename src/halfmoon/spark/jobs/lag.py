"""How far a consumer group is behind: in messages, bytes and seconds, now or again and again.

Messages come from the brokers' own figures; bytes and times from the backlog itself, which is read for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.model import MessageQueue
from halfmoon.spark.jobs.reading import Cluster, QueueRanges, frame_of

COLUMNS = "topic string, brokerName string, queueId int, progress bigint, end bigint, messages bigint"
SAMPLES_MAX = 100_000


def progress_of(cluster: Cluster, group: str, topic: str | None = None) -> QueueRanges:
    """Return (progress, end) of every queue that a group consumes; no progress yet counts from the queue's beginning.

    Raises BrokerError for a group without progress anywhere.
    """
    with cluster.admin() as admin:
        stats = admin.consume_stats(group, topic)
        without_progress = {queue.topic for queue, queue_stats in stats.items() if queue_stats.consumer_offset < 0}
        lowest: dict[MessageQueue, int] = {}
        for name in without_progress:
            lowest |= {queue: ends.min_offset for queue, ends in admin.topic_stats(name).items()}
    spans = {}
    for queue, queue_stats in stats.items():
        begin = queue_stats.consumer_offset if queue_stats.consumer_offset >= 0 else lowest.get(queue, 0)
        spans[queue.topic, queue.broker_name, queue.queue_id] = (min(begin, queue_stats.broker_offset), queue_stats.broker_offset)
    return spans


def lag(session: SparkSession, cluster: Cluster, group: str, topic: str | None = None, *, now_ms: int | None = None) -> DataFrame:
    """Return one row a queue: topic, brokerName, queueId, progress, end, messages, bytes (of bodies), oldest (stored when),
    seconds (the age of the oldest message that is not consumed; 0 without any)."""
    spans = progress_of(cluster, group, topic)
    queues = session.createDataFrame([(*queue, low, high, high - low) for queue, (low, high) in sorted(spans.items())], COLUMNS)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    key = ["topic", "brokerName", "queueId"]
    backlog = (
        frame_of(session, cluster, spans, (*key, "storeTimestamp", "body"))
        .groupBy(*key)
        .agg(F.sum(F.length("body")).alias("bytes"), F.min("storeTimestamp").alias("oldest"))
    )
    return (
        queues.join(backlog, key, "left")
        .withColumn("bytes", F.coalesce("bytes", F.lit(0).cast("bigint")))
        .withColumn("seconds", F.coalesce(F.greatest(F.lit(0.0), (F.lit(now) - F.unix_millis("oldest")) / 1000), F.lit(0.0)))
        .orderBy(*key)
    )


class Sample(NamedTuple):
    """The lag of a group in one topic at a time. ``behind_ms``: how long ago the message was stored that was consumed last, of the
    queue that is furthest behind; 0: nothing waits."""

    at_ms: int
    topic: str
    messages: int
    behind_ms: int


def sample_lag(
    cluster: Cluster, group: str, topic: str | None = None, *, every_s: float, for_s: float,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[Sample]:  # fmt: skip
    """Yield the lag of a group by topic at an interval; asks the brokers only. At most `SAMPLES_MAX` times."""
    started = time.monotonic()
    with cluster.admin() as admin:
        for number in range(SAMPLES_MAX):
            now = time.time_ns() // 1_000_000
            topics: dict[str, tuple[int, int]] = {}
            for queue, queue_stats in admin.consume_stats(group, topic).items():
                count = max(0, queue_stats.broker_offset - max(0, queue_stats.consumer_offset))
                age = max(0, now - queue_stats.last_timestamp) if count and queue_stats.last_timestamp > 0 else 0
                messages, behind = topics.get(queue.topic, (0, 0))
                topics[queue.topic] = (messages + count, max(behind, age))
            for name, (messages, behind) in sorted(topics.items()):
                yield Sample(now, name, messages, behind)
            left = started + (number + 1) * every_s - time.monotonic()
            if time.monotonic() - started + max(0.0, left) > for_s:
                return
            wait(max(0.0, left))
