"""Copies among rows, by message id or keys."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from halfmoon.errors import UsageError
from halfmoon.spark.lake.manifest import CopyCount, Queue, sum_copies

COPIES = {"msgId": ("topic", "msgId"), "keys": ("topic", "keys")}
"""Columns that copies of one message have in common."""

PLACE = ("topic", "brokerName", "queueId", "queueOffset")
"""Columns that identify a message."""

Offsets = dict[Queue, NDArray[np.int64]]
"""Queue offsets of rows, by queue."""


def check_copies(by: str, columns: Collection[str]) -> None:
    """Raise UsageError for an unknown criterion, or one whose columns are missing."""
    if by not in COPIES:
        raise UsageError(f"dedup={by[:50]!r} is unknown; there are {', '.join(COPIES)}")
    missing = [name for name in (*COPIES[by], *PLACE[1:], "storeTimestamp") if name not in columns]
    if missing:
        raise UsageError(f"dedup={by} needs the columns {', '.join(missing)}, which the table leaves out")


def first_of_copies(frame: DataFrame, by: str) -> DataFrame:
    """Return rows without copies: of rows with the same id or keys the one with the first offset. Rows without them are kept.

    Offsets of different queues are ordered by the time of storing, then by broker and queue.
    """
    return _numbered(frame, by).where((F.col("_copy") == 1) | ~named(by)).drop("_copy")


def copies(frame: DataFrame, by: str) -> DataFrame:
    """Return the rows that `first_of_copies` leaves out."""
    return _numbered(frame, by).where((F.col("_copy") > 1) & named(by)).drop("_copy")


def named(by: str) -> Column:
    """Return a column: whether a row has an id or keys."""
    return F.col(by).isNotNull() & (F.col(by) != "")


def places_by_file(rows: DataFrame) -> dict[str, Offsets]:
    """Return the offsets of rows by the name of their file, from the address in the column ``_file``; each once.

    The driver holds them: a few dozen bytes a row.
    """
    grouped = rows.groupBy("_file", *PLACE[:3]).agg(F.collect_set("queueOffset"))
    files: dict[str, Offsets] = {}
    for file, topic, broker, queue, offsets in grouped.collect():
        files.setdefault(Path(file).name, {})[topic, broker, queue] = np.array(offsets, np.int64)
    return files


def counted(files: dict[str, Offsets]) -> tuple[CopyCount, ...]:
    """Return the number of rows by queue."""
    return sum_copies(CopyCount(*queue, len(offsets)) for offsets_of in files.values() for queue, offsets in offsets_of.items())


def _numbered(frame: DataFrame, by: str) -> DataFrame:
    check_copies(by, frame.columns)
    order = Window.partitionBy(*COPIES[by]).orderBy("storeTimestamp", "brokerName", "queueId", "queueOffset")
    return frame.withColumn("_copy", F.row_number().over(order))
