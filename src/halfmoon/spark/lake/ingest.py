"""Ingest of topics into a table: tasks read ranges, decode and write Parquet themselves, and return a report of a few lines.

`ingest` needs no checkpoint: the next batch begins where the table ends. `ingest_stream` is a streaming query; its checkpoint and
the table are checked against each other.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from halfmoon.data.offsets import (
    EARLIEST,
    available_bounds,
    creation_times,
    end_offsets,
    is_wanted,
    start_offsets,
    unread_behind,
)
from halfmoon.data.partitions import Range, plan_partitions
from halfmoon.data.queue_offsets import nested
from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.clients import client_of
from halfmoon.spark.lake.dedup import Dedup, without_copies
from halfmoon.spark.lake.files import Layout, report
from halfmoon.spark.lake.ledger import TableChanged, TableState, now_ms
from halfmoon.spark.lake.maintenance import compact, vacuum
from halfmoon.spark.lake.manifest import (
    BatchManifest,
    CopyCount,
    Queue,
    TaskReport,
    TooManyFiles,
    births,
    check_births,
    check_id,
    ends,
    manifest_of,
    read,
)
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.source.options import SourceOptions, source_options
from halfmoon.spark.source.reading import cores

log = logging.getLogger("halfmoon.spark")

BATCH_OFFSETS = 4_000_000
"""Offsets of one batch of `ingest`: a kill loses seconds of work."""

SNAPSHOT_EVERY = 500
"""Batches between snapshots of a table that is not compacted: each batch reads all manifests since the last."""

VACUUM_MS = 3_600_000
"""Minimum interval of vacuums while a stream compacts its table: each reads the table's whole history."""


class IngestTotals(NamedTuple):
    """Totals of an ingest; ``dropped`` rows were left out as copies of others."""

    batches: int
    rows: int
    refused: int
    gaps: int
    dropped: int = 0

    def plus(self, manifest: BatchManifest) -> IngestTotals:
        """Return the sums with one more batch."""
        return IngestTotals(
            self.batches + 1,
            self.rows + manifest.rows,
            self.refused + sum(manifest.refused.values()),
            self.gaps + sum(gap.end - gap.begin for gap in manifest.gaps),
            self.dropped + manifest.dropped,
        )


def ingest(
    session: SparkSession,
    table: LakeTable,
    layout: Layout,
    options: Mapping[str, str],
    *,
    id: str = "ingest",
    batch_offsets: int = BATCH_OFFSETS,
    dedup: Dedup | None = None,
    compact_every: int = 0,
    progress: Callable[[BatchManifest], object] | None = None,
) -> IngestTotals:
    """Append the messages that topics hold now to a table, batch after batch.

    ``options`` are those of the source; their starting offsets are used for queues that the table does not have. After a kill at
    any point, the next run continues, and no message is twice in the table. Of two runs at once with the same ``id``, one may end
    with an error. ``dedup`` leaves out copies of messages. ``compact_every`` is the number of batches between compactions and
    vacuums (see `maintenance`); 0: never.

    Raises:
        UsageError: options or table do not fit. DataLoss: messages are gone, unless ``failOnDataLoss=false``.
    """
    source = _source(options, "batch")
    running = Ingest(table, layout, source, check_id(id), dedup, compact_every, progress)
    running.begin()
    state = table.state()
    number = state.last[id].batch + 1 if id in state.last else 0  # of the same look as where the batches begin
    todo = unread_ranges(state, source)
    done = IngestTotals(0, 0, 0, 0)
    while todo:
        now, todo = first_ranges(todo, batch_offsets)
        manifest = running.put(session, number, now)
        number += 1
        done = done if manifest is None else done.plus(manifest)
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
    dedup: Dedup | None = None,
    compact_every: int = 0,
    progress: Callable[[BatchManifest], object] | None = None,
) -> StreamingQuery:
    """Start and return a streaming query that fills a table, one manifest a batch.

    A batch that Spark runs again after a crash is in the table once. If a stream of this ``id`` filled the table before, any other
    checkpoint than its own is an error of the first batch. Otherwise a query with a new checkpoint begins where the table ends,
    unless the options name an offset. ``dedup`` and ``compact_every`` are those of `ingest`.
    """
    source = _source(options, "stream")
    running = Ingest(table, layout, source, check_id(id), dedup, compact_every, progress)
    running.begin()
    frame_options = {name: value for name, value in options.items() if name.lower() != "emit"}
    if source.starting_offsets is None and source.starting_timestamp is None:
        frame_options["startingOffsets"] = _starting(table, source)
    frame = session.readStream.format("halfmoon").options(**frame_options, emit="ranges").load()
    trigger = {"availableNow": True} if available_now else {"processingTime": every}
    return (
        frame.writeStream.foreachBatch(running.put_frame)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"{id}-{table.root.name}")
        .trigger(**trigger)
        .start()
    )


