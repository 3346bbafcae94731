"""Audit of transactions: half messages, op records and visible messages of a log, joined. Works on DataFrames; asks no broker.

The columns are those of the source with ``properties``. A transaction is identified by its broker and its message's id: an Apache
broker stores a new copy of the half message at each check, and a resumed one is a new half message of the same id. The newest one
counts: an op record of an older one only says that it was put back.

Follows TransactionalMessageBridge (RocketMQ 4.9.8; 5.x joins several half offsets in one op record). The op record does not say how
a transaction was decided: a commit shows in its visible message, whose prepared-transaction offset is the half record's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
EXPIRED_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"

PENDING, COMMITTED, ROLLED_BACK, EXPIRED, DECIDED = "PENDING", "COMMITTED", "ROLLED_BACK", "EXPIRED", "DECIDED"
"""States. DECIDED: there is an op record, and the target topic was not read."""

_BITS, _COMMIT = 12, 8
_TX = ["brokerName", "msgId"]


class JoinedTransactions(NamedTuple):
    """Result of the join.

    ``transactions``: brokerName, msgId, producerGroup, topic, keys, state, halfStored, decided, latencyMs, checks (as far as the
    log says: null where no copy counts them), halves (records of it), halfOffset and place of the newest, visibleCount, opMissing
    (its message is visible, and it has no op record), decidedBy (an operator), reason (why it expired).
    ``orphans``: visible messages and op records without a half message, in the range of the log that was read: kind (``visible``,
    ``op``), brokerName, topic, msgId, place (of a visible message) or half offset (of an op record), stored.
    """

    transactions: DataFrame
    orphans: DataFrame


def joined(
    halves: DataFrame, ops: DataFrame, visible: DataFrame, expired: DataFrame, *, topics: Sequence[str] | None = None
) -> JoinedTransactions:
    """Join the records of the half topic, the op topic, the users' topics and the topic of expired messages.

    ``topics`` are those that ``visible`` has completely; None: all. ``visible`` must reach beyond ``ops``: a broker writes the
    visible message first.
    """
    records = _halves(halves).cache()
    decisions = _ops(ops).cache()  # each is joined twice, and its log read once
    committed = _committed(visible).cache()
    return JoinedTransactions(
        _transactions(records, decisions, committed, _expired(expired), topics), _orphans(records, decisions, committed)
    )


def _property(name: str) -> Column:
    return F.col("properties")[name]


def _halves(halves: DataFrame) -> DataFrame:
    return halves.select(
        "brokerName",
        "msgId",
        F.col("queueOffset").alias("halfOffset"),
        F.col("commitOffset").alias("place"),
        F.col("storeTimestamp").alias("stored"),
        _property("PGROUP").alias("producerGroup"),
        _property("REAL_TOPIC").alias("topic"),
        "keys",
        _property("TRANSACTION_CHECK_TIMES").try_cast("int").alias("checks"),
    )


def _ops(ops: DataFrame) -> DataFrame:
    """Return one row for each decided half offset: when first, and by whom if by hand."""
    rows = ops.where(F.col("tags") == "d").select(
        "brokerName",
        F.explode(F.split(F.col("body").cast("string"), ",")).alias("text"),
        "storeTimestamp",
        _property("DECIDED_BY").alias("by"),
    )
    return (
        rows.withColumn("halfOffset", F.col("text").try_cast("bigint"))
        .where("halfOffset is not null")
        .groupBy("brokerName", "halfOffset")
        .agg(F.min("storeTimestamp").alias("settled"), F.max("by").alias("decidedBy"))
    )


def _committed(visible: DataFrame) -> DataFrame:
    """Return one row for each half record with visible messages."""
    return (
        visible.where(F.col("sysFlag").bitwiseAND(_BITS) == _COMMIT)
        .groupBy("brokerName", F.col("preparedTransactionOffset").alias("place"))
        .agg(
            F.count("*").alias("visibleCount"),
            F.min("storeTimestamp").alias("shown"),
            F.min("topic").alias("shownIn"),
            F.min("msgId").alias("shownId"),
        )
    )


def _expired(expired: DataFrame) -> DataFrame:
    return expired.groupBy(*_TX).agg(
        F.max("storeTimestamp").alias("expired"),
        F.max_by(_property("TRANSACTION_EXPIRED_REASON"), "storeTimestamp").alias("reason"),
        F.max(_property("TRANSACTION_CHECK_TIMES").try_cast("int")).alias("checksExpired"),
    )


def _transactions(
    records: DataFrame, decisions: DataFrame, committed: DataFrame, expired: DataFrame, topics: Sequence[str] | None
) -> DataFrame:
    halves = records.join(decisions, ["brokerName", "halfOffset"], "left").join(
        committed.select("brokerName", "place", "visibleCount", "shown"), ["brokerName", "place"], "left"
    )
    newest = "halfOffset"
    transactions = halves.groupBy(*_TX).agg(
        F.max_by("producerGroup", newest).alias("producerGroup"),
        F.max_by("topic", newest).alias("topic"),
        F.max_by("keys", newest).alias("keys"),
        F.min("stored").alias("halfStored"),
        F.max("stored").alias("newestStored"),
        F.count("*").alias("halves"),
        F.max("checks").alias("checksWritten"),
        F.max_by("place", newest).alias("place"),
        F.max_by("settled", newest).alias("settled"),
        F.max("decidedBy").alias("decidedBy"),
        F.coalesce(F.sum("visibleCount"), F.lit(0)).alias("visibleCount"),
        F.min("shown").alias("shown"),
        F.max(newest).alias(newest),
    )
    return _with_state(transactions.join(expired, _TX, "left"), topics)


def _with_state(transactions: DataFrame, topics: Sequence[str] | None) -> DataFrame:
    was_read = F.lit(True) if topics is None else F.col("topic").isin(list(topics))
    state = (
        F.when(F.col("visibleCount") > 0, COMMITTED)
        .when(F.col("settled").isNull(), PENDING)
        .when(F.col("expired") >= F.col("newestStored"), EXPIRED)
        .when(was_read, ROLLED_BACK)
        .otherwise(DECIDED)
    )
    judged = transactions.withColumn("state", state).withColumn(
        "decided", F.when(F.col("state") == COMMITTED, F.col("shown")).otherwise(F.col("settled"))
    )
    return judged.select(
        *_TX,
        "producerGroup",
        "topic",
        "keys",
        "state",
        "halfStored",
        "decided",
        (F.unix_millis("decided") - F.unix_millis("halfStored")).alias("latencyMs"),
        F.coalesce(F.greatest("checksWritten", "checksExpired"), "checksWritten", "checksExpired").alias("checks"),
        "halves",
        "halfOffset",
        "place",
        "visibleCount",
        ((F.col("visibleCount") > 0) & F.col("settled").isNull()).alias("opMissing"),
        "decidedBy",
        F.when(F.col("state") == EXPIRED, F.col("reason")).alias("reason"),
    )


def _orphans(records: DataFrame, decisions: DataFrame, committed: DataFrame) -> DataFrame:
    """Return records whose half message should be in the range that was read and is not. Those before the range are expired."""
    span = records.groupBy("brokerName").agg(
        F.min("place").alias("firstPlace"),
        F.max("place").alias("lastPlace"),
        F.min("halfOffset").alias("firstOffset"),
        F.max("halfOffset").alias("lastOffset"),
    )

    def orphans(kind: str, rows: DataFrame, key: str, ends: str, topic: Column, msg_id: Column, stored: str) -> DataFrame:
        unknown = rows.join(records.select("brokerName", key), ["brokerName", key], "left_anti")
        return (
            unknown.join(F.broadcast(span), "brokerName")
            .where(f"{key} between {ends}")
            .select(
                F.lit(kind).alias("kind"),
                "brokerName",
                topic.alias("topic"),
                msg_id.alias("msgId"),
                F.col(key).alias("place"),
                F.col(stored).alias("stored"),
            )
        )

    no_text = F.lit(None).cast("string")
    visible = orphans("visible", committed, "place", "firstPlace and lastPlace", F.col("shownIn"), F.col("shownId"), "shown")
    op = orphans("op", decisions, "halfOffset", "firstOffset and lastOffset", no_text, no_text, "settled")
    return visible.unionByName(op)


# ---------------------------------------------------------------- figures


def counts(transactions: DataFrame) -> DataFrame:
    """Return count, checks and duplicate commits by producer group, topic and state."""
    return (
        transactions.groupBy("producerGroup", "topic", "state")
        .agg(
            F.count("*").alias("count"),
            F.sum("checks").alias("checks"),
            F.sum(F.when(F.col("visibleCount") > 1, 1).otherwise(0)).alias("duplicates"),
            F.sum(F.col("opMissing").cast("int")).alias("opMissing"),
            F.min("halfStored").alias("oldest"),
        )
        .orderBy("producerGroup", "topic", "state")
    )


def latencies(transactions: DataFrame, shares: Sequence[float] = (0.5, 0.95, 0.99, 1.0)) -> DataFrame:
    """Return by state how long decisions took: state, count, and latencyMs as a list, one a share of ``shares``. Exact."""
    return (
        transactions.where("latencyMs is not null")
        .groupBy("state")
        .agg(F.count("*").alias("count"), F.percentile("latencyMs", F.array(*map(F.lit, shares))).alias("latencyMs"))
        .orderBy("state")
    )


def duplicates(transactions: DataFrame) -> DataFrame:
    """Return transactions whose message is visible more than once."""
    return transactions.where("visibleCount > 1")
