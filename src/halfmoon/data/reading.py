"""Reading of a range as rows: a pure function of the range, which may be run again anywhere, at any time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from halfmoon import sql92
from halfmoon.client.ranges import Ranges, Selection
from halfmoon.data.files import Missing, StoreFiles
from halfmoon.data.options import ReadOptions
from halfmoon.data.partitions import Range
from halfmoon.data.rows import batch_of, schema_of

log = logging.getLogger("halfmoon.data")


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


_files: dict[tuple[int, str], StoreFiles] = {}


def record_reader(client: Ranges, read_from: str) -> Ranges | StoreFiles:
    """Return the reader of records: from the brokers, or from the files of one, which this process keeps mapped.

    ``read_from`` is ``master``, or ``files:`` and the absolute path of a store.
    """
    if read_from == "master":
        return client
    return _files.setdefault((id(client), read_from), StoreFiles(client, read_from.removeprefix("files:")))


def rows(reader: Ranges | StoreFiles, options: ReadOptions, scan: Scan, span: Range) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range as rows, about ``fetch_bytes`` of log at a time.

    Raises:
        DataLoss: some of them are gone, unless the options pass over lost messages; the text says what to do.
        TopicNotFound: the topic is deleted.
        NoPermission: the topic may not be read. NetworkError, NoRoute: brokers or name servers failed too often.
    """
    columns = scan.columns()
    schema = scan.schema if columns == scan.schema.names else schema_of(columns)
    gaps = Gaps(span, options)
    for raw in records_of(reader, options, span, gaps.add, scan.selection()):
        batch = batch_of(raw, broker=span.broker, begin=span.begin, end=span.end, columns=columns, schema=schema)
        batch = _passing(batch, scan)
        if batch.num_rows:
            yield batch
    gaps.report()


def records_of(
    reader: Ranges | StoreFiles, options: ReadOptions, span: Range, missing: Missing, selection: Selection | None = None
) -> Iterator[bytes]:
    """Yield the stored records of a range; ``missing`` is called for lost offsets: all of them if the topic was created again."""
    request = (span.broker, span.topic, span.queue, span.begin, span.end, options.fetch_bytes)
    if isinstance(reader, StoreFiles):
        return reader.read(*request, missing=missing)
    return reader.read(*request, missing=missing, selection=selection, born=span.born)


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


class Gaps:
    """Counts the offsets of a range without a message, or makes an error of the first."""

    def __init__(self, span: Range, options: ReadOptions) -> None:
        self._span, self._options = span, options
        self.count = 0

    def add(self, begin: int, end: int) -> None:
        """Offsets [begin, end) hold no message."""
        if self._options.fail_on_data_loss:
            raise DataLoss(self._span, begin, end, self._options.loss_option)
        self.count += end - begin

    def report(self) -> None:
        """Log how many there were, now that the range is read."""
        if self.count:
            log.warning("messages lost, passed over by %s: range=%s count=%d", self._options.loss_option, self._span, self.count)


class DataLoss(Exception):
    """Messages that a query should read are gone; ``span`` is the range, [begin, end) the first gap in it.

    ``loss_option`` is the option that passes over them, as users write it.
    """

    def __init__(self, span: Range, begin: int, end: int, loss_option: str) -> None:
        super().__init__(
            f"offsets {begin} to {end - 1} of {span} hold no message any more: they expired, the topic was created again or "
            f"lost queues, or a store was lost. {loss_option} logs and counts the lost messages and continues; keep messages "
            "longer (fileReservedTime) where queries fall behind"
        )
        self.span, self.begin, self.end = span, begin, end
