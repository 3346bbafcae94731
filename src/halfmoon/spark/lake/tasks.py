"""What runs in Spark's tasks when a topic goes into a table: ranges in, files written, one line of report out.

Nothing here imports a table format, for each worker imports this anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from halfmoon.spark.lake.files import Layout, write
from halfmoon.spark.lake.manifest import Span, span_of, text
from halfmoon.spark.source.options import SourceOptions
from halfmoon.spark.source.plan import Range
from halfmoon.spark.source.reading import DataLoss, reads_of
from halfmoon.spark.source.rows import batch_of, schema_of


def report(layout: Layout, options: SourceOptions, found: Sequence[Range]) -> str:
    """Write the files of some ranges and return the report, a `Part` as JSON."""
    gaps: list[Span] = []
    part = write(layout, messages(options, layout.needed(), found, gaps), [span_of(each) for each in found], gaps)
    return text(part).decode()


def messages(
    options: SourceOptions, columns: tuple[str, ...], found: Iterable[Range], gaps: list[Span]
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of ranges; offsets that are gone raise DataLoss, or go into ``gaps`` with ``failOnDataLoss=false``."""
    source, schema = reads_of(options), schema_of(columns)
    for part in found:

        def gone(begin: int, end: int, part: Range = part) -> None:
            if options.fail_on_data_loss:
                raise DataLoss(part, begin, end)
            gaps.append(span_of(replace(part, begin=begin, end=end)))

        for raw in source.read(part.broker, part.topic, part.queue, part.begin, part.end, options.fetch_bytes, missing=gone):
            yield batch_of(raw, broker=part.broker, begin=part.begin, end=part.end, columns=columns, schema=schema)
