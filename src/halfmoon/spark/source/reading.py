"""Ranges to rows: what a worker does. A pure function of a partition, so that Spark may run it again anywhere, at any time."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from halfmoon import sql92
from halfmoon.client.ranges import Ranges, Selection, ranges
from halfmoon.errors import NetworkError, NoPermission, NoRoute, TopicNotFound, UsageError
from halfmoon.spark.gc_freeze import spare_imports
from halfmoon.spark.source.files import Files
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.plan import Range
from halfmoon.spark.source.rows import batch_of, schema_of

log = logging.getLogger("halfmoon.spark")

RANGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("beginOffset", pa.int64()),
        ("endOffset", pa.int64()),
    ]
)
"""Rows of ``emit=ranges``: one for each range that a partition has."""


class RangesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, found: Sequence[Range]) -> None:
        super().__init__(None)
        self.ranges = tuple(found)

    def __repr__(self) -> str:
        return f"RangesPartition({'; '.join(map(str, self.ranges))})"


@dataclass(frozen=True)
class Wanted:
    """Which rows and columns a reading gives: Arrow's schema, and what ``tags``, ``keys`` or ``msgId`` must be."""

    schema: pa.Schema
    texts: dict[str, frozenset[str]] = field(default_factory=dict)
    sql: str = ""

    def columns(self) -> list[str]:
        """Return the columns to decode: those of the schema, and behind them what only the filters look at."""
        extra = [*self.texts, *(["properties"] if self.sql else [])]
        return [*self.schema.names, *(name for name in extra if name not in self.schema.names)]

    def selection(self) -> Selection | None:
        """Return what brokers are told, so that they send less; None: nothing. Rows are looked at again when they have come."""
        tags = sorted(self.texts.get("tags", ()))
        if tags and all(tag and tag == tag.strip() and tag != "*" and "||" not in tag for tag in tags):
            return Selection("||".join(tags))
        return Selection(self.sql, "SQL92") if self.sql else None


def client_of(options: SourceOptions) -> Ranges:
    """Return this process's client for these options; made at its first call, and kept."""
    return ranges(
        nameserver=options.endpoints,
        namespace=options.namespace,
        request_timeout_ms=options.request_timeout,
        retries_max=options.retries,
        half_messages=options.half_messages,
    )


def must_be_reachable(options: SourceOptions) -> None:
    """Raise soon where no name server answers, before a query is planned: an address is more often wrong than a server away.

    Raises NoNameServerAnswers. Where one answers, everything later is as patient as the option ``retries`` says.
    """
    asking = ranges(
        nameserver=options.endpoints,
        namespace=options.namespace,
        request_timeout_ms=min(options.request_timeout, FIRST_TIMEOUT_MS),
        retries_max=min(options.retries, FIRST_RETRIES),
    )
    try:
        asking.topics()
    except NetworkError as exc:
        exc.add_note("nothing was read: is the option endpoints right, and is the name server up?")
        raise


FIRST_RETRIES, FIRST_TIMEOUT_MS = 4, 3_000
"""How patiently a batch read asks name servers first: 1.5 s of pauses where a connection is refused."""

_files: dict[tuple[int, str], Files] = {}


def reads_of(options: SourceOptions) -> Ranges | Files:
    """Return who gives the records: the brokers, or the files of one, which this process keeps mapped."""
    client = client_of(options)
    if options.read_from == "master":
        return client
    return _files.setdefault((id(client), options.read_from), Files(client, options.read_from.removeprefix("files:")))


def cores() -> int:
    """Return how many tasks run side by side, as `halfmoon.spark.session` left word; or this machine's cores."""
    word = os.environ.get("PYSPARK_HALFMOON_CORES", "")
    return int(word) if word.isdigit() and int(word) > 0 else len(os.sched_getaffinity(0))


