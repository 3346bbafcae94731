"""Jobs of `halfmoon spark compact`, `dedup`, `verify` and `replay`. Loads PySpark."""

from __future__ import annotations

import time
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import click
from pyspark.sql import DataFrame, SparkSession

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.jobs import running, working
from halfmoon.cli.spark.options import SharedOptions, show_rows
from halfmoon.data.offsets import creation_times
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.shown.texts import count_text
from halfmoon.spark import option_parsing
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs import replay as replays
from halfmoon.spark.jobs.reading import frame_of, ranges_of
from halfmoon.spark.lake import maintenance
from halfmoon.spark.lake import verify as verifying
from halfmoon.spark.lake.manifest import births, check_births
from halfmoon.spark.lake.table import LakeTable

Directory = tuple[Path, str, dict[str, str]]
"""Directory of a table; for an Iceberg table also its name and the properties of its catalog."""

FILE_BYTES_MIN, FILE_BYTES_MAX = 1 << 10, 64 << 30


class ReplayRequest(NamedTuple):
    """Request of a replay, see `halfmoon.spark.jobs.replay`. ``id`` None: a new one."""

    to: str
    id: str | None
    where: str | None
    since_ms: int | None
    rate: float | None
    dry_run: bool


def _table(directory: Directory) -> LakeTable:
    path, name, catalog = directory
    return LakeTable(path, name=name, catalog=catalog)


# ---------------------------------------------------------------- maintenance


def compact(shared: SharedOptions, directory: Directory, file_size: str, keep_ms: int | None) -> None:
    """Merge small files, and remove unreferenced ones."""
    try:
        file_bytes = option_parsing.size(FILE_BYTES_MIN, FILE_BYTES_MAX)(file_size)
    except ValueError as exc:
        raise UsageError(f"--file-size {file_size!r} {exc}") from None
    table = _table(directory)
    with working(shared, "compact") as (spark, _):
        joined = maintenance.compact(spark, table, file_bytes=file_bytes)
        removed = [] if keep_ms is None else maintenance.vacuum(table, keep_ms=keep_ms)
        files = len(table.files())
    if shared.as_json:
        show_json({"joined": joined, "files": files, "removed": removed})
    else:
        say(f"{count_text(joined, 'file')} merged, {len(removed):,} removed; the table now has {files:,}")


def dedup(shared: SharedOptions, directory: Directory, by: str) -> None:
    """Delete duplicate messages."""
    table = _table(directory)
    with working(shared, "dedup") as (spark, _):
        rows = maintenance.dedup(spark, table, by)
    if shared.as_json:
        show_json({"by": by, "rows": rows})
    else:
        say(f"{rows:,} duplicates deleted")


def verify(shared: SharedOptions, directory: Directory, *, live: bool, limit: int) -> None:
    """Show a verdict on each queue. Raises click.exceptions.Exit (1) when something is wrong."""
    table = _table(directory)
    if live:
        with running(shared, "verify") as (spark, cluster, _):
            verdicts = verifying.verify(spark, table, _live(spark, cluster, table))
    else:
        with working(shared, "verify") as (spark, _):
            verdicts = verifying.verify(spark, table)
    rows = [_verdict_facts(verdict) for verdict in verdicts]
    sound = not any(row["wrong"] for row in rows)
    if shared.as_json:
        show_json({"sound": sound, "live": live, "queues": rows[:limit], "more": len(rows) > limit})
    else:
        columns = ("topic", "brokerName", "queueId", "begin", "end", "rows", "refused", "dropped", "wrong")
        show_rows("queues", columns, sorted(rows, key=lambda row: not row["wrong"])[:limit])
        if len(rows) > limit:
            say(f"there are more than these {limit:,}: give --limit")
        say("sound" if sound else f"{sum(1 for row in rows if row['wrong']):,} of {len(rows):,} queues are wrong")
    if not sound:
        raise click.exceptions.Exit(1)


def _verdict_facts(verdict: verifying.QueueVerdict) -> dict[str, Any]:
    topic, broker, queue = verdict.queue
    return {
        "topic": topic, "brokerName": broker, "queueId": queue, "begin": verdict.begin, "end": verdict.end, "rows": verdict.rows,
        "refused": verdict.refused, "dropped": verdict.dropped, "checksum": verdict.table_checksum,
        "topic_checksum": verdict.topic_checksum, "wrong": list(verdict.wrong),
    }  # fmt: skip


def _live(spark: SparkSession, cluster: Cluster, table: LakeTable) -> DataFrame:
    """Return the live messages of a table's queues. Raises UsageError where some expired, or the topic was recreated."""
    begins: dict[tuple[str, str, int], int] = {}
    spans = table.state().spans
    for span in spans:
        key = (span.topic, span.broker, span.queue)
        begins[key] = min(span.begin, begins.get(key, span.begin))
    ends = ranges_of(cluster, sorted({topic for topic, _, _ in begins}))
    check_births(births(spans), creation_times(cluster.client(), [MessageQueue(*queue) for queue in begins]))
    for (topic, broker, queue), begin in sorted(begins.items()):
        low = ends.get((topic, broker, queue), (-1, -1))[0]
        if low > begin or low < 0:
            there = f"begins at {low:,} now" if low >= 0 else "is not there any more"
            raise UsageError(
                f"topic {topic}, broker {broker}, queue {queue}: the table begins at {begin:,}, the log {there}; "
                "verify the table without --live"
            )
    return frame_of(spark, cluster, {queue: ends[queue] for queue in begins}, (*replays.PLACE, "body"))


# ---------------------------------------------------------------- replay


def replay(shared: SharedOptions, source: str | Directory, request: ReplayRequest) -> int:
    """Send messages again; return their number, or 1 when the replay was complete before."""
    name = request.id or f"replay-{token_hex(8)}"
    table = source if isinstance(source, str) else _table(source)
    begun = time.monotonic()
    if request.id is None and not request.dry_run:
        say(f"the replay's id is {name}: pass it as --id to continue if it is interrupted", error=True)
    with running(shared, "replay") as (spark, cluster, progress):
        outcome = replays.replay(
            spark, cluster, table, request.to, id=name, where=request.where, since_ms=request.since_ms, rate=request.rate,
            dry_run=request.dry_run, on_progress=lambda done, total: progress.note(f"{done:,} of {total:,} messages"),
        )  # fmt: skip
    took = time.monotonic() - begun
    if shared.as_json:
        show_json({"id": name, "dry_run": request.dry_run, **outcome._asdict(), "seconds": round(took, 3)})
    elif outcome.complete_before:
        say(f"{name} was already complete: nothing was sent")
    elif not outcome.rows:
        say("nothing to send")
    elif request.dry_run:
        say(f"{count_text(outcome.rows)} would be sent to {request.to}")
    else:
        say(f"{count_text(outcome.rows)} in {outcome.batches:,} batches sent to {request.to} as {name}, {took:.1f} s")
    return outcome.rows or int(outcome.complete_before)
