"""How jobs read topics: the ranges of their queues, and the options by which the source reads just these. Starts no session."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from halfmoon.errors import NoRoute
from halfmoon.spark import cluster
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.reading import frame_of, ranges_of

CLUSTER = Cluster("127.0.0.1:1", {"fetchBytes": "8MiB"})
BOUNDS = {"orders": {("broker-a", 0): (2, 9), ("broker-a", 1): (0, 0)}, "empty": {}}


class FakeClient:
    """Knows the bounds of some topics; everything was stored at the time 1000."""

    def topics(self) -> list[str]:
        return sorted(BOUNDS)

    def bounds(self, topic: str, *, partial: bool) -> dict[tuple[str, int], tuple[int, int]]:
        if topic not in BOUNDS:
            raise NoRoute(topic)
        return BOUNDS[topic]

    def offsets_at(self, topic: str, since_ms: int, bounds: Any) -> dict[tuple[str, int], int]:
        assert bounds, "a topic without queues is not asked about"
        return {("broker-a", 0): 9 if since_ms > 1000 else 2}


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "client_of", lambda options: FakeClient())


def test_ranges_are_what_the_queues_hold_and_a_topic_that_is_not_there_has_none():
    assert ranges_of(CLUSTER, ["orders", "gone", "empty", "orders"]) == {
        ("orders", "broker-a", 0): (2, 9),
        ("orders", "broker-a", 1): (0, 0),
    }


def test_ranges_begin_with_the_first_message_since_a_time():
    ranges = ranges_of(CLUSTER, ["orders", "empty"], since_ms=2000)

    assert ranges == {("orders", "broker-a", 0): (9, 9), ("orders", "broker-a", 1): (0, 0)}


class FakeSession:
    """Keeps the options with which a frame is read, or the table of which it is made."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.read = SimpleNamespace(format=lambda name: SimpleNamespace(options=self._options))

    def _options(self, **options: str) -> Any:
        self.asked = options
        return SimpleNamespace(load=lambda: "a frame")

    def createDataFrame(self, table: Any) -> Any:
        return table


def test_a_frame_reads_just_the_ranges_and_columns_in_the_order_of_the_source():
    session, ranges = (
        FakeSession(),
        {("orders", "broker-a", 0): (2, 9), ("orders", "broker-a", 1): (4, 4), ("mail", "broker-b", 3): (0, 1)},
    )

    assert frame_of(session, CLUSTER, ranges, ("body", "topic")) == "a frame"
    asked = session.asked
    assert json.loads(asked["startingOffsets"]) == {"orders": {"broker-a": {"0": 2}}, "mail": {"broker-b": {"3": 0}}}
    assert json.loads(asked["endingOffsets"]) == {"orders": {"broker-a": {"0": 9}}, "mail": {"broker-b": {"3": 1}}}
    assert json.loads(asked["assign"]) == {"orders": {"broker-a": [0]}, "mail": {"broker-b": [3]}}
    assert (asked["columns"], asked["endpoints"], asked["fetchBytes"]) == ("topic,body", "127.0.0.1:1", "8MiB")


def test_ranges_without_a_message_are_an_empty_frame_and_ask_nobody():
    session = FakeSession()

    table = frame_of(session, CLUSTER, {("orders", "broker-a", 0): (4, 4)}, ("body", "topic"))

    assert (table.column_names, table.num_rows, session.asked) == (["topic", "body"], 0, {})
