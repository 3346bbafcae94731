"""Topic to table on the fast path: tasks read ranges, decode and write Parquet themselves, and hand back a report of a few lines.

`ingest` needs no checkpoint: the table knows how far it goes, and the next batch begins there. `ingest_stream` is a streaming
query, whose checkpoint and the table keep watch over each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from halfmoon.errors import UsageError
from halfmoon.model import MessageQueue
from halfmoon.spark.lake.arrivals import Dedup, without_copies
from halfmoon.spark.lake.files import Layout
from halfmoon.spark.lake.ledger import TableChanged, now_ms
from halfmoon.spark.lake.maintenance import compact, vacuum
from halfmoon.spark.lake.manifest import Copies, Manifest, Part, Queue, TooManyFiles, check_id, ends, manifest_of, read, span_of
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.lake.tasks import report
from halfmoon.spark.source import positions
from halfmoon.spark.source.options import SourceOptions, source_options
from halfmoon.spark.source.plan import Range, plan
from halfmoon.spark.source.reading import client_of, cores

BATCH_OFFSETS = 4_000_000
"""Offsets of one batch of `ingest`: seconds of work, so that a kill costs seconds."""


FOLD_EVERY = 500
"""Batches after which a table's record becomes one file, compacted or not: each batch reads all that came after the last time."""

VACUUM_MS = 3_600_000
"""How often a stream that keeps its table up looks for files to remove, at most: a look reads the table's whole history."""


class Ingested(NamedTuple):
    """What an ingest put into a table; ``dropped`` rows were left out as copies of others."""

    batches: int
    rows: int
    refused: int
    gaps: int
    dropped: int = 0

    def plus(self, manifest: Manifest) -> Ingested:
        """Return the sums with one more batch."""
        return Ingested(
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
    progress: Callable[[Manifest], object] | None = None,
) -> Ingested:
    """Put what topics hold now into a table, from where the table ends, batch after batch; return what came in.

    ``options`` are those of the source. Only new queues begin where they say. Killed at any point, a further run goes on and
    nothing is twice in the table. Two runs at once with the same ``id`` do no harm: one of them may end with an error. ``dedup``:
    copies of messages are left out. ``compact_every``: after so many batches small files are joined, and what nobody needs any more
    is removed, as `upkeep.vacuum` has it; 0: never.

    Raises:
        UsageError: options or table do not fit. DataLoss: messages are gone, unless ``failOnDataLoss=false``.
    """
    found = _source(options, "batch")
    filling = _Filling(table, layout, found, check_id(id), dedup, compact_every, progress)
    filling.begin()
    state = table.state()
    number = state.last[id].batch + 1 if id in state.last else 0  # of the same look as where the batches begin
    todo = _todo(ends(state.spans), found)
    done = Ingested(0, 0, 0, 0)
    while todo:
        now, todo = _cut(todo, batch_offsets)
        manifest = filling.put(session, number, now)
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
    progress: Callable[[Manifest], object] | None = None,
) -> StreamingQuery:
    """Start a streaming query that fills a table, one manifest a batch; return it.

    A batch that Spark runs again after a crash is in the table once. A checkpoint that is not the one that filled the table is an
    error of its first batch: so is a new one beside a table that a stream of this ``id`` filled before. Where no stream of this
    ``id`` did, a query with a new checkpoint begins where the table ends, unless the options say otherwise.
    ``dedup`` and ``compact_every`` are those of `ingest`.
    """
    found = _source(options, "stream")
    filling = _Filling(table, layout, found, check_id(id), dedup, compact_every, progress)
    filling.begin()
    given = {name: value for name, value in options.items() if name.lower() != "emit"}
    if found.starting_offsets is None and found.starting_timestamp is None:
        given["startingOffsets"] = _starting(table, found)
    frame = session.readStream.format("halfmoon").options(**given, emit="ranges").load()
    trigger = {"availableNow": True} if available_now else {"processingTime": every}
    return (
        frame.writeStream.foreachBatch(filling.put_frame)
        .option("checkpointLocation", str(checkpoint))
        .queryName(f"{id}-{table.root.name}")
        .trigger(**trigger)
        .start()
    )


