"""Manifests: spans are merged, what overlaps or has no name is refused, and the text depends on the reports alone."""

from __future__ import annotations

import pytest

from halfmoon.data.partitions import Range
from halfmoon.errors import StoreError, UsageError
from halfmoon.spark.lake.manifest import CopyCount, TaskReport, digest, ends, manifest_of, merge_spans, sum_copies


def span(begin: int, end: int, queue: int = 0) -> Range:
    """Return offsets of a queue."""
    return Range("orders", "broker-a", queue, begin, end)


def test_two_parts_with_the_same_offset_are_no_batch():
    span = Range("orders", "broker-a", 0, 0, 10)

    with pytest.raises(StoreError, match="overlaps"):
        manifest_of(
            "q",
            0,
            [TaskReport(attempt="a", spans=(span,)), TaskReport(attempt="b", spans=(Range("orders", "broker-a", 0, 9, 12),))],
        )


@pytest.mark.parametrize("id", ["", "../x", ".x", "a/b", "x" * 101])
def test_a_name_that_would_be_another_directory_is_refused(id: str):
    with pytest.raises(UsageError, match="is not a name of an ingest"):
        manifest_of(id, 0, [])


def test_neighbours_become_one_span_and_empty_ones_go():
    assert merge_spans([span(5, 9), span(0, 5), span(9, 9), span(9, 12, queue=1)]) == (span(0, 9), span(9, 12, queue=1))
    assert merge_spans([span(0, 5), span(3, 9)], overlaps=True) == (span(0, 5), span(3, 9))
    with pytest.raises(StoreError, match="is not a range"):
        merge_spans([span(5, 3)])


def test_a_manifest_is_the_same_in_whatever_order_tasks_report():
    reports = [
        TaskReport(attempt="a", spans=(span(0, 5),), refused={"x": 1}),
        TaskReport(attempt="b", spans=(span(5, 9),), refused={"x": 2}),
    ]

    manifest = manifest_of("q", 3, reports)

    assert manifest == manifest_of("q", 3, reversed(reports))
    assert (manifest.spans, manifest.refused, manifest.digest) == ((span(0, 9),), {"x": 3}, digest([span(0, 9)]))


def test_a_queue_is_covered_up_to_its_largest_end():
    assert ends([span(0, 5), span(2, 3)], {("orders", "broker-a", 1): 7}) == {
        ("orders", "broker-a", 0): 5,
        ("orders", "broker-a", 1): 7,
    }


def test_copies_are_summed_by_queue_and_none_is_left_out():
    copies = [CopyCount("orders", "a", 1, 2), CopyCount("orders", "a", 0, 0), CopyCount("orders", "a", 1, 3)]

    assert sum_copies(copies) == (CopyCount("orders", "a", 1, 5),)
