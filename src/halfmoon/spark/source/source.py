"""Data source ``halfmoon`` of ``spark.read.format("halfmoon")`` and ``readStream``, and its batch reader.

Follows the data source API of PySpark 4.2 and 4.3. `halfmoon.spark.source.stream` reads streams.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from halfmoon import sql92
from halfmoon.data.plans import planned_ranges, shares_of
from halfmoon.data.reading import Scan
from halfmoon.data.rows import COLUMNS, schema_of
from halfmoon.errors import UsageError
from halfmoon.model import subscription
from halfmoon.spark.clients import client_of
from halfmoon.spark.sink.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from halfmoon.spark.source.options import SourceOptions, source_options
from halfmoon.spark.source.reading import RANGE_SCHEMA, RangesPartition, check_reachable, cores, rows
from halfmoon.spark.source.stream import StreamReader


class HalfmoonSource(DataSource):
    """Data source of topics, to read and to write. See `halfmoon.spark.source.options` and `halfmoon.spark.sink.options`."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "halfmoon"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # the options may hold secrets

    def schema(self) -> StructType:
        """Return the columns for the options."""
        return from_arrow_schema(arrow_schema(_any_use(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        options = source_options(self.options, "batch")
        return BatchReader(options, scan_of(options, schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream."""
        options = source_options(self.options, "stream")
        return StreamReader(options, scan_of(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the sink of a DataFrame."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the sink of a stream."""
        return stream_writer(self.options, schema, overwrite)


class RocketmqSource(HalfmoonSource):
    """Data source with the name ``rocketmq``, which `halfmoon.spark.register` adds to a session."""

    @classmethod
    def name(cls) -> str:
        """Return the short name."""
        return "rocketmq"


def _any_use(given: Mapping[str, str]) -> SourceOptions:
    """Return the options of a batch or a stream, where it is not known yet which of them it is."""
    try:
        return source_options(given, "batch")
    except UsageError as batch:
        try:
            return source_options(given, "stream")
        except UsageError as stream:
            only = "is for a stream only" in str(batch) or "startingOffsets=latest" in str(batch)
            raise (stream if only else batch) from None


def arrow_schema(options: SourceOptions) -> pa.Schema:
    """Return the columns for the options: all but ``properties``, or those of ``columns`` in their order."""
    if options.emit == "ranges":
        return RANGE_SCHEMA
    if options.columns:
        return schema_of(options.columns)
    return schema_of([name for name in COLUMNS if name != "properties" or options.include_properties])


def scan_of(options: SourceOptions, schema: StructType) -> Scan:
    """Return the scan for a schema of the user or the options. Raises UsageError for other types than the source's."""
    given = to_arrow_schema(schema, timezone="UTC")
    supported = RANGE_SCHEMA if options.emit == "ranges" else schema_of(given.names)
    if options.emit == "ranges" and given.names != supported.names:
        raise UsageError(f"emit=ranges has the columns {', '.join(supported.names)}")
    for field, asked in zip(supported, given):
        if field.type != asked.type:
            raise UsageError(f"column {field.name} is {field.type}, and not {asked.type}; cast it behind the source")
    tags = subscription("any", options.tags).tags  # by the one parser of all clients
    allowed = {"tags": tags} if tags else {}
    if options.sql_filter:
        sql92.compile(options.sql_filter)  # a wrong expression is refused here, and not first in a task
    return Scan(given, allowed, options.sql_filter)


class BatchReader(DataSourceReader):
    """Reader of the messages that exist when the query is planned.

    Takes no filters of the query (``pushFilters``): Spark keeps one reader a frame, so two scans of a frame in one query would both
    use the last filters. Tags, SQL92, offsets and times are options, which hold for all of a frame.
    """

    def __init__(self, options: SourceOptions, scan: Scan) -> None:
        self._options, self._scan = options, scan

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the brokers for the bounds of all queues and plan the partitions between them."""
        check_reachable(self._options)
        options, client = self._options, client_of(self._options)
        shares = shares_of(
            planned_ranges(options, client),
            client,
            cores=cores(),
            min_partitions=options.min_partitions,
            max_partitions=options.max_partitions,
            max_records=options.max_records_per_partition,
        )
        return [RangesPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; without partitions, Spark asks once with none."""
        ranges = partition.ranges if isinstance(partition, RangesPartition) else ()
        return rows(self._options, self._scan, ranges)
