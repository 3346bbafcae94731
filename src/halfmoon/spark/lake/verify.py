"""Comparison of a table with its topic: missing and duplicate offsets, counts and checksums, queue by queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from halfmoon.data.partitions import Range
from halfmoon.spark.lake.copies import PLACE
from halfmoon.spark.lake.manifest import Queue, merge_spans
from halfmoon.spark.lake.table import LakeTable


@dataclass(frozen=True, kw_only=True)
class QueueVerdict:
    """Verdict on one queue. Offsets are [begin, end); ``wrong`` lists the differences.

    ``rows`` are in the table, ``refused`` in quarantine, ``dropped`` were left out as copies of others. ``topic_checksum`` is that
    of the messages of the topic that the table should have.
    """

    queue: Queue
    begin: int
    end: int
    rows: int
    refused: int
    dropped: int
    table_checksum: int
    topic_checksum: int | None
    wrong: tuple[str, ...]


def verify(session: SparkSession, table: LakeTable, source: DataFrame | None = None) -> list[QueueVerdict]:
    """Return a verdict for each queue that the table covers.

    Without ``source`` the table is compared with its own manifests: every offset of their ranges once, but for known gaps and as
    many as were left out as copies. ``source`` are the topic's messages, with the columns topic, brokerName, queueId, queueOffset
    and body: then count and checksum are compared, too; the checksum of those messages whose offset the table has, where copies
    were left out. The checksum is a sum over rows, so order plays no part in it.
    """
    table.recover()
    state = table.state()
    spans: dict[Queue, list[Range]] = {}
    for span in state.spans:
        spans.setdefault((span.topic, span.broker, span.queue), []).append(span)
    lost: dict[Queue, int] = {}
    for gap in state.gaps:
        key = (gap.topic, gap.broker, gap.queue)
        lost[key] = lost.get(key, 0) + gap.end - gap.begin
    rows, refused = table.read(session), table.quarantine(session)
    with_body = source is not None and "body" in rows.columns
    in_table, in_quarantine = _sums(rows, with_body=with_body), _sums(refused, with_body=with_body)
    dropped = table.copies()
    in_topic, kept_of_topic = None, None
    if source is not None:
        messages = _within(source, spans)
        in_topic = kept_of_topic = _sums(messages, with_body=with_body)
        if any(dropped.values()):
            places = rows.select(*PLACE).unionByName(refused.select(*PLACE))
            kept_of_topic = _sums(messages.join(places, list(PLACE), "left_semi"), with_body=with_body)
    return [
        verdict(
            queue,
            queue_spans,
            in_table.get(queue, NO_ROWS),
            in_quarantine.get(queue, NO_ROWS),
            lost=lost.get(queue, 0),
            dropped=dropped.get(queue, 0),
            there=None if in_topic is None else in_topic.get(queue, NO_ROWS),
            same=None if kept_of_topic is None else kept_of_topic.get(queue, NO_ROWS),
        )
        for queue, queue_spans in sorted(spans.items())
    ]


@dataclass(frozen=True)
class QueueSums:
    """Sums over the rows of a queue: rows, different offsets, first and last offset, checksum."""

    count: int
    offsets: int
    low: int
    high: int
    checksum: int


NO_ROWS = QueueSums(0, 0, 0, 0, 0)


def _sums(frame: DataFrame, *, with_body: bool) -> dict[Queue, QueueSums]:
    """Return count, different offsets, first and last offset and checksum of each queue."""
    grouped = frame.groupBy("topic", "brokerName", "queueId").agg(
        F.count("*"), F.countDistinct("queueOffset"), F.min("queueOffset"), F.max("queueOffset"), _checksum(with_body)
    )
    return {(row[0], row[1], row[2]): QueueSums(row[3], row[4], row[5], row[6], int(row[7])) for row in grouped.collect()}


def _checksum(with_body: bool) -> Column:
    offset = F.col("queueOffset").cast("string")
    text = F.concat_ws(":", offset, F.crc32("body").cast("string")) if with_body else offset
    return F.sum(F.crc32(text.cast("binary")).cast("decimal(38,0)"))


def _within(source: DataFrame, spans: Mapping[Queue, Iterable[Range]]) -> DataFrame:
    """Return the messages of the topic that the table should have."""
    inside = F.lit(False)
    for queue_spans in spans.values():
        for span in merge_spans(queue_spans, overlaps=True):
            queue = (F.col("topic") == span.topic) & (F.col("brokerName") == span.broker) & (F.col("queueId") == span.queue)
            inside = inside | (queue & (F.col("queueOffset") >= span.begin) & (F.col("queueOffset") < span.end))
    return source.where(inside)


def verdict(
    queue: Queue,
    spans: list[Range],
    rows: QueueSums,
    refused: QueueSums,
    *,
    lost: int = 0,
    dropped: int = 0,
    there: QueueSums | None = None,
    same: QueueSums | None = None,
) -> QueueVerdict:
    """Return the verdict on one queue from the spans of its batches, and the sums over the table and its quarantine.

    ``lost`` offsets were gone when they were read, ``dropped`` rows were left out as copies.
    ``there`` and ``same`` are sums over the topic: of the ranges, and of the offsets that the table has.
    """
    ordered = sorted(spans)
    wrong = [*_overlaps_and_holes(ordered), *_wrong_rows(ordered, rows, refused, lost + dropped)]
    count, checksum = rows.count + refused.count, rows.checksum + refused.checksum
    if there is not None and same is not None:
        expected = there.count - dropped
        if expected != count or same.checksum != checksum:
            topic, without = f"{expected} ({same.checksum})", f" without {dropped} copies" if dropped else ""
            wrong.append(f"messages (and their checksum): {topic} in the topic{without}, {count} ({checksum}) in the table")
    return QueueVerdict(
        queue=queue,
        begin=ordered[0].begin,
        end=max(span.end for span in ordered),
        rows=rows.count,
        refused=refused.count,
        dropped=dropped,
        table_checksum=checksum,
        topic_checksum=None if same is None else same.checksum,
        wrong=tuple(wrong),
    )


def _overlaps_and_holes(spans: list[Range]) -> Iterator[str]:
    for left, right in pairwise(spans):
        if right.begin < left.end:
            yield f"offsets {right.begin} to {min(left.end, right.end) - 1} are in two batches"
        elif right.begin > left.end:
            yield f"offsets {left.end} to {right.begin - 1} are in no batch"


def _wrong_rows(spans: list[Range], rows: QueueSums, refused: QueueSums, left_out: int) -> Iterator[str]:
    """Yield duplicate and missing rows, and rows without a batch. ``left_out`` offsets are known to have no row."""
    if duplicates := rows.count - rows.offsets:
        yield f"{duplicates} rows have an offset that another row has"
    missing = _covered(spans) - left_out - rows.offsets - refused.offsets
    if missing > 0:
        yield f"{missing} rows of the batches are missing"
    if missing < 0:
        yield f"{-missing} rows are in no batch"


def _covered(spans: Iterable[Range]) -> int:
    """Return the number of offsets that sorted spans of one queue cover, each once."""
    count, reached = 0, 0
    for span in spans:
        count += max(0, span.end - max(span.begin, reached))
        reached = max(reached, span.end)
    return count
