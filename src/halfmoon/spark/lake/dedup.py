"""Removal of duplicates from a batch before it enters a table. They are counted.

Of copies within a batch the first offset stays; a copy of a row in the table does not. Not compared are rows that were stored more
than some hours before the first row of the batch, rows that another driver adds at the same time, and quarantine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from halfmoon.errors import UsageError
from halfmoon.spark.lake.copies import COPIES, PLACE, check_copies, copies, counted, named, places_by_file
from halfmoon.spark.lake.files import PARTITIONS, Layout
from halfmoon.spark.lake.manifest import CopyCount, DataFile, TaskReport
from halfmoon.spark.lake.rewrite import Rewrite, rewrite_files
from halfmoon.spark.lake.table import LakeTable, frame_of

HOURS_MAX = 24 * 3660


@dataclass(frozen=True, kw_only=True)
class Dedup:
    """Removal of duplicates ``by`` msgId or keys, of rows stored up to ``hours`` before the batch; 0: within batches alone."""

    by: str
    hours: int = 24

    def check(self, layout: Layout) -> None:
        """Raise UsageError unless a layout has the columns."""
        check_copies(self.by, layout.columns)
        if not 0 <= self.hours <= HOURS_MAX:
            raise UsageError(f"copies are looked for among 0 to {HOURS_MAX} hours, not {self.hours}")


def without_copies(
    session: SparkSession, table: LakeTable, layout: Layout, dedup: Dedup, reports: Sequence[TaskReport]
) -> tuple[list[TaskReport], tuple[CopyCount, ...]]:
    """Return the reports of tasks without the copies, and the number of copies. Only files with copies are rewritten.

    Costs a Spark job that reads ids (or keys) of the batch and of the table's last ``hours``. The driver holds the offsets of the
    copies, a few dozen bytes each.
    """
    files = {file.path.rpartition("/")[2]: file for report in reports for file in report.files}
    first = _first_stored(table, files.values())
    if first is None:
        return list(reports), ()
    names = list(dict.fromkeys([*COPIES[dedup.by], *PLACE, "storeTimestamp"]))
    paths = [str(table.root / file.path) for file in files.values()]
    batch = frame_of(session, paths, from_arrow_schema(pa.schema([layout.table_schema().field(name) for name in names])))
    batch = batch.select(*names).withColumn("_file", F.input_file_name())
    rows = copies(batch, dedup.by).select("_file", *PLACE)
    if dedup.hours and table.files():
        stored = _since(table, table.read(session), first - timedelta(hours=dedup.hours), layout.partition)
        ids = list(COPIES[dedup.by])
        rows = rows.union(batch.where(named(dedup.by)).join(stored.select(*ids), ids, "left_semi").select("_file", *PLACE))
    places = places_by_file(rows)
    works = [Rewrite((files[name].path,), offsets, files[name].partition) for name, offsets in sorted(places.items())]
    rewritten = (
        dict(zip(sorted(places), rewrite_files(session, table.root, works, layout.compression), strict=True)) if works else {}
    )
    for name in rewritten:
        (table.root / files[name].path).unlink()  # no manifest names it yet, and none will
    return [_with_files(report, rewritten) for report in reports], counted(places)


def _with_files(report: TaskReport, rewritten: dict[str, DataFile]) -> TaskReport:
    """Return a report with the rewritten files; files without rows are left out."""
    files = [rewritten.get(file.path.rpartition("/")[2], file) for file in report.files]
    return msgspec.structs.replace(report, files=tuple(file for file in files if file.rows))


def _first_stored(table: LakeTable, files: Iterable[DataFile]) -> datetime | None:
    """Return when the first row of some files was stored, by the statistics of their row groups; None without any row."""
    times: list[datetime] = []
    for file in files:
        groups = pq.read_metadata(table.root / file.path)
        column = groups.schema.names.index("storeTimestamp")
        for number in range(groups.num_row_groups):
            times.append(groups.row_group(number).column(column).statistics.min.astimezone(UTC))
    return min(times, default=None)


def _since(table: LakeTable, frame: DataFrame, begin: datetime, partition: str) -> DataFrame:
    """Return the rows stored since a time. Spark passes over older directories and row groups."""
    if partition and table.kind != "iceberg":
        frame = frame.where(F.col(partition) >= begin.strftime(PARTITIONS[partition]))
    return frame.where(F.col("storeTimestamp") >= F.lit(begin))
