"""Dead letters as tables: reasons, ages, what was replayed; and sending them again, each once.

A dead letter lies in ``%DLQ%<group>``; RETRY_TOPIC says where it came from, RECONSUME_REASON (Halfmoon's brokers) why. A replayed
copy names its dead letter in DEAD_LETTER_ID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.errors import HalfmoonError, NoRoute
from halfmoon.model import RECONSUME_REASON, DeadLetter, Replayed
from halfmoon.spark.jobs.reading import Cluster, frame_of, ranges_of
from halfmoon.wire.ids import offset_msg_id, pack_host

PREFIX = "%DLQ%"
NOT_REPORTED = "not reported"

AUDIT = (
    "msgId string, deadGroup string, deadTopic string, deadBroker string, deadOffset bigint, target string, outcome string, "
    "copy string, at timestamp"
)
"""Columns of the audit rows of a replay. ``outcome``: sent, would be sent, replayed before, or ``failed: …``."""


def letters(dead: DataFrame) -> DataFrame:
    """Return dead letters from records of ``%DLQ%…`` topics (with ``properties``): deadGroup, source (the topic it was consumed
    from), reason, tries, deadLettered, born, and the columns of the source."""
    return (
        dead.where(F.col("topic").startswith(PREFIX))
        .withColumn("deadGroup", F.substring("topic", len(PREFIX) + 1, 1000))
        .withColumn("source", F.coalesce(_property("RETRY_TOPIC"), F.lit("")))
        .withColumn("reason", F.coalesce(_property(RECONSUME_REASON), F.lit(NOT_REPORTED)))
        .withColumn("tries", F.greatest("reconsumeTimes", F.lit(1)))
        .withColumnsRenamed({"storeTimestamp": "deadLettered", "bornTimestamp": "born"})
    )


def _property(name: str) -> Column:
    return F.col("properties")[name]


def report(letters_found: DataFrame, now_ms: int) -> DataFrame:
    """Return what `letters` found by group, source and reason: count, tries, bytes, oldest, newest, ages in ms; the largest first.

    Numbers in a reason are written as N, so that reasons which differ in an id or an amount are counted together.
    """
    alike = F.regexp_replace("reason", r"[0-9]+", "N")
    return (
        letters_found.groupBy("deadGroup", "source", alike.alias("reason"))
        .agg(
            F.count("*").alias("count"),
            F.sum("tries").alias("tries"),
            F.sum(F.length("body")).alias("bytes"),
            F.min("deadLettered").alias("oldest"),
            F.max("deadLettered").alias("newest"),
            F.first("reason").alias("example"),
        )
        .withColumn("oldestAgeMs", F.lit(now_ms) - F.unix_millis("oldest"))
        .withColumn("newestAgeMs", F.lit(now_ms) - F.unix_millis("newest"))
        .orderBy(F.desc("count"), "deadGroup", "source", "reason")
    )


# ---------------------------------------------------------------- sending again


class Replay(NamedTuple):
    """How dead letters are sent again: to which topic (None: to the group only), how many a second (None: no limit),
    whether those replayed before are included, and whether nothing is sent."""

    to: str | None = None
    rate: float | None = None
    again: bool = False
    dry_run: bool = False


Find = Callable[[Any], DeadLetter]
"""Return the dead letter of a row. Raises HalfmoonError."""
Send = Callable[..., Replayed]
"""As `halfmoon.Admin.replay_dead_letter`."""
OnProgress = Callable[[int, int], None]
"""Called with the progress: how many were processed, and how many of them failed."""


def replayed(
    session: SparkSession,
    chosen: DataFrame,
    replay: Replay,
    find: Find,
    send: Send,
    *,
    on_progress: OnProgress = lambda done, failed: None,
) -> DataFrame:
    """Send what `letters` found again, in the order of their dead-lettering, and return audit rows (`AUDIT`).

    ``find`` returns the dead letter of a row (brokerName, topic, queueId, queueOffset, commitOffset, msgId, deadGroup); ``send`` is
    `halfmoon.Admin.replay_dead_letter`, which sends to one topic once. A failure of one stops no other.
    """
    columns = ("brokerName", "topic", "queueId", "queueOffset", "commitOffset", "msgId", "deadGroup", "deadLettered")
    rows = chosen.select(*columns).orderBy("deadLettered", "commitOffset")
    outcomes = list(_sent(rows.toLocalIterator(), replay, find, send, on_progress))
    return session.createDataFrame(outcomes, AUDIT)


def _sent(rows: Iterator[Any], replay: Replay, find: Find, send: Send, on_progress: OnProgress) -> Iterator[Sequence[Any]]:
    due, failed = 0.0, 0
    for before, row in enumerate(rows):
        if replay.rate and not replay.dry_run:
            time.sleep(max(0.0, due - time.monotonic()))
            due = time.monotonic() + 1 / replay.rate  # a send that took longer is not made up for: the rate stays a maximum
        target, copy = "", None
        try:
            outcome = send(find(row), to=replay.to, again=replay.again, dry_run=replay.dry_run)
            word = "replayed before" if outcome.already else "would be sent" if replay.dry_run else "sent"
            target, copy = outcome.topic, outcome.offset_msg_id or None
        except HalfmoonError as exc:
            word, failed = f"failed: {exc}", failed + 1
        on_progress(before + 1, failed)
        yield (row.msgId, row.deadGroup, row.topic, row.brokerName, row.queueOffset, target, word, copy, datetime.now(UTC))


# ---------------------------------------------------------------- of a running cluster


def dead_letters_of(
    session: SparkSession, cluster: Cluster, groups: Sequence[str] | None = None, *, since_ms: int | None = None
) -> DataFrame:
    """Return the dead letters of groups, see `letters`. ``groups`` None: of all.

    ``since_ms``: only those dead-lettered since.
    """
    prefix = PREFIX
    topics = (
        [prefix + group for group in groups] if groups else [name for name in cluster.client().topics() if name.startswith(prefix)]
    )
    return letters(frame_of(session, cluster, ranges_of(cluster, topics, since_ms=since_ms)))


def replay_dead_letters(
    session: SparkSession,
    cluster: Cluster,
    chosen: DataFrame,
    replay: Replay,
    *,
    on_progress: OnProgress = lambda done, failed: None,
) -> DataFrame:
    """Send what `dead_letters_of` found (or some of its rows) again, each once; return audit rows.

    See `replayed`.
    """
    with cluster.admin() as admin:
        masters = {
            name: broker.broker_addrs[0] for name, broker in admin.cluster().broker_addr_table.items() if 0 in broker.broker_addrs
        }

        def find(row: Any) -> DeadLetter:
            address = masters.get(row.brokerName)
            if address is None:
                raise NoRoute(f"broker {row.brokerName} has no master now")
            return admin.dead_letter(offset_msg_id(pack_host(address), row.commitOffset))

        return replayed(session, chosen, replay, find, admin.replay_dead_letter, on_progress=on_progress)
