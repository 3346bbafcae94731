"""Runs the jobs of `halfmoon spark` that keep tables in order and send them again, and shows what they did. Loads PySpark."""

from __future__ import annotations

import time
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import typer
from pyspark.sql import DataFrame, SparkSession

from halfmoon.cli.shared.lines import say
from halfmoon.cli.shared.output import show_json
from halfmoon.cli.spark.jobs import running, working
from halfmoon.cli.spark.options import Asked, show_rows
from halfmoon.errors import UsageError
from halfmoon.spark import option_parsing
from halfmoon.spark.jobs import replay as replays
from halfmoon.spark.jobs.reading import Cluster, frame_of, ranges_of
from halfmoon.spark.lake import maintenance
from halfmoon.spark.lake import verify as verifying
from halfmoon.spark.lake.table import LakeTable

Directory = tuple[Path, str, dict[str, str]]
"""Where a table lies; of an Iceberg table its name and the properties of its catalog."""

FILE_BYTES_MIN, FILE_BYTES_MAX = 1 << 10, 64 << 30


class Wanted(NamedTuple):
    """What a replay was asked for: where to, its id (None: one is made), and how `halfmoon.spark.jobs.replay` chooses and paces."""

    to: str
    id: str | None
    where: str | None
    since_ms: int | None
    rate: float | None
    dry_run: bool


def _table(directory: Directory) -> LakeTable:
    path, name, catalog = directory
    return LakeTable(path, name=name, catalog=catalog)


# ---------------------------------------------------------------- upkeep


def compact(asked: Asked, directory: Directory, file_size: str, keep_ms: int | None) -> None:
    """Join small files, and remove those that nobody knows."""
    try:
        file_bytes = option_parsing.size(FILE_BYTES_MIN, FILE_BYTES_MAX)(file_size)
    except ValueError as exc:
        raise UsageError(f"--file-size {file_size!r} {exc}") from None
    table = _table(directory)
    with working(asked, "compact") as (spark, _):
        joined = maintenance.compact(spark, table, file_bytes=file_bytes)
        removed = [] if keep_ms is None else maintenance.vacuum(table, keep_ms=keep_ms)
        files = len(table.files())
    if asked.as_json:
        show_json({"joined": joined, "files": files, "removed": removed})
    else:
        say(f"{joined:,} files joined, {len(removed):,} removed; the table has {files:,} now")


def dedup(asked: Asked, directory: Directory, by: str) -> None:
    """Take copies out."""
    table = _table(directory)
    with working(asked, "dedup") as (spark, _):
        rows = maintenance.dedup(spark, table, by)
    if asked.as_json:
        show_json({"by": by, "rows": rows})
    else:
        say(f"{rows:,} copies taken out")


def verify(asked: Asked, directory: Directory, *, live: bool, limit: int) -> None:
    """Show a verdict on each queue. Raises typer.Exit (1) when one is bad."""
    table = _table(directory)
    if live:
        with running(asked, "verify") as (spark, cluster, _):
            verdicts = verifying.verify(spark, table, _live(spark, cluster, table))
    else:
        with working(asked, "verify") as (spark, _):
            verdicts = verifying.verify(spark, table)
    rows = [_told(each) for each in verdicts]
    sound = not any(row["wrong"] for row in rows)
    if asked.as_json:
        show_json({"sound": sound, "live": live, "queues": rows[:limit], "more": len(rows) > limit})
    else:
        columns = ("topic", "brokerName", "queueId", "begin", "end", "rows", "refused", "dropped", "wrong")
        show_rows("queues", columns, sorted(rows, key=lambda row: not row["wrong"])[:limit])
        if len(rows) > limit:
            say(f"there are more than these {limit:,}: give --limit")
        say("sound" if sound else f"{sum(1 for row in rows if row['wrong']):,} of {len(rows):,} queues are wrong")
    if not sound:
        raise typer.Exit(1)


def _told(found: verifying.QueueVerdict) -> dict[str, Any]:
    topic, broker, queue = found.queue
    return {
        "topic": topic, "brokerName": broker, "queueId": queue, "begin": found.begin, "end": found.end, "rows": found.rows,
        "refused": found.refused, "dropped": found.dropped, "checksum": found.table_checksum,
        "topic_checksum": found.topic_checksum, "wrong": list(found.wrong),
    }  # fmt: skip


def _live(spark: SparkSession, cluster: Cluster, table: LakeTable) -> DataFrame:
    """Return the live messages of a table's queues. Raises UsageError where the log has lost some of them by age."""
    begins: dict[tuple[str, str, int], int] = {}
    for span in table.state().spans:
        key = (span.topic, span.broker, span.queue)
        begins[key] = min(span.begin, begins.get(key, span.begin))
    ends = ranges_of(cluster, sorted({topic for topic, _, _ in begins}))
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


def replay(asked: Asked, source: str | Directory, wanted: Wanted) -> None:
    """Send messages again. Raises typer.Exit (1) when there are none."""
    name = wanted.id or f"replay-{token_hex(8)}"
    table = source if isinstance(source, str) else _table(source)
    begun = time.monotonic()
    if wanted.id is None and not wanted.dry_run:
        say(f"the replay's id is {name}: with it, it can go on when it is cut off", error=True)
    with running(asked, "replay") as (spark, cluster, progress):
        found = replays.replay(
            spark, cluster, table, wanted.to, id=name, where=wanted.where, since_ms=wanted.since_ms, rate=wanted.rate,
            dry_run=wanted.dry_run, on_progress=lambda done, total: progress.note(f"{done:,} of {total:,} messages"),
        )  # fmt: skip
    took = time.monotonic() - begun
    if asked.as_json:
        show_json({"id": name, "dry_run": wanted.dry_run, **found._asdict(), "seconds": round(took, 3)})
    elif found.complete_before:
        say(f"{name} was complete before: nothing was sent")
    elif wanted.dry_run:
        say(f"{found.rows:,} messages would be sent to {wanted.to}")
    else:
        say(f"{found.rows:,} messages in {found.batches:,} batches sent to {wanted.to} as {name}, {took:.1f} s")
    if not (found.rows or found.complete_before):
        raise typer.Exit(1)
