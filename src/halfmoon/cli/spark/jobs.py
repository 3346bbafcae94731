"""Runs the jobs of `halfmoon spark` and shows what they found. Loads PySpark, and so is loaded when a job is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import typer
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.options import Asked, facts, show_rows
from halfmoon.client.admin import Admin
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
    """What a picture of an audit is drawn from (percentiles and counts, by state or level), and whether nothing is wrong."""

    curves: dict[Any, list[float]]
    counts: dict[Any, int]
    sound: bool


@contextmanager
def running(asked: Asked, what: str) -> Iterator[tuple[SparkSession, Cluster, Progress]]:
    """Give a session and a cluster, and tell progress meanwhile; errors of Spark become ours."""
    cluster = Cluster(asked.nameserver, asked.options)
    cluster.client()  # wrong options and missing name servers are told before Spark starts
    with working(asked, what) as (spark, progress):
        yield spark, cluster, progress


@contextmanager
def working(asked: Asked, what: str) -> Iterator[tuple[SparkSession, Progress]]:
    """The same for work on tables, which asks no broker."""
    spark = session(f"halfmoon {what}", master=asked.master, settings=SETTINGS)
    with Progress(spark, what, quiet=asked.as_json) as progress:
        try:
            yield spark, progress
        except (PySparkException, Py4JJavaError) as exc:
            raise _ours(exc) from None


def _ours(exc: PySparkException | Py4JJavaError) -> HalfmoonError:
    """Return an error of Spark's as ours: what a data source said, else the first line of what Spark says."""
    text = str(exc)
    for line in reversed(text.splitlines()):
        name, colon, said = line.strip().partition(": ")
        if colon and name.startswith("halfmoon."):
            return HalfmoonError(said)
    condition = exc.getCondition() or "" if isinstance(exc, PySparkException) else ""
    first = next((line for line in text.splitlines() if line.strip()), type(exc).__name__)
    return UsageError(first) if condition.startswith(_WRONG) else HalfmoonError(first)


