"""How jobs read topics: within ranges that were fixed before, so that several topics fit together. Asks brokers for ranges only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from halfmoon.client.admin import Admin
from halfmoon.client.batches import BatchTransactions, batch_transactions
from halfmoon.client.ranges import Ranges
from halfmoon.errors import NoRoute
from halfmoon.model import MessageQueue
from halfmoon.spark.source.checkpoint import nested
from halfmoon.spark.source.options import SourceOptions, source_options
from halfmoon.spark.source.reading import client_of
from halfmoon.spark.source.rows import COLUMNS, schema_of

QueueRanges = dict[tuple[str, str, int], tuple[int, int]]
"""(topic, broker, queue) → (first offset, offset behind the last)."""

HALF_MESSAGES = {"halfMessages": "true"}
"""The option of the source by which an audit says that it reads half messages and op records."""


class Cluster(NamedTuple):
    """A cluster to read: name servers (``host:port`` joined by ``;``), and further options of the source."""

    endpoints: str
    options: Mapping[str, str] = {}

    def with_half_messages(self) -> Cluster:
        """Return the same cluster for an audit of transactions."""
        return Cluster(self.endpoints, {**self.options, **HALF_MESSAGES})

    def __repr__(self) -> str:
        return f"Cluster({self.endpoints!r}, options={sorted(self.options)})"  # their values may be secrets

    def client(self) -> Ranges:
        """Return this process's client for the cluster. Raises UsageError for options that do not fit."""
        return client_of(self.checked())

    def admin(self) -> Admin:
        """Return an administration client, not started. Raises UsageError for options that do not fit."""
        return Admin(nameserver=self.endpoints, **self.checked().signing)

    def transactions(self) -> BatchTransactions:
        """Return this process's client of batch transactions. Raises UsageError for options that do not fit."""
        return batch_transactions(nameserver=self.endpoints, **self.checked().signing)

    def checked(self) -> SourceOptions:
        """Return the options of the source. Raises UsageError for some that do not fit."""
        return source_options({"topic": "any", **self.options, "endpoints": self.endpoints}, "batch")


def ranges_of(cluster: Cluster, topics: Iterable[str], *, since_ms: int | None = None) -> QueueRanges:
    """Return what all queues of topics hold now, from a time on (ms since the epoch). A topic that does not exist has no queues.

    Raises BrokersAbsent: brokers left with queues of a topic; with ``failOnDataLoss=false`` the others are read.
    """
    client, ranges, partial = cluster.client(), {}, not cluster.checked().fail_on_data_loss
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
