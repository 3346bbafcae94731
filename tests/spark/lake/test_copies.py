"""Which rows are copies: by id or keys within a topic, the first stays, and rows without any are never copies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from halfmoon.errors import UsageError
from halfmoon.spark.lake.copies import PLACE, check_copies, copies, counted, first_of_copies, places_by_file
from halfmoon.spark.lake.manifest import CopyCount

COLUMNS = (*PLACE, "keys", "storeTimestamp", "_file")


@pytest.mark.parametrize(
    ("by", "columns", "text"),
    [
        ("tags", COLUMNS, "dedup='tags' is unknown; there are msgId, keys"),
        ("msgId", COLUMNS, "needs the columns msgId,"),
        ("keys", ("topic", "keys"), "needs the columns brokerName, queueId, queueOffset, storeTimestamp,"),
    ],
)
def test_a_criterion_that_is_unknown_or_lacks_its_columns_is_refused(by: str, columns: tuple[str, ...], text: str):
    with pytest.raises(UsageError, match=text):
        check_copies(by, columns)


def test_a_criterion_with_its_columns_is_taken():
    check_copies("keys", COLUMNS)


def test_rows_are_counted_by_queue_over_all_files():
    first, second = ("orders", "broker-a", 0), ("orders", "broker-a", 1)
    files = {"a": {second: np.array([1]), first: np.array([5, 6])}, "b": {first: np.array([7])}}

    assert sorted(counted(files)) == [CopyCount(*first, 3), CopyCount(*second, 1)]
    assert counted({}) == ()


@pytest.mark.slow
def test_of_copies_the_one_that_was_stored_first_stays(spark: Any):
    def row(topic: str, queue: int, offset: int, keys: str | None, minute: int) -> tuple[Any, ...]:
        return (
            topic,
            "broker-a",
            queue,
            offset,
            keys,
            datetime(2026, 1, 31, tzinfo=UTC) + timedelta(minutes=minute),
            f"file:/x/{queue}",
        )

    frame = spark.createDataFrame(
        [
            row("orders", 0, 0, "k", 2), row("orders", 1, 7, "k", 1), row("orders", 1, 8, "k", 3), row("mail", 0, 0, "k", 9),
            row("orders", 0, 1, "", 4), row("orders", 0, 2, "", 5), row("orders", 0, 3, None, 6), row("orders", 0, 4, None, 7),
        ],
        "topic string, brokerName string, queueId int, queueOffset long, keys string, storeTimestamp timestamp, _file string",
    )  # fmt: skip
    left = sorted(tuple(place) for place in first_of_copies(frame, "keys").select("topic", "queueId", "queueOffset").collect())
    files = places_by_file(copies(frame, "keys"))

    assert left == [("mail", 0, 0), *(("orders", 0, offset) for offset in (1, 2, 3, 4)), ("orders", 1, 7)]
    assert {file: {queue: list(offsets) for queue, offsets in places.items()} for file, places in files.items()} == {
        "0": {("orders", "broker-a", 0): [0]},
        "1": {("orders", "broker-a", 1): [8]},
    }
