"""Topics as frames within ranges that were fixed before, so that several topics fit together. Asks brokers for ranges only."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from halfmoon.data.queue_offsets import nested
from halfmoon.data.rows import COLUMNS, schema_of
from halfmoon.errors import NoRoute
from halfmoon.model import MessageQueue
from halfmoon.spark.cluster import Cluster

QueueRanges = dict[tuple[str, str, int], tuple[int, int]]
"""(topic, broker, queue) → (first offset, offset behind the last)."""


def ranges_of(cluster: Cluster, topics: Iterable[str], *, since_ms: int | None = None) -> QueueRanges:
    """Return the ranges of all queues of topics now, since a time (ms since the epoch). A topic that does not exist has no queues.

    Raises BrokersAbsent: brokers left with queues of a topic; with ``failOnDataLoss=false`` the others are read.
    """
    client, ranges, partial = cluster.client(), {}, not cluster.checked.fail_on_data_loss
    for topic in dict.fromkeys(topics):
        try:
            bounds = client.bounds(topic, partial=partial)
            begins = client.offsets_at(topic, since_ms, bounds) if since_ms is not None and bounds else {}
        except NoRoute:
            if not partial and topic in client.topics():  # all its brokers left
                raise
            continue
        for (broker, queue), (low, high) in bounds.items():
            ranges[topic, broker, queue] = (begins.get((broker, queue), low), high)
    return ranges


def frame_of(session: SparkSession, cluster: Cluster, ranges: QueueRanges, columns: Iterable[str] = COLUMNS) -> DataFrame:
    """Return the messages of ranges, with some columns of the source in its order."""
    wanted = set(columns)
    names = [name for name in COLUMNS if name in wanted]
    filled = {MessageQueue(*queue): span for queue, span in ranges.items() if span[0] < span[1]}
    if not filled:
        return session.createDataFrame(schema_of(names).empty_table())
    begins = nested({queue: low for queue, (low, _) in filled.items()})
    ends = nested({queue: high for queue, (_, high) in filled.items()})
    queues = {topic: {broker: list(map(int, offsets)) for broker, offsets in brokers.items()} for topic, brokers in begins.items()}
    options = {
        **cluster.options,
        "endpoints": cluster.endpoints,
        "assign": json.dumps(queues),
        "startingOffsets": json.dumps(begins),
        "endingOffsets": json.dumps(ends),
        "columns": ",".join(names),
    }
    return session.read.format("halfmoon").options(**options).load()
