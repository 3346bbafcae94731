"""`halfmoon spark`: jobs on topics and tables. Declares the commands; PySpark is loaded when one of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import click

from halfmoon.cli.dlq import commands as dlq
from halfmoon.cli.shared.app import App, Argument, Option
from halfmoon.cli.shared.lines import say, say_failing
from halfmoon.cli.shared.options import LOCAL, Group, Json, NameServer, OneTopic, Topic, Topics, duration_ms, pairs, time_ms
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.shared.reading import FIRST, read, starts_and_ends
from halfmoon.cli.spark import maintenance
from halfmoon.cli.spark.options import Limit, Plot, SharedOptions, Since, check_plot, facts, loaded, show_rows
from halfmoon.client.admin import Admin
from halfmoon.errors import UsageError
from halfmoon.shown.texts import count_text
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs import lag as lags
from halfmoon.spark.jobs.traces import spans_of

TRACES_MAX = 10_000
"""Bodies with records of one message that `trace` reads."""

app = App(
    help="Topics as tables with Spark: ingest, SQL, lag, audits, replay.\n\nExample: halfmoon spark lag C_shop",
)
txn = App(help="Transactions, read from the log.\n\nExample: halfmoon spark txn audit --since 1d")
delay = App(help="Delayed messages, read from the log.\n\nExample: halfmoon spark delay audit --since 1d")
app.add_command(txn, "txn")
app.add_command(delay, "delay")
same_dlq = copy(dlq.app)  # as `halfmoon dlq`, for those who know it here
same_dlq.hidden = True
app.add_command(same_dlq, "dlq")
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
    """Show a group's lag in messages, bytes of the log and seconds: by queue, with --watch by topic. Runs without Spark.

    Example: halfmoon spark lag C_shop --watch 1m --every 2s --plot lag.png
    """
    if plot is not None and watch is None:
        raise UsageError("--plot draws the lag over time: give --watch, too")
    plots, cluster = _plots(plot), Cluster(shared.nameserver, shared.options)
    if watch is None:
        _show_lag(group, lags.lag(cluster, group, topic), as_json=shared.as_json)
        return
    for_ms, every_ms = duration_ms(watch, "--watch"), duration_ms(every, "--every", at_least="50ms")
    samples = []
    for sample in lags.sample_lag(cluster, group, topic, every_s=every_ms / 1000, for_s=for_ms / 1000):
        samples.append(sample)
        if shared.as_json:
            show_json(sample._asdict())
        else:
            say(f"{sample.topic}: {count_text(sample.messages)}, {sample.behind_ms / 1000:.1f} s behind")
    if plots is not None:
        plots.lag_plot(plot, group, samples)


def _show_lag(group: str, queues: Sequence[lags.QueueLag], *, as_json: bool) -> None:
    rows = [queue._asdict() for queue in queues]
    if as_json:
        show_json({"group": group, "queues": rows})
        return
    show_rows(f"lag of {group}", lags.QueueLag._fields, rows)
    messages, size = sum(queue.messages for queue in queues), sum(queue.bytes for queue in queues)
    say(f"{count_text(messages)} of about {size:,} bytes to consume")


@txn.command("audit")
def txn_audit(topic: Topics = None, since: Since = None, limit: Limit = 20, plot: Plot = None, *, shared: SharedOptions) -> None:
    """Join half messages, op records and visible messages of all brokers: states, latencies, duplicates, orphans.

    Without --topic, audits all topics that half messages name. Exit code 1 if a message is visible twice or has no half message.

    Example: halfmoon spark txn audit --since 1d --plot latency.png
    """
    plots = _plots(plot)
    drawn = loaded("cli.spark.jobs", "spark").audit_transactions(shared, topic, _since(since), limit, curve=plot is not None)
    _end(drawn, plot, plots and plots.latency_plot)


@delay.command("audit")
def delay_audit(topic: Topics = None, since: Since = None, limit: Limit = 20, plot: Plot = None, *, shared: SharedOptions) -> None:
    """Compare when delayed messages were due with when they were delivered. Exit code 1 if some are missing.

    Example: halfmoon spark delay audit --topic orders --plot late.png
    """
    plots = _plots(plot)
    drawn = loaded("cli.spark.jobs", "spark").audit_delays(shared, topic, _since(since), limit, curve=plot is not None)
    _end(drawn, plot, plots and plots.lateness_plot)


@app.command(finds=True)
def trace(
    msg_id: Annotated[str | None, Argument(metavar="[ID]", help="A message id; without it, all messages.")] = None,
    trace_topic: Annotated[
        str, Option("--trace-topic", metavar="TOPIC", help="The topic with the trace records.")
    ] = "RMQ_SYS_TRACE_TOPIC",
    since: Since = None,
    limit: Limit = 100,
    nameserver: NameServer = LOCAL,
    as_json: Json = False,
) -> int:
    """Show sends, decisions and listener calls recorded by traced clients. `halfmoon msg trace` also shows what brokers recorded.

    Example: halfmoon spark trace 7F00000100002A9F0000000000001000
    """
    since_ms = FIRST if since is None else time_ms(since)
    spans = spans_of(_trace_bodies(nameserver, trace_topic, msg_id, since_ms), limit + 1, msg_id)
    more = len(spans) > limit
    if as_json:
        show_json({"spans": facts(spans[:limit]), "more": more}, rows="spans")
    else:
        show_rows("spans", ("begin", "msgId", "span", "who", "topic", "costMs", "success", "retries", "fromCheck"), spans[:limit])
        if more:
            say(f"there are more than these {limit:,}: give --limit, or --since")
    return len(spans[:limit])


def _trace_bodies(nameserver: str, topic: str, msg_id: str | None, since_ms: int) -> Iterator[bytes]:
    """Yield the bodies of a trace topic: those that have a message as a key, or all since a time."""
    if msg_id is None:
        yield from (message.body for message in read(nameserver, starts_and_ends(nameserver, topic, since_ms)))
        return
    failing: list[str] = []
    with Admin(nameserver=nameserver) as admin:
        found = admin.messages_by_key(topic, msg_id, count_max=TRACES_MAX, begin_ms=max(0, since_ms), failing=failing)
    say_failing(failing)
    yield from (message.body for message in found)


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
    found: int = loaded("cli.spark.lake", "spark").sql(shared, query, pairs(archive or [], "--archive"), limit)
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
    lake_jobs = loaded("cli.spark.lake", "spark")
    directory = (lake, name, pairs(catalog or [], "--catalog"))
    lake_jobs.fill(
        shared, topic, directory, lake_jobs.IngestRequest(kind, decode, schema, avro, partition, dedup, dedup_hours, compact_every)
    )


def _end(drawn: Any, plot: Path | None, draw: Any) -> None:
    """Draw the plot of an audit, if one is wanted. Raises click.exceptions.Exit (1) for an audit that found errors."""
    if draw is not None:
        draw(plot, drawn.curves, drawn.counts)
    if not drawn.sound:
        raise click.exceptions.Exit(1)


def _since(text: str | None) -> int | None:
    return None if text is None else time_ms(text)


def _plots(plot: Path | None) -> Any:
    """Return the module that plots; None without a plot. Raises before the job runs if a plot cannot be written."""
    check_plot(plot)
    return None if plot is None else loaded("spark.jobs.plots", "lake")
