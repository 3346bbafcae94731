"""A pair of brokers whose master is killed with -9, and switched, while a stream reads from it and writes to it exactly once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from halfmoon import Message, MessageQueue, Producer
from halfmoon.errors import HalfmoonError
from halfmoon.testing.local import SMALL
from tests.interop.dropping_proxy import SETTINGS, DroppingProxy, complete, lose_master
from tests.interop.pairs import Pair
from tests.runtime.leases.systems import PostgresSystem
from tests.spark.faults.conftest import job_of
from tests.spark.faults.driver import started
from tests.spark.faults.gates import Gates
from tests.spark.faults.topics import QUEUES, topics
from tests.spark.waiting import until

pytestmark = pytest.mark.slow

BATCH_ROWS = 200
"""Most rows of a batch, which are read from all queues."""
ANYTIME = "anytime"
MOMENTS = ("write", "after vote", "after decide", ANYTIME, ANYTIME)
"""Where the stream is when the master is killed: at a gate of the sink, or wherever; the source reads as the sink writes."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair whose members are not started, and tell each other the address of a proxy."""
    system = PostgresSystem()
    found = Pair(tmp_path / "pair", system.url, settings={**SMALL, **SETTINGS})
    try:
        yield found
    finally:
        found.close()
        system.close()


@pytest.fixture
def proxy(pair: Pair) -> Iterator[DroppingProxy]:
    """The link between the members, which are a complete pair."""
    with complete(pair, Random(4)) as found:
        yield found


class Feed:
    """Sends to a topic, each body once, until it is stopped. ``acknowledged`` are the bodies that were."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self._nameserver, self._topic, self._stopping = nameserver, topic, threading.Event()
        self.acknowledged: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with Producer(group="P_feed", nameserver=self._nameserver, retries_max=0, send_timeout_ms=1_000) as producer:
            while not self._stopping.wait(0.003):
                number, body = number + 1, f"{number:06}"
                try:
                    producer.send(Message(self._topic, body.encode()), queue=MessageQueue(self._topic, "broker-a", number % QUEUES))
                except HalfmoonError:  # there is no master now, or none that answers
                    continue
                self.acknowledged.append(body)

    def stop(self) -> list[str]:
        """Stop, and return what was acknowledged."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.acknowledged


def batch_of(query: Any) -> int:
    """Return the number of the last batch that has ended; -1: none has."""
    assert query.isActive, str(query.exception())
    progress = query.lastProgress
    return progress["batchId"] if progress else -1


@contextmanager
def at_moment(moment: str, query: Any, gates: Gates, dice: Random) -> Iterator[None]:
    """Bring a stream to a moment of a batch, and hold it there for the block if a gate is."""
    known = batch_of(query)
    until(lambda: batch_of(query) >= known + 3, "three more batches")
    if moment == ANYTIME:
        time.sleep(dice.uniform(0, 1))
        yield
        return
    gate = f"{moment} {batch_of(query) + 3}"
    gates.close(gate)
    gates.held(gate)
    yield
    gates.open(gate)


def test_a_stream_copies_each_row_once_though_masters_are_killed(spark: Any, pair: Pair, proxy: DroppingProxy, tmp_path: Path):
    dice = Random(6)
    with topics(pair.nameserver) as at:
        job = job_of(at, "orders", tmp_path, maxOffsetsPerTrigger=str(BATCH_ROWS))
        gates, feed, query = Gates(Path(job.gates)), Feed(pair.nameserver, job.origin), started(spark, job)
        try:
            for moment in MOMENTS:
                with at_moment(moment, query, gates, dice):
                    pair.start(lose_master(pair, proxy))
                pair.wait_complete()
            with at_moment(ANYTIME, query, gates, dice):
                pair.switch()
            acknowledged = feed.stop()
            pair.wait_complete()  # before, a last row that was not acknowledged may be stored and not be visible yet
            until(lambda: batch_of(query) > 0 and at.count(job.target) >= at.count(job.origin) > 0, "all rows")
            batches = batch_of(query) + 1
        finally:
            feed.stop()
            query.stop()
        origin, target = at.contents(job.origin), at.contents(job.target)
        bodies = Counter(body for queue in target.values() for body in queue)
        print(f"{len(acknowledged)} rows acknowledged, {bodies.total()} copied in {batches} batches")
        assert target == origin
        assert set(bodies) >= set(acknowledged)
        assert set(bodies.values()) == {1}
        assert at.count(job.target) == bodies.total()
