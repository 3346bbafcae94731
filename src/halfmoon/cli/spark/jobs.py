"""Audits of `halfmoon spark`, and the session in which jobs run. Loads PySpark, and is itself loaded when a job runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import halfmoon
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.options import SharedOptions, facts, show_rows
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs import transactions
from halfmoon.spark.jobs.audits import delay_audit, transaction_audit
from halfmoon.spark.jobs.progress import JobProgress
from halfmoon.spark.sessions import session

SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "4"}
_WRONG = ("PARSE_", "UNRESOLVED_", "TABLE_OR_VIEW", "DATATYPE_", "UNSUPPORTED_", "AMBIGUOUS_", "MISSING_", "INVALID_", "GROUP_BY_")
"""Beginnings of Spark's error classes for wrong queries."""


class AuditPlot(NamedTuple):
    """Data of an audit's plot (percentiles and counts, by state or level), and whether nothing is wrong."""

    curves: dict[Any, list[float]]
    counts: dict[Any, int]
    sound: bool


@contextmanager
def running(shared: SharedOptions, what: str) -> Iterator[tuple[SparkSession, Cluster, JobProgress]]:
    """Yield a session and a cluster, and show progress meanwhile; errors of Spark become ours."""
    cluster = Cluster(shared.nameserver, shared.options)
    cluster.client()  # wrong options and missing name servers are errors before Spark starts
    with working(shared, what) as (spark, progress):
        yield spark, cluster, progress


@contextmanager
def working(shared: SharedOptions, what: str) -> Iterator[tuple[SparkSession, JobProgress]]:
    """Yield a session for work on tables, which asks no broker; see `running`."""
    spark = session(f"halfmoon {what}", master=shared.master, settings=SETTINGS)
    with JobProgress(spark, what, quiet=shared.as_json) as progress:
        try:
            yield spark, progress
        except (PySparkException, Py4JJavaError) as exc:
            raise _ours(exc) from None


def _ours(exc: PySparkException | Py4JJavaError) -> HalfmoonError:
    """Return an error of Spark's as ours: the error of a data source, else Spark's first line."""
    text = str(exc)
    for line in reversed(text.splitlines()):
        name, colon, message = line.strip().partition(": ")
        if colon and name.startswith("halfmoon."):
            return HalfmoonError(message)
    condition = exc.getCondition() or "" if isinstance(exc, PySparkException) else ""
    first = next((line for line in text.splitlines() if line.strip()), type(exc).__name__)
    return UsageError(first) if condition.startswith(_WRONG) else HalfmoonError(first)


def rows_of(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return rows as dicts, and whether there are more."""
    rows = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return rows[:limit], len(rows) > limit


# ---------------------------------------------------------------- audits


def audit_transactions(
    shared: SharedOptions, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool
) -> AuditPlot:
    """Show an audit of transactions."""
    with running(shared, "txn audit") as (spark, cluster, _):
        audit = transaction_audit(spark, cluster, topics=topics or None, since_ms=since_ms)
        summary = audit.summary()
        curves = audit.latency_curve() if curve else {}
        duplicates = [row.asDict() for row in transactions.duplicates(audit.transactions).limit(limit).collect()]
        orphans = [row.asDict() for row in audit.orphans.limit(limit).collect()]
    reported = _pending_reported(shared)
    brokers = [
        {"broker": name, "log": summary.pending.get(name, 0), "reported": reported.get(name)}
        for name in sorted({*summary.pending, *reported})
    ]
    if shared.as_json:
        summary_facts = {
            **asdict(summary),
            "sound": summary.sound,
            "brokers": brokers,
            "duplicate_commits": duplicates,
            "orphan_records": orphans,
        }
        show_json(facts(summary_facts))
    else:
        show_rows("transactions", ("producerGroup", "topic", "state", "count", "checks", "duplicates", "oldest"), summary.groups)
        latencies = [{"state": state, **latency} for state, latency in summary.latencies.items()]
        show_rows("ms to the decision", ("state", "count", "p50", "p95", "p99", "max"), latencies)
        show_rows("pending", ("broker", "log", "reported"), brokers)
        if duplicates:
            show_rows("committed more than once", ("brokerName", "msgId", "producerGroup", "topic", "visibleCount"), duplicates)
        if orphans:
            show_rows("orphans", ("kind", "brokerName", "topic", "msgId", "place", "stored"), orphans)
        for name in summary.not_read:
            say(f"topic {name} does not exist: decisions for it are not known")
        say("sound" if summary.sound else f"{summary.duplicates:,} duplicate commits, {summary.orphans:,} orphans")
    return AuditPlot(curves, summary.states, summary.sound)


def _pending_reported(shared: SharedOptions) -> dict[str, int]:
    """Return the numbers of pending transactions that brokers report, as `halfmoon tx status` shows them, where they do."""
    with halfmoon.Admin(nameserver=shared.nameserver) as admin:
        try:
            return {stats.broker: stats.pending_count for stats in admin.transaction_stats()}
        except (BrokerError, NetworkError):
            return {}


def audit_delays(
    shared: SharedOptions, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool
) -> AuditPlot:
    """Show an audit of delayed messages."""
    with running(shared, "delay audit") as (spark, cluster, _):
        audit = delay_audit(spark, cluster, topics=topics or None, since_ms=since_ms)
        summary = audit.summary()
        curves = audit.lateness_curve() if curve else {}
        missing = [row.asDict() for row in audit.messages.where(F.col("state") == "MISSING").limit(limit).collect()]
    if shared.as_json:
        summary_facts = asdict(summary) | {"levels": {str(level): figures for level, figures in summary.levels.items()}}
        show_json(facts({**summary_facts, "missing_messages": missing}))
    else:
        show_rows(
            "delayed messages", ("state", "count"), [{"state": name, "count": count} for name, count in summary.states.items()]
        )
        levels = [{"level": level or "time", **figures} for level, figures in summary.levels.items()]
        show_rows("ms too late", ("level", "count", "early", "p50", "p95", "p99", "max"), levels)
        if missing:
            show_rows("missing", ("brokerName", "topic", "msgId", "level", "parked", "due"), missing)
    return AuditPlot(curves, {level: int(figures["count"]) for level, figures in summary.levels.items()}, not summary.missing)
