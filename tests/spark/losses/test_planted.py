"""The account of a history bites: each fault that is planted into the source or its client is found.

A fault needs its chance: each test runs seeds until one has found it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halfmoon.client.core import missing_brokers
from halfmoon.client.core import ranges as core
from halfmoon.client.core.ranges import RangesCore
from halfmoon.client.core.route import Route
from halfmoon.data.queue_offsets import Loss
from halfmoon.effects import Op
from halfmoon.spark.source.stream import StreamReader
from tests.spark.losses.history import simulate_losses

SEEDS = range(1, 16)


def found(reader: str, strict: bool, *checkers: str) -> bool:
    """Whether the history of one of the seeds makes one of the checkers speak."""
    return any(
        problem.startswith(checkers) for seed in SEEDS for problem in simulate_losses(seed, reader=reader, strict=strict).problems
    )


def empty(self: Any, topic: str, broker: str, queue: int) -> Op[tuple[int, int]]:
    """Take a queue that is not listed for an empty one."""
    yield from ()
    return 0, 0


def written_only(bounds: Callable[..., Op[Any]]) -> Any:
    """Leave out the queues that are only read."""

    def planted(self: RangesCore, topic: str, *, partial: bool = False) -> Op[Any]:
        ends = yield from bounds(self, topic, partial=partial)
        return {key: span for key, span in ends.items() if key[1] in self.written[self.wire(topic), key[0]]}

    return planted


def without_absent(merged: Callable[..., Route]) -> Any:
    """Forget which brokers left, where the route was known before."""

    def planted(*given: Any) -> Route:
        whole = merged(*given)
        return Route(whole.brokers, whole.queues, whole.order_conf)

    return planted


def from_zero(self: Loss) -> str:
    """Count a loss from 0, and not from where the reader stands."""
    name = f"{self.queue.topic} {self.queue.broker_name} queue {self.queue.queue_id}"
    return f"{name}: offsets 0 to {self.min_offset - 1} are gone; the oldest there is {self.min_offset}"


def looked_at_once(check: Callable[..., None]) -> Any:
    """Believe for ever what was so when a queue was taken away."""
    return lambda self, queue, offset: None if queue in self._unread else check(self, queue, offset)


def of_any_topic(request: Callable[..., Any]) -> Any:
    """Read a planned range of whatever topic there is."""
    return lambda *given, born=0, **options: request(*given, **options)


STREAM, RANGES, READING = "halfmoon.spark.source.stream.", "halfmoon.client.core.ranges.", "halfmoon.data.reading."
PLANTED = [
    ("stream", False, RANGES + "RangesCore.single", empty, ("end", "untrue", "twice", "silent")),
    ("ingest", False, RANGES + "RangesCore.single", empty, ("alarm", "untrue", "end", "silent")),
    ("batch", True, RANGES + "RangesCore.bounds", written_only(RangesCore.bounds), ("end",)),
    ("stream", False, RANGES + "RangesCore.bounds", written_only(RangesCore.bounds), ("end", "untrue")),
    ("batch", True, "halfmoon.client.core.missing_brokers._merged", without_absent(missing_brokers._merged), ("silent",)),
    ("batch", False, "halfmoon.client.core.missing_brokers._merged", without_absent(missing_brokers._merged), ("silent",)),
    ("stream", False, STREAM + "creation_times", lambda client, queues: {}, ("",)),
    ("ingest", True, "halfmoon.spark.lake.ingest.check_births", lambda have, now: None, ("",)),
    ("stream", False, "halfmoon.client.ranges.range_request", of_any_topic(core.range_request), ("foreign", "count")),
    ("stream", False, "halfmoon.data.queue_offsets.Loss.__str__", from_zero, ("untrue",)),
    ("stream", True, STREAM + "StreamReader._check_removed", lambda self, queue, offset: None, ("silent",)),
    ("stream", False, STREAM + "StreamReader._check_removed", looked_at_once(StreamReader._check_removed), ("silent",)),
    ("ingest", False, "halfmoon.spark.lake.ingest.unread_behind", lambda *given: [], ("silent",)),
    ("stream", False, STREAM + "losses", lambda at, bounds: [], ("silent",)),
    ("batch", False, READING + "Gaps.report", lambda self: None, ("count",)),
    ("stream", True, "halfmoon.spark.source.checkpoint.entry_offsets", lambda at, bounds: dict.fromkeys(bounds, 0), ("twice",)),
]


@pytest.mark.parametrize(("reader", "strict", "place", "fault", "checkers"), PLANTED)
def test_a_planted_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, reader: str, strict: bool, place: str, fault: Any, checkers: tuple[str, ...]
) -> None:
    monkeypatch.setattr(place, fault)

    assert found(reader, strict, *checkers)