def rows_of(frame: DataFrame, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return rows as dicts, and whether there are more."""
    found = [row.asDict(recursive=True) for row in frame.limit(limit + 1).collect()]
    return found[:limit], len(found) > limit


# ---------------------------------------------------------------- lag


def lag(asked: Asked, group: str, topic: str | None) -> None:
    """Show the lag of a group by queue."""
    with running(asked, "lag") as (spark, cluster, _):
        found = [row.asDict() for row in lags.lag(spark, cluster, group, topic).collect()]
    if asked.as_json:
        show_json({"group": group, "queues": facts(found)})
        return
    columns = ("topic", "brokerName", "queueId", "progress", "end", "messages", "bytes", "seconds")
    show_rows(f"lag of {group}", columns, found)
    say(f"{sum(one['messages'] for one in found):,} messages, {sum(one['bytes'] for one in found):,} bytes of bodies wait")


def watch(asked: Asked, group: str, topic: str | None, for_s: float, every_s: float) -> list[lags.Sample]:
    """Show the lag of a group again and again, and return what was seen. Needs no Spark session."""
    cluster, found = Cluster(asked.nameserver, asked.options), []
    for one in lags.samples(cluster, group, topic, every_s=every_s, for_s=for_s):
        found.append(one)
        if asked.as_json:
            show_json(one._asdict())
        else:
            say(f"{one.topic}: {one.messages:,} messages, {one.behind_ms / 1000:.1f} s behind")
    return found


# ---------------------------------------------------------------- audits


def audit_transactions(asked: Asked, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool) -> Drawn:
    """Show an audit of transactions."""
    with running(asked, "txn audit") as (spark, cluster, _):
        audit = transaction_audit(spark, cluster, topics=topics or None, since_ms=since_ms)
        summary = audit.summary()
        curves = audit.latency_curve() if curve else {}
        wrong = [row.asDict() for row in transactions.duplicates(audit.transactions).limit(limit).collect()]
        orphans = [row.asDict() for row in audit.orphans.limit(limit).collect()]
    told = _pending_told(asked)
    brokers = [
        {"broker": name, "log": summary.pending.get(name, 0), "told": told.get(name)} for name in sorted({*summary.pending, *told})
    ]
    if asked.as_json:
        whole = {
            **asdict(summary),
            "sound": summary.sound,
            "brokers": brokers,
            "duplicate_commits": wrong,
            "orphan_records": orphans,
        }
        show_json(facts(whole))
    else:
        show_rows("transactions", ("producerGroup", "topic", "state", "count", "checks", "duplicates", "oldest"), summary.groups)
        latencies = [{"state": state, **each} for state, each in summary.latencies.items()]
        show_rows("ms to the decision", ("state", "count", "p50", "p95", "p99", "max"), latencies)
        show_rows("pending", ("broker", "log", "told"), brokers)
        if wrong:
            show_rows("committed more than once", ("brokerName", "msgId", "producerGroup", "topic", "visibleCount"), wrong)
        if orphans:
            show_rows("orphans", ("kind", "brokerName", "topic", "msgId", "place", "stored"), orphans)
        for name in summary.not_read:
            say(f"topic {name} is not there: what was decided for it is not known")
        say("sound" if summary.sound else f"{summary.duplicates:,} duplicate commits, {summary.orphans:,} orphans")
    return Drawn(curves, summary.states, summary.sound)


def _pending_told(asked: Asked) -> dict[str, int]:
    """Return what brokers say is pending, as `halfmoon tx status` shows it; brokers that keep no such figures are left out."""
    with Admin(nameserver=asked.nameserver) as admin:
        try:
            return {one.broker: one.pending_count for one in admin.transaction_stats()}
        except (BrokerError, NetworkError):
            return {}


def audit_delays(asked: Asked, topics: Sequence[str] | None, since_ms: int | None, limit: int, *, curve: bool) -> Drawn:
    """Show an audit of delayed messages."""
    with running(asked, "delay audit") as (spark, cluster, _):
        audit = delay_audit(spark, cluster, topics=topics or None, since_ms=since_ms)
        summary = audit.summary()
        curves = audit.lateness_curve() if curve else {}
        missing = [row.asDict() for row in audit.messages.where(F.col("state") == "MISSING").limit(limit).collect()]
    if asked.as_json:
        whole = asdict(summary) | {"levels": {str(level): each for level, each in summary.levels.items()}}
        show_json(facts({**whole, "missing_messages": missing}))
    else:
        show_rows(
            "delayed messages", ("state", "count"), [{"state": name, "count": count} for name, count in summary.states.items()]
        )
        levels = [{"level": level or "time", **each} for level, each in summary.levels.items()]
        show_rows("ms too late", ("level", "count", "early", "p50", "p95", "p99", "max"), levels)
        if missing:
            show_rows("missing", ("brokerName", "topic", "msgId", "level", "parked", "due"), missing)
    return Drawn(curves, {level: int(each["count"]) for level, each in summary.levels.items()}, not summary.missing)


def trace(asked: Asked, msg_id: str | None, trace_topic: str, since_ms: int | None, limit: int) -> None:
    """Show spans of messages from what traced clients told. Raises typer.Exit (1) when there are none."""
    with running(asked, "trace") as (spark, cluster, _):
        events = traces.events(frame_of(spark, cluster, ranges_of(cluster, [trace_topic], since_ms=since_ms), ("body",)))
        spans = traces.spans(events if msg_id is None else events.where(F.col("msgId") == msg_id))
        found, more = rows_of(spans.orderBy("begin"), limit)
    if asked.as_json:
        show_json({"spans": facts(found), "more": more})
    else:
        show_rows("spans", ("begin", "msgId", "span", "who", "topic", "costMs", "success", "retries", "fromCheck"), found)
        if more:
            say(f"there are more than these {limit:,}: give --limit, or --since")
    if not found:
        raise typer.Exit(1)


# ---------------------------------------------------------------- dead letters


def report_dead_letters(asked: Asked, groups: Sequence[str] | None, since_ms: int | None, now_ms: int, limit: int) -> None:
    """Show dead letters by group, source and reason. Raises typer.Exit (1) when there are none."""
    with running(asked, "dlq report") as (spark, cluster, _):
        found, more = rows_of(report(dead_letters.dead_letters_of(spark, cluster, groups, since_ms=since_ms), now_ms), limit)
    if asked.as_json:
        show_json({"reasons": facts(found), "more": more})
    else:
        show_rows("dead letters", ("deadGroup", "source", "reason", "count", "tries", "bytes", "oldest", "newest"), found)
    if not found:
        raise typer.Exit(1)


def replay_dead_letters(
    asked: Asked, groups: Sequence[str] | None, since_ms: int | None, where: str | None, replay: Replay, audit: Path | None
) -> None:
    """Send dead letters again and show what became of each. Raises typer.Exit (1) when one failed, or there are none."""
    with running(asked, "dlq replay") as (spark, cluster, progress):
        chosen = dead_letters.dead_letters_of(spark, cluster, groups, since_ms=since_ms)
        chosen = chosen if where is None else chosen.where(where)
        rows = dead_letters.replay_dead_letters(
            spark, cluster, chosen, replay, on_progress=lambda done, failed: progress.note(f"{done:,} done, {failed:,} failed")
        ).cache()
        outcomes = {row[0]: row["count"] for row in rows.groupBy(F.substring_index("outcome", ":", 1)).count().collect()}
        found = [row.asDict() for row in rows.collect()]
        if audit is not None:
            rows.write.mode("append").parquet(str(audit))
    if asked.as_json:
        show_json({"dry_run": replay.dry_run, "outcomes": outcomes, "replays": facts(found)})
    else:
        show_rows("replays", ("msgId", "deadGroup", "target", "outcome"), found)
        say(", ".join(f"{count:,} {name}" for name, count in sorted(outcomes.items())) or "there are none")
    if not found or "failed" in outcomes:
        raise typer.Exit(1)
