"""Reading of ranges as rows by workers: a pure function of a partition, which Spark may run again anywhere, at any time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from halfmoon import sql92
from halfmoon.client.ranges import Ranges, Selection
from halfmoon.errors import NetworkError, NoPermission, NoRoute, TopicNotFound, UsageError
from halfmoon.spark.clients import client_of
from halfmoon.spark.gc_freeze import freeze_imports
from halfmoon.spark.source.files import Missing, StoreFiles
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.partitions import ONE_PER_QUEUE, Range
from halfmoon.spark.source.rows import batch_of, schema_of

log = logging.getLogger("halfmoon.spark")

RANGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("beginOffset", pa.int64()),
        ("endOffset", pa.int64()),
        ("topicBirthMs", pa.int64()),
    ]
)
"""Columns of ``emit=ranges``, which has one row for each `Range`."""


class RangesPartition(InputPartition):
    """Ranges that one task reads."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)

    def __repr__(self) -> str:
        return f"RangesPartition({'; '.join(map(str, self.ranges))})"


@dataclass(frozen=True)
class Scan:
    """Columns and rows to read: Arrow's schema, the values of ``tags``, ``keys`` or ``msgId`` that pass, SQL92."""

    schema: pa.Schema
    allowed: dict[str, frozenset[str]] = field(default_factory=dict)
    sql: str = ""

    def columns(self) -> list[str]:
        """Return the columns to decode: those of the schema, then those that only the filters need."""
        extra = [*self.allowed, *(["properties"] if self.sql else [])]
        return [*self.schema.names, *(name for name in extra if name not in self.schema.names)]

    def selection(self) -> Selection | None:
        """Return the filter for brokers, so that they send less; None: none. Rows are filtered again after that."""
        if tags := self.allowed.get("tags"):
            return Selection("||".join(sorted(tags)))
        return Selection(self.sql, "SQL92") if self.sql else None


def check_reachable(options: SourceOptions) -> None:
    """Raise NoNameServerAnswers soon, before a query is planned: a wrong address is more likely than a long outage.

    Where a name server answers, all later requests are as patient as the option ``retries`` says.
    """
    patience = {
        "request_timeout_ms": min(options.request_timeout, FIRST_TIMEOUT_MS),
        "retries_max": min(options.retries, FIRST_RETRIES),
    }
    try:
        client_of(options, **patience).topics()
    except NetworkError as exc:
        exc.add_note("nothing was read: is the option endpoints right, and is the name server up?")
        raise


FIRST_RETRIES, FIRST_TIMEOUT_MS = 4, 3_000
"""Patience of the first request to name servers: 1.5 s of pauses where a connection is refused."""

_files: dict[tuple[int, str], StoreFiles] = {}


def record_reader(options: SourceOptions) -> Ranges | StoreFiles:
    """Return the reader of records: from the brokers, or from the files of one, which this process keeps mapped."""
    client = client_of(options)
    if options.read_from == "master":
        return client
    return _files.setdefault((id(client), options.read_from), StoreFiles(client, options.read_from.removeprefix("files:")))


def cores() -> int:
    """Return the number of parallel tasks, as `halfmoon.spark.session` set it for Spark on this machine; or `ONE_PER_QUEUE`.

    The planning process may run anywhere (``spark-submit``), so its own cores are not those of the cluster.
    """
    count = os.environ.get("PYSPARK_HALFMOON_CORES", "")
    return int(count) if count.isdigit() and int(count) > 0 else ONE_PER_QUEUE