def rows(options: SourceOptions, wanted: Wanted, found: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges as rows, about ``fetchBytes`` of log at a time.

    Raises:
        DataLoss: some of them are gone, unless ``failOnDataLoss=false``; the text says what to do.
        UsageError: the topic is deleted.
        NoPermission: the topic may not be read. NetworkError, NoRoute: brokers or name servers failed too often. A note on the
            error says what to do.
    """
    spare_imports()
    if options.emit == "ranges":
        if found:
            yield range_rows(found)
        return
    source = reads_of(options)
    columns = wanted.columns()
    schema = wanted.schema if columns == wanted.schema.names else schema_of(columns)
    for part in found:
        lost = _Lost(part, options.fail_on_data_loss)
        try:
            for raw in _raw(source, options, wanted, part, lost):
                batch = batch_of(raw, broker=part.broker, begin=part.begin, end=part.end, columns=columns, schema=schema)
                batch = _passing(batch, wanted)
                if batch.num_rows:
                    yield batch
        except TopicNotFound as exc:
            raise UsageError(
                f"topic {part.topic} is not there any more, and {part} is still to be read: is it deleted? Created again, "
                "failOnDataLoss=false goes on with what is in it then; or begin anew with another checkpoint location"
            ) from exc
        except NoPermission as exc:
            exc.add_note(f"{part} may not be read, and nothing is lost by that: let the topic be read (--perm 6), and its broker")
            raise
        except (NetworkError, NoRoute) as exc:
            exc.add_note(
                f"{part} could not be read, and nothing is lost by that: are name server and brokers up? Started again, a stream "
                f"goes on where it stands. Now a task fails after {options.retries} retries; the option retries has it wait longer"
            )
            raise
        lost.done()


def _raw(source: Ranges | Files, options: SourceOptions, wanted: Wanted, part: Range, lost: _Lost) -> Iterator[bytes]:
    asked = (part.broker, part.topic, part.queue, part.begin, part.end, options.fetch_bytes)
    if isinstance(source, Files):
        return source.read(*asked, missing=lost.told)
    return source.read(*asked, missing=lost.told, selection=wanted.selection())


def range_rows(found: Sequence[Range]) -> pa.RecordBatch:
    """Return ranges as rows."""
    columns = zip(*((part.topic, part.broker, part.queue, part.begin, part.end) for part in found))
    return pa.RecordBatch.from_arrays(
        [pa.array(list(values), kind) for values, kind in zip(columns, RANGE_SCHEMA.types)], schema=RANGE_SCHEMA
    )


def _passing(batch: pa.RecordBatch, wanted: Wanted) -> pa.RecordBatch:
    """Return the rows that pass, without the columns that only the filters needed."""
    for name, values in wanted.texts.items():
        mask = pc.is_in(batch.column(name), value_set=pa.array(sorted(values), pa.string()))
        batch = batch.filter(mask)
    if wanted.sql and batch.num_rows:
        test = sql92.compile(wanted.sql)
        blocks = [sql92.stored(dict(pairs)) for pairs in batch.column("properties").to_pylist()]
        batch = batch.take(pa.array(test.matching(blocks), pa.int64()))
    return batch if batch.schema.names == wanted.schema.names else batch.select(wanted.schema.names)


class _Lost:
    """Counts offsets of a range without a message, or makes an error of the first."""

    def __init__(self, part: Range, fail: bool) -> None:
        self._part, self._fail = part, fail
        self.count = 0

    def told(self, begin: int, end: int) -> None:
        """Offsets [begin, end) hold no message."""
        if self._fail:
            raise DataLoss(self._part, begin, end)
        self.count += end - begin

    def done(self) -> None:
        """The range was read."""
        if self.count:
            log.warning("messages lost, passed over by failOnDataLoss=false: range=%s count=%d", self._part, self.count)


class DataLoss(Exception):
    """Messages that a query should read are gone; ``part`` is the range, [begin, end) the first gap in it."""

    def __init__(self, part: Range, begin: int, end: int) -> None:
        super().__init__(
            f"offsets {begin} to {end - 1} of {part} hold no message any more: they expired, the topic was made anew, or a store "
            "was lost. failOnDataLoss=false logs and counts what is gone and goes on; keep messages longer (fileReservedTime) "
            "where queries fall behind"
        )
        self.part, self.begin, self.end = part, begin, end
