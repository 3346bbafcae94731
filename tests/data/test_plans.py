"""The plan of a reading: what is there, what the options leave of it, and brokers asked for sizes only where that matters."""

from __future__ import annotations

from typing import Any, cast

from halfmoon.client.ranges import Ranges
from halfmoon.data.partitions import Range
from halfmoon.data.plans import planned_ranges, shares_of
from halfmoon.spark.source.options import source_options


class Brokers:
    """Answers as `Ranges` does for one topic with two queues; counts the requests for sizes."""

    def __init__(self) -> None:
        self.weighed = 0

    def bounds(self, topic: str, *, partial: bool) -> dict[tuple[str, int], tuple[int, int]]:
        return {("a", 1): (0, 100), ("a", 0): (10, 110)}

    def absent(self, topic: str) -> tuple[str, ...]:
        return ()

    def births(self, topic: str) -> dict[str, int]:
        return {"a": 7}

    def weigh(self, topic: str, ranges: dict[tuple[str, int], tuple[int, int]]) -> dict[tuple[str, int], list[int]]:
        self.weighed += 1
        return {key: [3_000 if key[1] else 1_000] for key in ranges}


def client() -> Any:
    return cast(Ranges, Brokers())


def test_all_that_is_there_is_planned_by_queue_with_the_birth_of_its_topic():
    options = source_options({"endpoints": "x:1", "topic": "orders"}, "batch")

    assert planned_ranges(options, client()) == [Range("orders", "a", 0, 10, 110, 7), Range("orders", "a", 1, 0, 100, 7)]


def test_shares_are_even_by_the_bytes_that_brokers_report():
    brokers = client()
    ranges = [Range("orders", "a", 0, 0, 100), Range("orders", "a", 1, 0, 100)]

    assert shares_of(ranges, brokers, cores=2, min_partitions=4) == [
        (Range("orders", "a", 0, 0, 100),),
        (Range("orders", "a", 1, 0, 33),),
        (Range("orders", "a", 1, 33, 66),),
        (Range("orders", "a", 1, 66, 100),),
    ]
    assert brokers.weighed == 1


def test_brokers_are_not_asked_for_sizes_on_which_nothing_depends():
    brokers = client()
    ranges = [Range("orders", "a", 0, 0, 100), Range("orders", "a", 1, 0, 100)]

    shares_of(ranges, brokers, cores=1)
    shares_of(ranges[:1], brokers, cores=8)
    shares_of(ranges, brokers, cores=8, max_records=10)

    assert brokers.weighed == 0