def rows(options: SourceOptions, scan: Scan, ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges as rows, about ``fetchBytes`` of log at a time.

    Raises:
        DataLoss: some of them are gone, unless ``failOnDataLoss=false``; the text says what to do.
        UsageError: the topic is deleted.
        NoPermission: the topic may not be read. NetworkError, NoRoute: brokers or name servers failed too often. A note on the
            error says what to do.
    """
    freeze_imports()
    if options.emit == "ranges":
        if ranges:
            yield range_rows(ranges)
        return
    reader = record_reader(options)
    columns = scan.columns()
    schema = scan.schema if columns == scan.schema.names else schema_of(columns)
    for span in ranges:
        gaps = _Gaps(span, options.fail_on_data_loss)
        with _advice(span, options.retries):
            for raw in records_of(reader, options, span, gaps.add, scan.selection()):
                batch = batch_of(raw, broker=span.broker, begin=span.begin, end=span.end, columns=columns, schema=schema)
                batch = _passing(batch, scan)
                if batch.num_rows:
                    yield batch
        gaps.report()


@contextmanager
def _advice(span: Range, retries: int) -> Iterator[None]:
    """Add advice to the errors of reading a range."""
    try:
        yield
    except TopicNotFound as exc:
        raise UsageError(
            f"topic {span.topic} is not there any more, and {span} is still to be read: is it deleted? Created again, "
            "failOnDataLoss=false continues with the new topic; or start over with another checkpoint location"
        ) from exc
    except NoPermission as exc:
        exc.add_note(f"{span} may not be read; nothing is lost. Make the topic (--perm 6) and its broker readable")
        raise
    except (NetworkError, NoRoute) as exc:
        exc.add_note(
            f"{span} could not be read; nothing is lost: are name server and brokers up? Started again, a stream "
            f"continues where it was. Now a task fails after {retries} retries; the option retries makes it wait longer"
        )
        raise


def records_of(
    reader: Ranges | StoreFiles, options: SourceOptions, span: Range, missing: Missing, selection: Selection | None = None
) -> Iterator[bytes]:
    """Yield the stored records of a range; ``missing`` is called for lost offsets: all of them if the topic was created again."""
    request = (span.broker, span.topic, span.queue, span.begin, span.end, options.fetch_bytes)
    if isinstance(reader, StoreFiles):
        return reader.read(*request, missing=missing)
    return reader.read(*request, missing=missing, selection=selection, born=span.born)


def range_rows(ranges: Sequence[Range]) -> pa.RecordBatch:
    """Return ranges as rows."""
    columns = zip(*((span.topic, span.broker, span.queue, span.begin, span.end, span.born) for span in ranges))
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), kind) for values, kind in zip(columns, RANGE_SCHEMA.types)], schema=RANGE_SCHEMA
    )


def _passing(batch: pa.RecordBatch, scan: Scan) -> pa.RecordBatch:
    """Return the rows that pass, without the columns that only the filters needed."""
    for name, values in scan.allowed.items():
        mask = pc.is_in(batch.column(name), value_set=pa.array(sorted(values), pa.string()))
        batch = batch.filter(mask)
    if scan.sql and batch.num_rows:
        test = sql92.compile(scan.sql)
        blocks = [sql92.stored(dict(pairs)) for pairs in batch.column("properties").to_pylist()]
        batch = batch.take(pa.array(test.matching(blocks), pa.int64()))
    return batch if batch.schema.names == scan.schema.names else batch.select(scan.schema.names)


class _Gaps:
    """Counts the offsets of a range without a message, or makes an error of the first."""

    def __init__(self, span: Range, fail: bool) -> None:
        self._span, self._fail = span, fail
        self.count = 0

    def add(self, begin: int, end: int) -> None:
        """Offsets [begin, end) hold no message."""
        if self._fail:
            raise DataLoss(self._span, begin, end)
        self.count += end - begin

    def report(self) -> None:
        """Log how many there were, now that the range is read."""
        if self.count:
            log.warning("messages lost, passed over by failOnDataLoss=false: range=%s count=%d", self._span, self.count)


class DataLoss(Exception):
    """Messages that a query should read are gone; ``span`` is the range, [begin, end) the first gap in it."""

    def __init__(self, span: Range, begin: int, end: int) -> None:
        super().__init__(
            f"offsets {begin} to {end - 1} of {span} hold no message any more: they expired, the topic was created again or "
            "lost queues, or a store was lost. failOnDataLoss=false logs and counts the lost messages and continues; keep messages "
            "longer (fileReservedTime) where queries fall behind"
        )
        self.span, self.begin, self.end = span, begin, end
