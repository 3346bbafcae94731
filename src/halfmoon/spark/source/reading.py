"""Reading of ranges as rows by Spark's workers, and what the planning process asks first. `halfmoon.data.reading` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from halfmoon.client.ranges import Ranges
from halfmoon.data import reading
from halfmoon.data.files import StoreFiles
from halfmoon.data.partitions import ONE_PER_QUEUE, Range
from halfmoon.data.reading import Scan
from halfmoon.errors import NetworkError, NoPermission, NoRoute, TopicNotFound, UsageError
from halfmoon.spark.clients import client_of
from halfmoon.spark.gc_freeze import freeze_imports
from halfmoon.spark.source.options import SourceOptions

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


def record_reader(options: SourceOptions) -> Ranges | StoreFiles:
    """Return the reader of records: from the brokers, or from the files of one, which this process keeps mapped."""
    return reading.record_reader(client_of(options), options.read_from)


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
    for span in ranges:
        with _advice(span, options.retries):
            yield from reading.rows(reader, options, scan, span)


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


def range_rows(ranges: Sequence[Range]) -> pa.RecordBatch:
    """Return ranges as rows."""
    columns = zip(*((span.topic, span.broker, span.queue, span.begin, span.end, span.born) for span in ranges))
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), kind) for values, kind in zip(columns, RANGE_SCHEMA.types)], schema=RANGE_SCHEMA
    )
