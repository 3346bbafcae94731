"""Audit of delayed messages: due time, delivery time and lateness of each. Works on DataFrames; asks no broker.

Messages on a level lie in ``SCHEDULE_TOPIC_XXXX`` (queue = level - 1) and are due their level's time after they were stored there;
those for a point in time lie in ``rmq_sys_wheel_timer`` and say in TIMER_OUT_MS when they are due. The delivered record has the id
of the parked one. A message that is parked several times (a redelivery) is identified by its count of redeliveries, then by order.

Follows ScheduleMessageService and TimerMessageStore (RocketMQ 4.9.8, 5.3.3); a broker may store a parked record again, which is not
a second message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

SCHEDULE_TOPIC, TIMER_TOPIC = "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"
DELIVERED, WAITING, MISSING, CANCELLED = "DELIVERED", "WAITING", "MISSING", "CANCELLED"

_KEY = ["brokerName", "topic", "msgId", "reconsumeTimes"]


class DelayRules(NamedTuple):
    """Rules of an audit.

    ``now_ms`` is its time, ``grace_ms`` the time that a due message may be in transit, ``levels_ms`` the delays of the levels by
    broker (``""``: every other broker), each a table from level to ms.
    """

    now_ms: int
    grace_ms: int
    levels_ms: Mapping[str, Mapping[int, int]]


def audit_delays(parked: DataFrame, delivered: DataFrame, rules: DelayRules, *, topics: Sequence[str] | None = None) -> DataFrame:
    """Return one row for each delayed message.

    Its columns are brokerName, topic, msgId, reconsumeTimes, level (0: a point in time), parked, due, delivered, latenessMs, state.
    ``parked`` are the records of both topics where messages wait, ``delivered`` those of the users' topics, both with
    ``properties``. DELIVERED; WAITING: not due yet, or only just; MISSING: due and nowhere; CANCELLED.
    ``topics`` are those that were read (None: all); messages to others are left out.
    """
    waits = _parked(parked, rules)
    if topics is not None:
        waits = waits.where(F.col("topic").isin(list(topics)))
    arrived = _numbered(
        delivered.where(_property("REAL_TOPIC").isNotNull() | _property("TIMER_OUT_MS").isNotNull()).select(
            "brokerName", "topic", "msgId", "reconsumeTimes", F.col("storeTimestamp").alias("delivered"), "commitOffset"
        ),
        F.col("commitOffset"),
    )
    both = waits.join(arrived.drop("commitOffset"), [*_KEY, "nth"], "left")
    over = F.unix_millis("due") + rules.grace_ms < rules.now_ms
    state = (
        F.when(F.col("delivered").isNotNull(), DELIVERED).when(F.col("cancelled"), CANCELLED).when(over, MISSING).otherwise(WAITING)
    )
    return both.select(
        *_KEY,
        "level",
        "parked",
        "due",
        "delivered",
        (F.unix_millis("delivered") - F.unix_millis("due")).alias("latenessMs"),
        state.alias("state"),
    )


def _property(name: str) -> Column:
    return F.col("properties")[name]


def _numbered(frame: DataFrame, order: Column) -> DataFrame:
    """Assign numbers to the messages of each key, in the order of the log."""
    return frame.withColumn("nth", F.row_number().over(Window.partitionBy(*_KEY).orderBy(order)))


def _parked(parked: DataFrame, rules: DelayRules) -> DataFrame:
    on_level = parked.where(F.col("topic") == SCHEDULE_TOPIC).select(
        "brokerName",
        _property("REAL_TOPIC").alias("topic"),
        "msgId",
        "reconsumeTimes",
        (F.col("queueId") + 1).alias("level"),
        F.col("storeTimestamp").alias("parked"),
        F.timestamp_millis(F.unix_millis("storeTimestamp") + _level_ms(rules)).alias("due"),
        "commitOffset",
        F.lit(False).alias("cancelled"),
    )
    return _numbered(on_level.unionByName(_timers(parked)), F.col("commitOffset")).drop("commitOffset")


def _timers(parked: DataFrame) -> DataFrame:
    """Return messages for a point in time. Records of the same id, place and time are one message that was stored again."""
    records = parked.where(F.col("topic") == TIMER_TOPIC)
    cancels = records.where(_property("TIMER_DEL_UNIQKEY").isNotNull()).select(
        "brokerName",
        F.substring_index(_property("TIMER_DEL_UNIQKEY"), "+", -1).alias("msgId"),
        F.lit(True).alias("cancelled"),
    )
    waits = (
        records.where(_property("TIMER_DEL_UNIQKEY").isNull())
        .groupBy("brokerName", _property("REAL_TOPIC").alias("topic"), "msgId", "reconsumeTimes", _out_ms().alias("outMs"))
        .agg(F.min("storeTimestamp").alias("parked"), F.min("commitOffset").alias("commitOffset"))
        .where("outMs is not null")
    )
    return waits.join(cancels.distinct(), ["brokerName", "msgId"], "left").select(
        "brokerName",
        "topic",
        "msgId",
        "reconsumeTimes",
        F.lit(0).alias("level"),
        "parked",
        F.timestamp_millis("outMs").alias("due"),
        "commitOffset",
        F.coalesce("cancelled", F.lit(False)).alias("cancelled"),
    )


def _out_ms() -> Column:
    return _property("TIMER_OUT_MS").try_cast("bigint")


def _level_ms(rules: DelayRules) -> Column:
    """Return the delay of a message's level at its broker; a second for a level in no table, as brokers do."""
    level = F.col("queueId") + 1
    delay = F.lit(None).cast("bigint")
    for broker, delays in rules.levels_ms.items():
        times = F.create_map(*[F.lit(item) for pair in delays.items() for item in pair])
        here = F.lit(broker == "") | (F.col("brokerName") == broker)
        delay = (
            F.coalesce(F.when(here, times[level].cast("bigint")), delay)
            if broker
            else F.coalesce(delay, times[level].cast("bigint"))
        )
    return F.coalesce(delay, F.lit(1000).cast("bigint"))


def lateness(audit: DataFrame, shares: Sequence[float] = (0.5, 0.95, 0.99, 1.0)) -> DataFrame:
    """Return by level: level, count, early (before their time), latenessMs as a list, one a share of ``shares``. Exact."""
    return (
        audit.where(F.col("state") == DELIVERED)
        .groupBy("level")
        .agg(
            F.count("*").alias("count"),
            F.sum((F.col("latenessMs") < 0).cast("int")).alias("early"),
            F.percentile("latenessMs", F.array(*map(F.lit, shares))).alias("latenessMs"),
        )
        .orderBy("level")
    )


def parse_levels(text: str) -> dict[int, int]:
    """Return the delays of ``messageDelayLevel`` (``1s 5s 1m 2h``) by level, in ms; malformed entries are left out."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels = {}
    for level, entry in enumerate(text.split()[:64], 1):
        if entry[:-1].isdigit() and entry[-1] in units and len(entry) < 11:
            levels[level] = int(entry[:-1]) * units[entry[-1]]
    return levels