@dataclass
class _Filling:
    """How one driver fills a table."""

    table: LakeTable
    layout: Layout
    options: SourceOptions
    id: str
    dedup: Dedup | None
    compact_every: int
    progress: Callable[[Manifest], object] | None
    vacuumed_ms: int | None = None

    def begin(self) -> None:
        """Make the table, and refuse what cannot be."""
        if self.compact_every < 0:
            raise UsageError(f"compact_every={self.compact_every}: a number of batches, or 0 for never")
        if self.dedup is not None:
            self.dedup.check(self.layout)
        self.table.create(self.layout)

    def put_frame(self, frame: DataFrame, number: int) -> None:
        """Run one batch of a stream."""
        self.put(frame.sparkSession, number, [Range(*row) for row in frame.collect()])

    def put(self, session: SparkSession, number: int, ranges: list[Range]) -> Manifest | None:
        """Run a batch and return what is in the table of it; None: it is long in."""
        manifest = self.table.publish(self._manifest(session, number, ranges))
        if manifest is not None and self.progress is not None:
            self.progress(manifest)
        if self.compact_every and (number + 1) % self.compact_every == 0:
            self._keep_up(session)
        elif (number + 1) % FOLD_EVERY == 0:
            self._fold()
        return manifest

    def _keep_up(self, session: SparkSession) -> None:
        try:
            compact(session, self.table, file_bytes=self.layout.file_bytes, compression=self.layout.compression)
            if self.vacuumed_ms is None or now_ms() - self.vacuumed_ms >= VACUUM_MS:
                vacuum(self.table)
                self.vacuumed_ms = now_ms()
        except TableChanged:
            pass  # somebody else keeps the table up just now; the next time will do

    def _fold(self) -> None:
        try:
            self.table.fold()
        except TooManyFiles:
            pass  # each batch keeps its manifest until the table is compacted: slower, and nothing else

    def _manifest(self, session: SparkSession, number: int, ranges: list[Range]) -> Manifest:
        last = self.table.state().last.get(self.id)
        if last is not None and number <= last.batch:  # its files are decided; only whether the ranges are the same is to be seen
            return manifest_of(self.id, number, [Part(attempt="", spans=tuple(map(span_of, ranges)))])
        parts, copies = _parts(session, self.layout, self.options, ranges), tuple[Copies, ...]()
        if self.dedup is not None:
            parts, copies = without_copies(session, self.table, self.layout, self.dedup, parts)
        return manifest_of(self.id, number, parts, copies=copies)


# ---------------------------------------------------------------- in the driver


def _parts(session: SparkSession, layout: Layout, options: SourceOptions, found: list[Range]) -> list[Part]:
    """Run the tasks of a batch and return their reports.

    As plain tasks: a Python function over Arrow would ask for pandas, of which nothing is used here.
    """
    shares = _shares(options, found)
    if not shares:
        return []
    context = session.sparkContext
    reports = context.parallelize(shares, len(shares)).map(partial(report, layout, options)).collect()
    return [read(Part, each.encode(), "a task's report") for each in reports]


def _shares(options: SourceOptions, found: list[Range]) -> list[tuple[Range, ...]]:
    return plan(
        found,
        cores=cores(),
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
        max_records=options.max_records_per_partition,
    )


def _source(options: Mapping[str, str], use: str) -> SourceOptions:
    found = source_options({**options, "emit": "ranges"}, use)
    if found.tags != "*" or found.sql_filter or found.columns:
        raise UsageError("an ingest takes whole topics: leave tags, sqlFilter and columns to those who read the table")
    return found


def _todo(known: Mapping[Queue, int], options: SourceOptions) -> list[Range]:
    """Return what the brokers hold beyond the table."""
    client = client_of(options)
    at = positions.bounds(options, client)
    begins, stops = positions.starts(options, client, at, "earliest"), positions.stops(options, client, at)
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


def _key(queue: MessageQueue) -> Queue:
    return queue.topic, queue.broker_name, queue.queue_id