@dataclass
class Ingest:
    """Ingest of one driver into a table."""

    table: LakeTable
    layout: Layout
    options: SourceOptions
    id: str
    dedup: Dedup | None
    compact_every: int
    progress: Callable[[BatchManifest], object] | None
    vacuumed_ms: int | None = None
    snapshot_every: int = SNAPSHOT_EVERY
    now_ms: Callable[[], int] = now_ms

    def begin(self) -> None:
        """Create the table, and refuse wrong settings."""
        if self.compact_every < 0:
            raise UsageError(f"compact_every={self.compact_every}: a number of batches, or 0 for never")
        if self.dedup is not None:
            self.dedup.check(self.layout)
        self.table.create(self.layout)

    def put_frame(self, frame: DataFrame, number: int) -> None:
        """Run one batch of a stream."""
        self.put(frame.sparkSession, number, [Range(*row) for row in frame.collect()])

    def put(self, session: SparkSession, number: int, ranges: list[Range]) -> BatchManifest | None:
        """Run a batch and return its manifest in the table; None: a snapshot contains it already."""
        manifest = self.table.publish(self._manifest(session, number, ranges))
        if manifest is not None and self.progress is not None:
            self.progress(manifest)
        if self.compact_every and (number + 1) % self.compact_every == 0:
            self._maintain(session)
        elif (number + 1) % self.snapshot_every == 0:
            self._add_snapshot()
        return manifest

    def _maintain(self, session: SparkSession) -> None:
        try:
            compact(session, self.table, file_bytes=self.layout.file_bytes, compression=self.layout.compression)
            if self.vacuumed_ms is None or self.now_ms() - self.vacuumed_ms >= VACUUM_MS:
                vacuum(self.table)
                self.vacuumed_ms = self.now_ms()
        except TableChanged:
            pass  # another driver compacts the table right now; the next time will do

    def _add_snapshot(self) -> None:
        try:
            self.table.add_snapshot()
        except TooManyFiles:
            pass  # batches keep their manifests until the table is compacted: only slower

    def _manifest(self, session: SparkSession, number: int, ranges: list[Range]) -> BatchManifest:
        last = self.table.state().last.get(self.id)
        if last is not None and number <= last.batch:  # its files are decided; only its ranges are compared
            return manifest_of(self.id, number, [TaskReport(attempt="", spans=tuple(ranges))])
        parts, copies = _parts(session, self.layout, self.options, ranges), tuple[CopyCount, ...]()
        if self.dedup is not None:
            parts, copies = without_copies(session, self.table, self.layout, self.dedup, parts)
        return manifest_of(self.id, number, parts, copies=copies)


# ---------------------------------------------------------------- in the driver


def _parts(session: SparkSession, layout: Layout, options: SourceOptions, ranges: list[Range]) -> list[TaskReport]:
    """Run the tasks of a batch and return their reports.

    They are plain tasks: a Python function over Arrow would need pandas.
    """
    shares = shares_of(options, ranges)
    if not shares:
        return []
    context = session.sparkContext
    reports = context.parallelize(shares, len(shares)).map(partial(report, layout, options)).collect()
    return [read(TaskReport, task_report.encode(), "a task's report") for task_report in reports]


def shares_of(options: SourceOptions, ranges: list[Range]) -> list[tuple[Range, ...]]:
    """Return the ranges of each task."""
    return plan_partitions(
        ranges,
        cores=cores(),
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
        max_records=options.max_records_per_partition,
    )


def _source(options: Mapping[str, str], use: str) -> SourceOptions:
    source = source_options({**options, "emit": "ranges"}, use)
    if source.tags != "*" or source.sql_filter or source.columns:
        raise UsageError("an ingest takes whole topics: tags, sqlFilter and columns are not allowed")
    return source


def _bounds_behind(spans: Sequence[Range], options: SourceOptions) -> dict[MessageQueue, tuple[int, int]]:
    """Return the bounds of all queues. Raises UsageError for recreated topics, and for queues of the table that do not exist."""
    client, known = client_of(options), {MessageQueue(*queue): end for queue, end in ends(spans).items()}
    bounds = available_bounds(options, client)
    known = {queue: end for queue, end in known.items() if is_wanted(options, queue)}
    check_births(births(spans), creation_times(client, [*known, *bounds]))
    if missing := unread_behind(client, known, bounds):
        what = f"the table cannot continue in all its queues: {'; '.join(missing[:4])}"
        if options.fail_on_data_loss:
            raise UsageError(f"{what}. failOnDataLoss=false continues in the others")
        log.warning("%s, passed over by failOnDataLoss=false", what)
    return bounds


def unread_ranges(state: TableState, options: SourceOptions) -> list[Range]:
    """Return the ranges that the brokers have and the table has not."""
    client, ends_of = client_of(options), ends(state.spans)
    bounds = _bounds_behind(state.spans, options)
    born = creation_times(client, bounds)
    begins, stops = start_offsets(options, client, bounds, "earliest"), end_offsets(options, client, bounds)
    ranges = []
    for queue, first in sorted(begins.items()):
        end = ends_of.get(_key(queue))
        if end is not None and end > bounds[queue][1]:
            raise UsageError(
                f"the table has {queue.topic} {queue.broker_name} queue {queue.queue_id} up to {end}, but the queue ends at "
                f"{bounds[queue][1]}: the topic was created again, or its store lost. Ingest it into another table"
            )
        begin = first if end is None else end
        if begin < stops[queue]:
            ranges.append(Range.of(queue, begin, stops[queue], born))
    return ranges


def first_ranges(ranges: list[Range], limit: int) -> tuple[list[Range], list[Range]]:
    """Return the next batch, of about ``limit`` offsets shared among the queues, and the rest."""
    total = sum(span.count for span in ranges)
    if total <= limit:
        return ranges, []
    now, later = [], []
    for span in ranges:
        middle = span.begin + max(1, span.count * limit // total)
        now.append(replace(span, end=min(middle, span.end)))
        if middle < span.end:
            later.append(replace(span, begin=middle))
    return now, later


def _starting(table: LakeTable, options: SourceOptions) -> str:
    """Return the starting offsets of a stream with a new checkpoint: the table's ends, and the oldest messages of other queues."""
    spans = table.state().spans
    if not spans:
        return "earliest"
    known = ends(spans)
    return json.dumps(nested({queue: known.get(_key(queue), EARLIEST) for queue in _bounds_behind(spans, options)}))


def _key(queue: MessageQueue) -> Queue:
    return queue.topic, queue.broker_name, queue.queue_id
