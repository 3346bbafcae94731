"""Topic to table on the fast path: tasks read ranges, decode and write Parquet themselves, and hand back a report of a few lines.

`ingest` needs no checkpoint: the table knows how far it goes, and the next batch begins there. `ingest_stream` is a streaming
query, whose checkpoint and the table keep watch over each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark import positions
from halfmoon.spark.lake.files import Layout
from halfmoon.spark.lake.manifest import Manifest, Part, check_id, manifest_of, read
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.tasks import report
from halfmoon.spark.options import SourceOptions, source_options
from halfmoon.spark.plan import Range, plan
from halfmoon.spark.reading import client_of, cores

BATCH_OFFSETS = 4_000_000
"""Offsets of one batch of `ingest`: seconds of work, so that a kill costs seconds."""


class Ingested(NamedTuple):
    """What an ingest put into a table."""

    batches: int
    rows: int
    refused: int
    gaps: int

    def plus(self, manifest: Manifest) -> Ingested:
        """Return the sums with one more batch."""
        return Ingested(
            self.batches + 1,
            self.rows + manifest.rows,
            self.refused + sum(manifest.refused.values()),
            self.gaps + sum(gap.end - gap.begin for gap in manifest.gaps),
        )


def ingest(
    session: SparkSession,
    table: LakeTable,
    layout: Layout,
    options: Mapping[str, str],
    *,
    id: str = "ingest",
    batch_offsets: int = BATCH_OFFSETS,
    progress: Callable[[Manifest], object] | None = None,
) -> Ingested:
    """Put what topics hold now into a table, from where the table ends, batch after batch; return what came in.

    ``options`` are those of the source. Only new queues begin where they say. Killed at any point, a further run goes on and
    nothing is twice in the table. Two runs at once with the same ``id`` do no harm: one of them ends with an error.

    Raises:
        UsageError: options or table do not fit. DataLoss: messages are gone, unless ``failOnDataLoss=false``.
    """
    table.create(layout)
    found = _source(options, "batch")
    todo = _todo(table, found)
    done = Ingested(0, 0, 0, 0)
    while todo:
        now, todo = _cut(todo, batch_offsets)
        last = table.state().last.get(check_id(id))
        manifest = table.publish(manifest_of(id, last.batch + 1 if last else 0, _parts(session, layout, found, now)))
        if manifest is not None:
            done = done.plus(manifest)
            if progress is not None:
                progress(manifest)
    return done


def ingest_stream(
    session: SparkSession,
    table: LakeTable,
    layout: Layout,
    options: Mapping[str, str],
    checkpoint: str | Path,
    *,
    id: str = "stream",
    available_now: bool = False,
    every: str = "1 second",
    progress: Callable[[Manifest], object] | None = None,
) -> StreamingQuery:
    """Start a streaming query that fills a table, one manifest a batch; return it.

    A batch that Spark runs again after a crash is in the table once. A checkpoint that is not the one that filled the table is an
    error of its first batch. With a new checkpoint the query begins where the table ends, unless the options say otherwise.
    """
    check_id(id)
    table.create(layout)
    found = _source(options, "stream")
    given = {name: value for name, value in options.items() if name.lower() != "emit"}
    if found.starting_offsets is None and found.starting_timestamp is None:
        given["startingOffsets"] = _starting(table, found)
    frame = session.readStream.format("halfmoon").options(**given, emit="ranges").load()
    put = partial(_put, table=table, layout=layout, options=found, id=id, progress=progress)
    trigger = {"availableNow": True} if available_now else {"processingTime": every}
    return (
        frame.writeStream.foreachBatch(put)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"{id}-{table.root.name}")
        .trigger(**trigger)
        .start()
    )


def _put(
    frame: DataFrame,
    number: int,
    *,
    table: LakeTable,
    layout: Layout,
    options: SourceOptions,
    id: str,
    progress: Callable[[Manifest], object] | None,
) -> None:
    """Run one batch of a stream."""
    found = [Range(*row) for row in frame.collect()]
    manifest = table.publish(manifest_of(id, number, _parts(frame.sparkSession, layout, options, found)))
    if manifest is not None and progress is not None:
        progress(manifest)


# ---------------------------------------------------------------- in the driver


def _parts(session: SparkSession, layout: Layout, options: SourceOptions, found: list[Range]) -> list[Part]:
    """Run the tasks of a batch and return their reports.

    As plain tasks: a Python function over Arrow would ask for pandas, of which nothing is used here.
    """
    shares = plan(found, cores=cores(), max_partitions=options.max_partitions, max_records=options.max_records_per_partition)
    if not shares:
        return []
    context = session.sparkContext
    reports = context.parallelize(shares, len(shares)).map(partial(report, layout, options)).collect()
    return [read(Part, each.encode(), "a task's report") for each in reports]


def _source(options: Mapping[str, str], use: str) -> SourceOptions:
    found = source_options({**options, "emit": "ranges"}, use)
    if found.tags != "*" or found.sql_filter or found.columns:
        raise UsageError("an ingest takes whole topics: leave tags, sqlFilter and columns to those who read the table")
    return found


def _todo(table: LakeTable, options: SourceOptions) -> list[Range]:
    """Return what the brokers hold beyond the table."""
    client = client_of(options)
    at = positions.bounds(options, client)
    begins, stops = positions.starts(options, client, at, "earliest"), positions.stops(options, client, at)
    known = table.ends()
    found = []
    for queue, first in sorted(begins.items()):
        have = known.get(_key(queue))
        if have is not None and have > at[queue][1]:
            raise UsageError(
                f"the table has {queue.topic} {queue.broker_name} queue {queue.queue_id} up to {have}, but the queue ends at "
                f"{at[queue][1]}: the topic was made anew, or its store lost. Its messages need a table of their own"
            )
        begin = first if have is None else have
        if begin < stops[queue]:
            found.append(Range(queue.topic, queue.broker_name, queue.queue_id, begin, stops[queue]))
    return found


def _cut(todo: list[Range], limit: int) -> tuple[list[Range], list[Range]]:
    """Return the next batch, of about ``limit`` offsets and of every queue its share, and what is left."""
    total = sum(part.count for part in todo)
    if total <= limit:
        return todo, []
    now, later = [], []
    for part in todo:
        middle = part.begin + max(1, part.count * limit // total)
        now.append(replace(part, end=min(middle, part.end)))
        if middle < part.end:
            later.append(replace(part, begin=middle))
    return now, later


def _starting(table: LakeTable, options: SourceOptions) -> str:
    """Return where a stream with a new checkpoint begins: behind the table, and at the oldest message of queues that it lacks."""
    known = table.ends()
    if not known:
        return "earliest"
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(positions.bounds(options, client_of(options))):
        at = known.get(_key(queue), -2)
        found.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = at
    return json.dumps(found)


def _key(queue: MessageQueue) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id
