"""`halfmoon spark`: jobs on topics and tables. Declares the commands; PySpark is loaded when one of them runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import click

from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.options import Group, Groups, OneTopic, Topic, Topics, Yes, confirm, duration_ms, pairs, time_ms
from halfmoon.cli.spark import maintenance
from halfmoon.cli.spark.options import Limit, Plot, SharedOptions, Since, check_plot, missing
from halfmoon.errors import UsageError

app = App(
    help="Topics as tables with Spark: ingest, SQL, lag, audits, replay.\n\nExample: halfmoon spark lag C_shop",
)
txn = App(help="Transactions, read from the log.\n\nExample: halfmoon spark txn audit --since 1d")
delay = App(help="Delayed messages, read from the log.\n\nExample: halfmoon spark delay audit --since 1d")
dlq = App(help="Dead letters as tables.\n\nExample: halfmoon spark dlq report --since 1d")
app.add_command(txn, "txn")
app.add_command(delay, "delay")
app.add_command(dlq, "dlq")
for command in (maintenance.compact, maintenance.dedup, maintenance.verify):
    app.command()(command)
app.command(finds=True)(maintenance.replay)


@app.command()
def lag(
    group: Group,
    topic: OneTopic = None,
    watch: Annotated[str | None, Option("--watch", metavar="DURATION", help="Keep sampling for this long: 30s, 5m.")] = None,
    every: Annotated[str, Option("--every", metavar="DURATION", help="Sampling interval with --watch.")] = "1s",
    plot: Plot = None,
    *,
    shared: SharedOptions,
) -> None:
    """Show a group's lag by queue: messages, bytes (reads the backlog) and seconds. --watch asks brokers only.

    Example: halfmoon spark lag C_shop --watch 1m --every 2s --plot lag.png
    """
    if plot is not None and watch is None:
        raise UsageError("--plot draws the lag over time: give --watch, too")
    plots = _plots(plot)
    if watch is None:
        _jobs().lag(shared, group, topic)
        return
    for_ms, every_ms = duration_ms(watch, "--watch"), duration_ms(every, "--every", at_least="50ms")
    samples = _jobs().watch(shared, group, topic, for_ms / 1000, every_ms / 1000)
    if plots is not None:
        plots.lag_plot(plot, group, samples)


@txn.command("audit")
def txn_audit(topic: Topics = None, since: Since = None, limit: Limit = 20, plot: Plot = None, *, shared: SharedOptions) -> None:
    """Join half messages, op records and visible messages of all brokers: states, latencies, duplicates, orphans.

    Without --topic, audits all topics that half messages name. Exit code 1 if a message is visible twice or has no half message.

    Example: halfmoon spark txn audit --since 1d --plot latency.png
    """
    plots = _plots(plot)
    drawn = _jobs().audit_transactions(shared, topic, _since(since), limit, curve=plot is not None)
    _end(drawn, plot, plots and plots.latency_plot)


@delay.command("audit")
def delay_audit(topic: Topics = None, since: Since = None, limit: Limit = 20, plot: Plot = None, *, shared: SharedOptions) -> None:
    """Compare when delayed messages were due with when they were delivered. Exit code 1 if some are missing.

    Example: halfmoon spark delay audit --topic orders --plot late.png
    """
    plots = _plots(plot)
    drawn = _jobs().audit_delays(shared, topic, _since(since), limit, curve=plot is not None)
    _end(drawn, plot, plots and plots.lateness_plot)


@dlq.command("report", finds=True)
def dlq_report(group: Groups = None, since: Since = None, limit: Limit = 100, *, shared: SharedOptions) -> int:
    """Count dead letters by group, topic and reason, ignoring numbers in reasons.

    Example: halfmoon spark dlq report --group C_mail --since 1d
    """
    found: int = _jobs().report_dead_letters(shared, group, _since(since), time.time_ns() // 1_000_000, limit)
    return found


@dlq.command("replay", finds=True)
def dlq_replay(
    group: Groups = None,
    where: Annotated[
        str | None,
        Option("--where", metavar="SQL", help="Only dead letters that satisfy this condition: reason like '%timeout%'."),
    ] = None,
    since: Since = None,
    to: Annotated[
        str | None, Option("--to", metavar="TOPIC", help="Send to this topic; default: to its consumer group only.")
    ] = None,
    rate: Annotated[float | None, Option("--rate", min=0.001, metavar="N", help="Send at most N messages a second.")] = None,
    again: Annotated[bool, Option("--again", help="Also those that were already replayed to that topic.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    yes: Yes = False,
    audit: Annotated[Path | None, Option("--audit", metavar="DIR", help="Append the audit rows to Parquet files here.")] = None,
    *,
    shared: SharedOptions,
) -> int:
    """Send dead letters again, each once; every outcome is a row. Exit code 1 if one failed.

    Columns for --where: deadGroup, source, reason, tries, deadLettered, born, tags, keys, msgId, properties, body.

    Example: halfmoon spark dlq replay --group C_mail --where "reason like '%timeout%'" --rate 50 --dry-run
    """
    if not (group or where or since):
        raise UsageError("choose dead letters by --group, --where or --since")
    where_to = f"topic {to} and all its groups" if to else "the groups that gave them up"
    confirm(f"send these dead letters again, to {where_to}", yes=yes or dry_run)
    jobs = _jobs()
    replay = jobs.Replay(to=to, rate=rate, again=again, dry_run=dry_run)
    sent: int = jobs.replay_dead_letters(shared, group, _since(since), where, replay, audit)
    return sent


@app.command(finds=True)
def trace(
    msg_id: Annotated[str | None, Argument(metavar="[ID]", help="A message id; without it, all messages.")] = None,
    trace_topic: Annotated[
        str, Option("--trace-topic", metavar="TOPIC", help="The topic with the trace records.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    since: Since = None,
    limit: Limit = 100,
    *,
    shared: SharedOptions,
) -> int:
    """Show sends, decisions and listener calls recorded by traced clients.

    Example: halfmoon spark trace 7F00000100002A9F0000000000001000
    """
    found: int = _jobs().trace(shared, msg_id, trace_topic, _since(since), limit)
    return found


@app.command(finds=True)
def sql(
    query: Annotated[str, Argument(metavar="SQL", help="A query; topics are topic.orders or topic.`a-b`.")],
    archive: Annotated[
        list[str] | None,
        Option("--archive", metavar="TOPIC=DIR", help="The Delta table with the older part of a topic; may be repeated."),
    ] = None,
    limit: Limit = 100,
    *,
    shared: SharedOptions,
) -> int:
    """Query topics, live and archived, as one table; `topic.orders timestamp as of '2026-01-31T08:00:00Z'` shows a topic as it was.

    Example: halfmoon spark sql "select tags, count(*) from topic.orders group by tags" --archive orders=lake/orders
    """
    found: int = _lake().sql(shared, query, pairs(archive or [], "--archive"), limit)
    return found


@app.command()
def ingest(
    topic: Topic,
    lake: Annotated[Path, Argument(metavar="DIR", help="The table's directory; created if it is missing.")],
    kind: Annotated[str, Option("--format", metavar="KIND", help="delta or iceberg.")] = "delta",
    decode: Annotated[str, Option("--decode", metavar="KIND", help="Body format: binary, text, json or avro.")] = "binary",
    schema: Annotated[str | None, Option("--schema", metavar="DDL", help="Fields of JSON bodies: id bigint, total double.")] = None,
    avro: Annotated[Path | None, Option("--avro", metavar="FILE", help="The schema of Avro bodies, as JSON (.avsc).")] = None,
    partition: Annotated[str, Option("--partition", metavar="UNIT", help="Partition by day or hour.")] = "",
    dedup: Annotated[
        str, Option("--dedup", metavar="COLUMN", help="Drop duplicate messages by msgId or keys; the first one stays.")
    ] = "",
    dedup_within: Annotated[
        str,
        Option("--dedup-within", metavar="DURATION", help="Look for duplicates so far back (whole hours); 0: in a batch only."),
    ] = "24h",
    compact_every: Annotated[
        int, Option("--compact-every", min=0, metavar="BATCHES", help="Merge small files every N batches; 0: never.")
    ] = 0,
    name: maintenance.Name = "",
    catalog: maintenance.Catalog = None,
    *,
    shared: SharedOptions,
) -> None:
    """Append a topic's new messages to a table. If it is killed at any point, the next run continues.

    Example: halfmoon spark ingest orders lake/orders --format delta --partition day --dedup msgId
    """
    dedup_hours, rest_ms = divmod(duration_ms(dedup_within, "--dedup-within"), 3_600_000)
    if rest_ms:
        raise UsageError(f"--dedup-within {dedup_within}: must be whole hours")
    lake_jobs = _lake()
    directory = (lake, name, pairs(catalog or [], "--catalog"))
    lake_jobs.fill(
        shared, topic, directory, lake_jobs.IngestRequest(kind, decode, schema, avro, partition, dedup, dedup_hours, compact_every)
    )


def _end(drawn: Any, plot: Path | None, draw: Any) -> None:
    """Draw the plot of an audit, if one is wanted. Raises click.exceptions.Exit (1) when something is wrong."""
    if draw is not None:
        draw(plot, drawn.curves, drawn.counts)
    if not drawn.sound:
        raise click.exceptions.Exit(1)


def _since(text: str | None) -> int | None:
    return None if text is None else time_ms(text)


def _jobs() -> Any:
    try:
        from halfmoon.cli.spark import jobs
    except ModuleNotFoundError as exc:
        raise missing(exc, "spark") from None
    return jobs


def _lake() -> Any:
    try:
        from halfmoon.cli.spark import lake
    except ModuleNotFoundError as exc:
        raise missing(exc, "spark") from None
    return lake


def _plots(plot: Path | None) -> Any:
    """Return the module that plots; None without a plot. What prevents plotting is an error before the job runs."""
    check_plot(plot)
    if plot is None:
        return None
    try:
        from halfmoon.spark.jobs import plots
    except ModuleNotFoundError as exc:
        raise missing(exc, "lake") from None
    return plots
