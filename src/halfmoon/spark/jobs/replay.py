"""Replay of a topic or table to a topic, each message once: selected messages go through the sink ``exactly-once``, with a rate.

A copy names its original in REPLAY_OF (``topic/broker/queue/offset``) and its replay in REPLAY_ID. The batches of a replay are
numbered, and its last one is `LAST`, so brokers know whether a replay is complete. An interrupted one leaves out the messages that
the target already has.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from halfmoon.client.batches import BatchName
from halfmoon.errors import UsageError
from halfmoon.model import RESERVED_PROPERTIES
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.reading import QueueRanges, frame_of, ranges_of
from halfmoon.spark.lake.table import LakeTable

log = logging.getLogger("halfmoon.spark")

REPLAY_ID, REPLAY_OF = "REPLAY_ID", "REPLAY_OF"
LAST = 10**15
"""The number of a replay's last batch."""

BATCH_S = 1.0
"""Time between the batches of a replay with a rate."""
BATCHES_MAX = 100_000
"""Bound of the batches of one replay, beyond which they grow. Each takes Spark about a tenth of a second."""

PLACE = ("topic", "brokerName", "queueId", "queueOffset")
OnProgress = Callable[[int, int], object]
"""Called with the progress: how many messages are visible, of how many."""


class ReplayResult(NamedTuple):
    """Result of a replay: messages sent (or that would be), number of batches, and whether it was complete before it began."""

    rows: int
    batches: int
    complete_before: bool = False


class EarlierRun(NamedTuple):
    """State of a transactional id at the brokers: its last decided batch (-1: none), and its coordinator."""

    last: int = -1
    coordinator: str = ""


def replay(
    session: SparkSession,
    cluster: Cluster,
    source: str | LakeTable,
    to: str,
    *,
    id: str,
    where: str | None = None,
    since_ms: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = lambda done, total: None,
    wait: Callable[[float], None] = time.sleep,
) -> ReplayResult:
    """Send the messages of a topic, or of a table with the column body, to another topic.

    ``id`` is the transactional id: a complete replay is not repeated under it, an interrupted one continues. Brokers remember an id
    until it was unused for a week. ``where`` is SQL on the columns of topic or table; ``since_ms`` leaves out what was stored
    before. Without ``rate`` all messages become visible at once, and the source is read twice, first to count. ``rate`` is the
    maximum a second, in the order of storing; Spark's disks hold the messages meanwhile. Messages of one queue stay in one queue,
    in order.

    ``dry_run`` changes nothing and counts the messages to send, without those that brokers hold of a decided and invisible batch.

    Raises:
        UsageError: the source lacks a column, or is the target; brokers cannot write exactly once; or the topic lost messages
            that an interrupted replay had not sent (``failOnDataLoss=false`` logs that and continues).
        NoRoute: the target does not exist.
    """
    cluster.client().queues(to)
    earlier = _earlier(cluster, id)
    if earlier.last >= 0 and not dry_run:
        _finish_last_batch(cluster, id, earlier)
    if earlier.last >= LAST:
        return ReplayResult(0, 0, complete_before=True)
    chosen = _copies(_rows(session, cluster, source, to, since_ms), where, id)
    if earlier.last >= 0:
        sent = _sent(session, cluster, to, id)
        _check_unsent(cluster, ranges_of(cluster, [source] if isinstance(source, str) else []), sent)
        chosen = chosen.join(sent, REPLAY_OF, "left_anti")
    if dry_run:
        invisible = _invisible_count(cluster, id, earlier) if earlier.last >= 0 else 0
        return ReplayResult(max(0, chosen.count() - invisible), 0)
    sink = {"endpoints": cluster.endpoints, "topic": to, "delivery": "exactly-once", "transactionalId": id}
    return _all_at_once(chosen, sink, on_progress) if rate is None else _paced(chosen, sink, earlier, rate, on_progress, wait)


