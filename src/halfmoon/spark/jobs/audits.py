"""Audits of a running cluster: topics of the protocol are read through the source, joined, and summed up.

The joins are in `halfmoon.spark.jobs.transactions` and `delays`. The log grows meanwhile, so the ends of the topics are asked in
this order: op records, visible messages, half messages. Then every half message that the others refer to is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.errors import BrokerError, NetworkError
from halfmoon.limits import DELAY_LEVELS
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs import delays, transactions
from halfmoon.spark.jobs.reading import frame_of, ranges_of

GRACE_MS = 60_000
"""Time after which a delayed message that was due and not delivered is missing."""

SHARES = (0.5, 0.95, 0.99, 1.0)
CURVE = tuple(each / 100 for each in range(101))
"""Shares of a plot: every percentile."""


@dataclass(frozen=True)
class TransactionSummary:
    """Numbers of an audit. Latencies are ms by state: count, p50, p95, p99, max.

    ``not_read`` are topics that half messages name and that do not exist. ``pending`` counts by broker, from the log.
    """

    transactions: int
    states: dict[str, int]
    groups: list[dict[str, Any]]
    latencies: dict[str, dict[str, float]]
    duplicates: int
    orphans: int
    op_missing: int
    pending: dict[str, int] = field(default_factory=dict)
    not_read: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """True if nothing is visible twice, and everything in the log belongs to a half message."""
        return not (self.duplicates or self.orphans)


@dataclass(frozen=True)
class TransactionAudit:
    """DataFrames of an audit, see `halfmoon.spark.jobs.transactions.JoinedTransactions`; ``transactions`` is cached."""

    transactions: DataFrame
    orphans: DataFrame
    not_read: list[str]

    def summary(self) -> TransactionSummary:
        """Compute the numbers."""
        groups = [row.asDict() for row in transactions.counts(self.transactions).collect()]
        states: dict[str, int] = {}
        for row in groups:
            states[row["state"]] = states.get(row["state"], 0) + row["count"]
        latencies = {
            row["state"]: {"count": row["count"], **dict(zip(("p50", "p95", "p99", "max"), row["latencyMs"]))}
            for row in transactions.latencies(self.transactions, SHARES).collect()
        }
        waiting = self.transactions.where(F.col("state") == transactions.PENDING).groupBy("brokerName").count().collect()
        return TransactionSummary(
            transactions=sum(states.values()),
            states=states,
            groups=groups,
            latencies=latencies,
            duplicates=sum(row["duplicates"] for row in groups),
            orphans=self.orphans.count(),
            op_missing=sum(row["opMissing"] for row in groups),
            pending={row["brokerName"]: row["count"] for row in waiting},
            not_read=self.not_read,
        )

    def latency_curve(self) -> dict[str, list[float]]:
        """Return by state the latency in ms at every percentile from 0 to 100."""
        return {row["state"]: row["latencyMs"] for row in transactions.latencies(self.transactions, CURVE).collect()}


def transaction_audit(
    session: SparkSession, cluster: Cluster, *, topics: Sequence[str] | None = None, since_ms: int | None = None
) -> TransactionAudit:
    """Audit the transactions of all brokers: half x op x visible messages.

    ``topics`` are the targets of commits; None: those that half messages name. ``since_ms`` leaves out what was stored before.
    Half messages and op records are not for consumers: they are read with the option ``halfMessages`` of the source.

    Raises:
        NoPermission: a broker's setting ``half_messages_readable`` forbids it.
    """
    cluster = cluster.with_half_messages()
    if topics is None:
        halves_of_all = frame_of(
            session, cluster, ranges_of(cluster, [transactions.HALF_TOPIC], since_ms=since_ms), ("properties",)
        )
        topics = [row[0] for row in halves_of_all.select(F.col("properties")["REAL_TOPIC"]).distinct().dropna().collect()]
    ops = ranges_of(cluster, [transactions.OP_TOPIC], since_ms=since_ms)
    visible = ranges_of(cluster, [*topics, transactions.EXPIRED_TOPIC], since_ms=since_ms)
    halves = ranges_of(cluster, [transactions.HALF_TOPIC], since_ms=since_ms)
    existing = sorted({topic for topic, _, _ in visible} - {transactions.EXPIRED_TOPIC})
    expired = {queue: span for queue, span in visible.items() if queue[0] == transactions.EXPIRED_TOPIC}
    delivered = {queue: span for queue, span in visible.items() if queue not in expired}
    columns = ("topic", "brokerName", "msgId", "commitOffset", "sysFlag", "preparedTransactionOffset", "storeTimestamp")
    tables = transactions.joined(
        frame_of(session, cluster, halves),
        frame_of(session, cluster, ops),
        frame_of(session, cluster, delivered, columns),
        frame_of(session, cluster, expired),
        topics=existing,
    )
    return TransactionAudit(tables.transactions.cache(), tables.orphans.cache(), sorted(set(topics) - set(existing)))


# ---------------------------------------------------------------- delays


@dataclass(frozen=True)
class DelaySummary:
    """Numbers of an audit of delayed messages: counts by state, lateness in ms by level (0: a point in time), early ones."""

    messages: int
    states: dict[str, int]
    levels: dict[int, dict[str, float]]
    early: int
    missing: int


@dataclass(frozen=True)
class DelayAudit:
    """Audit of delayed messages with one row a message, see `halfmoon.spark.jobs.delays.audit_delays`; cached."""

    messages: DataFrame

    def summary(self) -> DelaySummary:
        """Compute the numbers."""
        states = {row["state"]: row["count"] for row in self.messages.groupBy("state").count().collect()}
        levels_rows = delays.lateness(self.messages, SHARES).collect()
        levels = {
            row["level"]: {
                "count": row["count"],
                "early": row["early"],
                **dict(zip(("p50", "p95", "p99", "max"), row["latenessMs"])),
            }
            for row in levels_rows
        }
        early = sum(row["early"] for row in levels_rows)
        return DelaySummary(sum(states.values()), states, levels, early, states.get(delays.MISSING, 0))

    def lateness_curve(self) -> dict[int, list[float]]:
        """Return by level the lateness in ms at every percentile from 0 to 100."""
        return {row["level"]: row["latenessMs"] for row in delays.lateness(self.messages, CURVE).collect()}


def delay_audit(
    session: SparkSession,
    cluster: Cluster,
    *,
    topics: Sequence[str] | None = None,
    since_ms: int | None = None,
    levels_ms: Mapping[str, Mapping[int, int]] | None = None,
    now_ms: int | None = None,
) -> DelayAudit:
    """Audit delayed messages: due and delivery time of each.

    ``topics`` are the topics of delivery; None: those that parked messages name. ``levels_ms`` are the delays by broker; None:
    brokers are asked (`levels_of`). ``now_ms`` is the time of the audit.
    """
    rules = delays.DelayRules(
        time.time_ns() // 1_000_000 if now_ms is None else now_ms, GRACE_MS, levels_of(cluster) if levels_ms is None else levels_ms
    )
    parked = ranges_of(cluster, [delays.SCHEDULE_TOPIC, delays.TIMER_TOPIC], since_ms=since_ms)
    parked_frame = frame_of(session, cluster, parked)
    if topics is None:
        topics = [row[0] for row in parked_frame.select(F.col("properties")["REAL_TOPIC"]).distinct().dropna().collect()]
    arrived = ranges_of(cluster, topics, since_ms=since_ms)
    columns = ("topic", "brokerName", "msgId", "commitOffset", "reconsumeTimes", "properties", "storeTimestamp")
    existing = sorted({topic for topic, _, _ in arrived})
    return DelayAudit(
        delays.audit_delays(parked_frame, frame_of(session, cluster, arrived, columns), rules, topics=existing).cache()
    )


def levels_of(cluster: Cluster) -> dict[str, dict[int, int]]:
    """Return the delays of the levels by broker, in ms; ``""`` is for brokers that do not report them."""
    levels = {"": delays.parse_levels(DELAY_LEVELS)}
    with cluster.admin() as admin:
        for name, broker in admin.cluster().broker_addr_table.items():
            for address in list(broker.broker_addrs.values())[:1]:
                try:
                    text = admin.broker_config(address).get("messageDelayLevel", "")
                except (BrokerError, NetworkError):
                    continue
                if text:
                    levels[name] = delays.parse_levels(text)
    return levels
