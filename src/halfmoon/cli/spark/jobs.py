"""Runs the jobs of `halfmoon spark` and shows what they found. Loads PySpark, and so is loaded when a job is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import click
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import halfmoon
from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.options import SharedOptions, facts, show_rows
from halfmoon.errors import BrokerError, HalfmoonError, NetworkError, UsageError
from halfmoon.spark.jobs import dead_letters, traces, transactions
from halfmoon.spark.jobs import lag as lags
from halfmoon.spark.jobs.audits import delay_audit, transaction_audit
from halfmoon.spark.jobs.dead_letters import Replay, report
from halfmoon.spark.jobs.progress import Progress
from halfmoon.spark.jobs.reading import Cluster, frame_of, ranges_of
from halfmoon.spark.sessions import session

SETTINGS = {"spark.sql.session.timeZone": "UTC", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "4"}
_WRONG = ("PARSE_", "UNRESOLVED_", "TABLE_OR_VIEW", "DATATYPE_", "UNSUPPORTED_", "AMBIGUOUS_", "MISSING_", "INVALID_", "GROUP_BY_")
"""Beginnings of Spark's error classes that say that a query is wrong."""


class Drawn(NamedTuple):
    """Data of the plot of an audit (percentiles and counts, by state or level), and whether nothing is wrong."""

    curves: dict[Any, list[float]]
    counts: dict[Any, int]
    sound: bool


@contextmanager
def running(shared: SharedOptions, what: str) -> Iterator[tuple[SparkSession, Cluster, Progress]]:
    """Give a session and a cluster, and show progress meanwhile; errors of Spark become ours."""
    cluster = Cluster(shared.nameserver, shared.options)
    cluster.client()  # wrong options and missing name servers are errors before Spark starts
    with working(shared, what) as (spark, progress):
        yield spark, cluster, progress


@contextmanager
def working(shared: SharedOptions, what: str) -> Iterator[tuple[SparkSession, Progress]]:
    """Open a session for work on tables, which asks no broker, with progress and errors as `running`."""
    spark = session(f"halfmoon {what}", master=shared.master, settings=SETTINGS)
    with Progress(spark, what, quiet=shared.as_json) as progress:
        try:
            yield spark, progress
        except (PySparkException, Py4JJavaError) as exc:
            raise _ours(exc) from None


def _ours(exc: PySparkException | Py4JJavaError) -> HalfmoonError:
    """Return an error of Spark's as ours: what a data source said, else the first line of what Spark says."""
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


# ---------------------------------------------------------------- lag


def lag(shared: SharedOptions, group: str, topic: str | None) -> None:
    """Show the lag of a group by queue."""
    with running(shared, "lag") as (spark, cluster, _):
        queues = [row.asDict() for row in lags.lag(spark, cluster, group, topic).collect()]
    if shared.as_json:
        show_json({"group": group, "queues": facts(queues)})
        return
    columns = ("topic", "brokerName", "queueId", "progress", "end", "messages", "bytes", "seconds")
    show_rows(f"lag of {group}", columns, queues)
    say(
        f"{sum(queue['messages'] for queue in queues):,} messages, {sum(queue['bytes'] for queue in queues):,} bytes of bodies wait"
    )


def watch(shared: SharedOptions, group: str, topic: str | None, for_s: float, every_s: float) -> list[lags.Sample]:
    """Show the lag of a group again and again, and return what was seen. Needs no Spark session."""
    cluster, samples = Cluster(shared.nameserver, shared.options), []
    for sample in lags.sample_lag(cluster, group, topic, every_s=every_s, for_s=for_s):
        samples.append(sample)
        if shared.as_json:
            show_json(sample._asdict())
        else:
            say(f"{sample.topic}: {sample.messages:,} messages, {sample.behind_ms / 1000:.1f} s behind")
    return samples


# ---------------------------------------------------------------- audits


def audit_transactions(
    shared: SharedOptions, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool
) -> Drawn:
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
    return Drawn(curves, summary.states, summary.sound)


def _pending_reported(shared: SharedOptions) -> dict[str, int]:
    """Return what brokers report as pending, as `halfmoon tx status` shows it; brokers without such figures are left out."""
    with halfmoon.Admin(nameserver=shared.nameserver) as admin:
        try:
            return {stats.broker: stats.pending_count for stats in admin.transaction_stats()}
        except (BrokerError, NetworkError):
            return {}


def audit_delays(shared: SharedOptions, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool) -> Drawn:
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
    return Drawn(curves, {level: int(figures["count"]) for level, figures in summary.levels.items()}, not summary.missing)


def trace(shared: SharedOptions, msg_id: str | None, trace_topic: str, since_ms: int | None, limit: int) -> int:
    """Show spans of messages that traced clients recorded; return how many."""
    with running(shared, "trace") as (spark, cluster, _):
        events = traces.events(frame_of(spark, cluster, ranges_of(cluster, [trace_topic], since_ms=since_ms), ("body",)))
        spans = traces.spans(events if msg_id is None else events.where(F.col("msgId") == msg_id))
        rows, more = rows_of(spans.orderBy("begin"), limit)
    if shared.as_json:
        show_json({"spans": facts(rows), "more": more})
    else:
        show_rows("spans", ("begin", "msgId", "span", "who", "topic", "costMs", "success", "retries", "fromCheck"), rows)
        if more:
            say(f"there are more than these {limit:,}: give --limit, or --since")
    return len(rows)


# ---------------------------------------------------------------- dead letters


def report_dead_letters(shared: SharedOptions, groups: Sequence[str] | None, since_ms: int | None, now_ms: int, limit: int) -> int:
    """Show dead letters by group, source and reason; return of how many kinds there are."""
    with running(shared, "dlq report") as (spark, cluster, _):
        reasons, more = rows_of(report(dead_letters.dead_letters_of(spark, cluster, groups, since_ms=since_ms), now_ms), limit)
    if shared.as_json:
        show_json({"reasons": facts(reasons), "more": more})
    else:
        show_rows("dead letters", ("deadGroup", "source", "reason", "count", "tries", "bytes", "oldest", "newest"), reasons)
    return len(reasons)


def replay_dead_letters(
    shared: SharedOptions, groups: Sequence[str] | None, since_ms: int | None, where: str | None, replay: Replay, audit: Path | None
) -> int:
    """Send dead letters again, show what became of each, and return how many. Raises click.exceptions.Exit (1) when one failed."""
    with running(shared, "dlq replay") as (spark, cluster, progress):
        chosen = dead_letters.dead_letters_of(spark, cluster, groups, since_ms=since_ms)
        chosen = chosen if where is None else chosen.where(where)
        rows = dead_letters.replay_dead_letters(
            spark, cluster, chosen, replay, on_progress=lambda done, failed: progress.note(f"{done:,} done, {failed:,} failed")
        ).cache()
        outcomes = {row[0]: row["count"] for row in rows.groupBy(F.substring_index("outcome", ":", 1)).count().collect()}
        replays = [row.asDict() for row in rows.collect()]
        if audit is not None:
            rows.write.mode("append").parquet(str(audit))
    if shared.as_json:
        show_json({"dry_run": replay.dry_run, "outcomes": outcomes, "replays": facts(replays)})
    else:
        show_rows("replays", ("msgId", "deadGroup", "target", "outcome"), replays)
        say(", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items())) or "there are none")
    if "failed" in outcomes:
        raise click.exceptions.Exit(1)
    return len(replays)