def _rows(session: SparkSession, cluster: Cluster, source: str | LakeTable, to: str, since_ms: int | None) -> DataFrame:
    """Return the messages of the source now. Raises UsageError."""
    if isinstance(source, LakeTable):
        topics, rows = {topic for topic, _, _ in source.ends()}, source.read(session)
        if missing := {*PLACE, "storeTimestamp", "body"} - set(rows.columns):
            raise UsageError(f"{source.root}: the table has no {', '.join(sorted(missing))}, which a replay needs")
        if since_ms is not None:
            rows = rows.where(F.unix_millis("storeTimestamp") >= since_ms)
    else:
        ends = ranges_of(cluster, [source], since_ms=since_ms)
        if not ends:
            raise UsageError(f"there is no topic {source}")
        topics, rows = {source}, frame_of(session, cluster, ends)
    if to in topics:
        raise UsageError(f"topic {to} would be replayed to itself")
    return rows


def _copies(rows: DataFrame, where: str | None, id: str) -> DataFrame:
    """Return the columns of the sink, and beside them those of `PLACE`, storeTimestamp and REPLAY_OF."""
    rows = rows if where is None else rows.where(where)
    of = F.concat_ws("/", *(F.col(name).cast("string") for name in PLACE))
    own = F.col("properties") if "properties" in rows.columns else F.lit(None)
    own = F.coalesce(own.cast("map<string,string>"), F.create_map().cast("map<string,string>"))
    ours = F.create_map(F.lit(REPLAY_ID), F.lit(id), F.lit(REPLAY_OF), of)
    optional = [F.col(name) for name in ("tags", "keys", "commitOffset") if name in rows.columns]
    return rows.select(
        "body",
        *optional,
        F.map_concat(F.map_filter(own, _may_be_sent), ours).alias("properties"),
        F.concat_ws("/", *(F.col(name).cast("string") for name in PLACE[:3])).alias("shardingKey"),
        *PLACE,
        "storeTimestamp",
        of.alias(REPLAY_OF),
    )


def _may_be_sent(name: Column, value: Column) -> Column:
    """Return whether a property is a user's, not the protocol's."""
    return ~name.isin([*sorted(RESERVED_PROPERTIES), REPLAY_ID, REPLAY_OF]) & name.rlike(r"(?U)\S") & value.rlike(r"(?U)\S")


# ---------------------------------------------------------------- sending


def _all_at_once(rows: DataFrame, sink: dict[str, str], on_progress: OnProgress) -> ReplayResult:
    count = rows.count()
    if count:
        on_progress(0, count)
        _write(rows, {**sink, "batchNumber": str(LAST)})
        on_progress(count, count)
    return ReplayResult(count, 1 if count else 0)


def _numbered(chosen: DataFrame) -> DataFrame:
    """Assign numbers from 0 in the order of storing; within a queue by offset, even where the broker's clock was set back."""
    queue = Window.partitionBy(*PLACE[:3]).orderBy("queueOffset")
    stored = chosen.withColumn("_stored", F.max("storeTimestamp").over(queue))
    log = [name for name in ("brokerName", "commitOffset") if "commitOffset" in chosen.columns]
    return stored.withColumn("_number", F.row_number().over(Window.orderBy("_stored", *log, *PLACE)) - 1)


def _paced(
    chosen: DataFrame,
    sink: dict[str, str],
    earlier: EarlierRun,
    rate: float,
    on_progress: OnProgress,
    wait: Callable[[float], None],
) -> ReplayResult:
    """Write a batch each `BATCH_S`; the first at once."""
    rows = _numbered(chosen).persist(StorageLevel.DISK_ONLY)
    try:
        total = rows.count()
        size = max(1, math.ceil(rate * BATCH_S), math.ceil(total / BATCHES_MAX))
        due, batches = 0.0, math.ceil(total / size)
        for index in range(batches):
            low, high = index * size, min((index + 1) * size, total)
            wait(max(0.0, due - time.monotonic()))
            due = time.monotonic() + size / rate
            number = LAST if high == total else earlier.last + 1 + index
            _write(rows.where(F.col("_number").between(low, high - 1)), {**sink, "batchNumber": str(number)})
            on_progress(high, total)
        return ReplayResult(total, batches)
    finally:
        rows.unpersist()


