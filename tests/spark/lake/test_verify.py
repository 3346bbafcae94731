"""Verdicts on a table, from figures alone: what is missing, twice or different is said in words."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from halfmoon.data.partitions import Range
from halfmoon.spark.lake.verify import NO_ROWS, QueueSums, verdict

QUEUE = ("orders", "broker-a", 0)
TEN = QueueSums(10, 10, 0, 9, 77)


def spans(*ends: tuple[int, int]) -> list[Range]:
    """Return the ranges of some batches."""
    return [Range(*QUEUE, begin, end) for begin, end in ends]


def test_a_table_with_every_offset_once_is_right():
    found = verdict(QUEUE, spans((0, 4), (4, 10)), TEN, NO_ROWS, there=TEN, same=TEN)

    assert (found.wrong, found.begin, found.end, found.rows) == ((), 0, 10, 10)


def test_known_gaps_and_quarantine_count_as_there():
    kept = QueueSums(2, 2, 3, 4, 5)

    assert verdict(QUEUE, spans((0, 15)), TEN, kept, lost=3).wrong == ()


@pytest.mark.parametrize(
    ("ranges", "have", "there", "text"),
    [
        ([(0, 5), (4, 9)], QueueSums(9, 9, 0, 8, 1), None, "offsets 4 to 4 are in two batches"),
        ([(0, 5), (6, 11)], TEN, None, "offsets 5 to 5 are in no batch"),
        ([(0, 9)], QueueSums(10, 9, 0, 8, 1), None, "1 rows have an offset that another row has"),
        ([(0, 12)], TEN, None, "2 rows of the batches are missing"),
        ([(0, 8)], TEN, None, "2 rows are in no batch"),
        ([(0, 10)], NO_ROWS, None, "10 rows of the batches are missing"),
        ([(0, 10)], TEN, QueueSums(10, 10, 0, 9, 78), "messages (and their checksum): 10 (78) in the topic, 10 (77) in the table"),
        ([(0, 10)], TEN, QueueSums(11, 11, 0, 10, 77), "messages (and their checksum): 11 (77) in the topic, 10 (77) in the table"),
    ],
)
def test_what_is_wrong_is_said(ranges: list[tuple[int, int]], have: QueueSums, there: QueueSums | None, text: str):
    found = verdict(QUEUE, spans(*ranges), have, NO_ROWS, there=there, same=there)

    assert found.wrong == (text,)


TWO_LESS = QueueSums(8, 8, 0, 9, 60)
"""What a table has of ten after two copies were left out."""


def test_copies_that_were_left_out_are_neither_missing_nor_too_many():
    found = verdict(QUEUE, spans((0, 10)), TWO_LESS, NO_ROWS, dropped=2, there=TEN, same=TWO_LESS)

    assert (found.wrong, found.rows, found.dropped, found.topic_checksum) == ((), 8, 2, 60)


@pytest.mark.parametrize(
    ("dropped", "same", "texts"),
    [
        (1, TWO_LESS, ["1 rows of the batches are missing", "9 (60) in the topic without 1 copies, 8 (60) in the table"]),
        (3, TWO_LESS, ["1 rows are in no batch", "7 (60) in the topic without 3 copies, 8 (60) in the table"]),
        (2, QueueSums(8, 8, 0, 9, 61), ["8 (61) in the topic without 2 copies, 8 (60) in the table"]),
        (0, TWO_LESS, ["2 rows of the batches are missing", "10 (60) in the topic, 8 (60) in the table"]),
    ],
)
def test_rows_beyond_the_copies_left_out_are_told(dropped: int, same: QueueSums, texts: list[str]):
    found = verdict(QUEUE, spans((0, 10)), TWO_LESS, NO_ROWS, dropped=dropped, there=TEN, same=same)

    assert len(found.wrong) == len(texts)
    assert all(said.endswith(text) for said, text in zip(found.wrong, texts, strict=True))