def _write(rows: DataFrame, options: dict[str, str]) -> None:
    """Write one batch: a queue in one task, in its order."""
    ordered = rows.repartition(*PLACE[:3]).sortWithinPartitions(*PLACE)
    columns = [name for name in ("body", "tags", "keys", "properties", "shardingKey") if name in rows.columns]
    ordered.select(*columns).write.format("halfmoon").options(**options).mode("append").save()


# ---------------------------------------------------------------- what was done before


def _earlier(cluster: Cluster, id: str) -> EarlierRun:
    with cluster.admin() as admin:
        known = [status for broker in admin.batches(id) for status in broker.ids]
    return max((EarlierRun(status.decided, status.coordinator) for status in known), default=EarlierRun())


def _finish_last_batch(cluster: Cluster, id: str, earlier: EarlierRun) -> None:
    """Make the last batch visible: the driver may have died between its decision and its publication."""
    transactions, batch = cluster.transactions(), BatchName(id, earlier.last)
    decision = transactions.decide(batch, earlier.coordinator, {}, "")
    for broker, attempts in {} if decision.complete else sorted(decision.parts.items()):
        transactions.apply(batch, broker, earlier.coordinator, attempts)


def _invisible_count(cluster: Cluster, id: str, earlier: EarlierRun) -> int:
    """Return the number of messages of the last batch that brokers hold and that are not visible yet. Changes nothing.

    While the batch is being published, some of them are visible already, and the count of what is still to be sent is too low.
    """
    with cluster.admin() as admin:
        known = [status for broker in admin.batches(id) for status in broker.ids]
    held = [attempt for status in known for attempt in status.attempts if attempt.batch_id == earlier.last]
    transactions, batch = cluster.transactions(), BatchName(id, earlier.last)
    names = {attempt.attempt for attempt in held}
    named = {name for name in names if transactions.resolve(batch, earlier.coordinator, name) == "COMMIT"}
    return sum(attempt.count for attempt in held if attempt.attempt in named)


def _sent(session: SparkSession, cluster: Cluster, to: str, id: str) -> DataFrame:
    """Return the originals (REPLAY_OF) whose copies the target has. Reads all of the target."""
    target = frame_of(session, cluster, ranges_of(cluster, [to]), ("properties",))
    ours = target.where(F.col("properties")[REPLAY_ID] == id)
    return ours.select(F.col("properties")[REPLAY_OF].alias(REPLAY_OF)).distinct()


def _check_unsent(cluster: Cluster, ranges: QueueRanges, sent: DataFrame) -> None:
    """Refuse to continue, or log, where a topic lost messages that an interrupted replay had not sent. Raises UsageError."""
    if not any(low for low, _ in ranges.values()):
        return
    of = F.col(REPLAY_OF)
    last = F.max(F.substring_index(of, "/", -1).cast("long")).alias("last")
    rows = sent.groupBy(F.substring_index(of, "/", len(PLACE) - 1).alias("queue")).agg(last).collect()
    gone, unknown = unsent(ranges, {row["queue"]: row["last"] for row in rows})
    if gone and cluster.checked.fail_on_data_loss:
        raise UsageError(
            f"the topic lost messages that the interrupted replay had not sent: {'; '.join(gone)}. failOnDataLoss=false sends "
            "the others"
        )
    if gone:
        log.warning("messages lost before they were replayed, passed over by failOnDataLoss=false: %s", "; ".join(gone))
    if unknown:
        log.warning("queues expired in part before any of their messages was replayed: %s", "; ".join(unknown))


def unsent(ranges: QueueRanges, last: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Return lost offsets behind the last one sent of each queue, and the first offsets of queues of which none was sent.

    ``last``: the last offset that was sent, by ``topic/broker/queue``.
    """
    gone, unknown = [], []
    for (topic, broker, queue), (low, _) in sorted(ranges.items()):
        name, at = f"{topic} {broker} queue {queue}", last.get(f"{topic}/{broker}/{queue}")
        if at is None and low:
            unknown.append(f"{name} begins at {low}")
        elif at is not None and at + 1 < low:
            gone.append(f"{name}: offsets {at + 1} to {low - 1}")
    return gone, unknown
