"""A broker in a process of its own, killed with -9 at each record of the protocol and started again, as a stream writes to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.spark.faults.conftest import job_of
from tests.spark.faults.driver import started
from tests.spark.faults.gates import Gates
from tests.spark.faults.processes import Servers
from tests.spark.faults.topics import Topics, topics
from tests.spark.waiting import until

pytestmark = pytest.mark.slow

ROWS = 40
"""Rows of a batch: the source waits for as many."""


class Running(NamedTuple):
    """A stream from and to the broker."""

    servers: Servers
    at: Topics
    gates: Gates
    query: Any
    origin: str
    target: str

    def caught_up(self) -> bool:
        """Whether all is there; a query that failed will not come to that."""
        assert self.query.isActive, str(self.query.exception())
        return self.at.count(self.target) >= self.at.sent


@pytest.fixture(scope="module")
def running(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("broker")
    servers = Servers(place)
    try:
        with topics(servers.nameserver) as at:
            job = job_of(at, "orders", place, minOffsetsPerTrigger=str(ROWS), maxOffsetsPerTrigger=str(ROWS), maxTriggerDelay="1h")
            at.feed(job.origin, ROWS)
            query = started(spark, job)
            try:
                yield Running(servers, at, Gates(Path(job.gates)), query, job.origin, job.target)
            finally:
                query.stop()
    finally:
        servers.close()


@pytest.mark.parametrize("asked", ["with it", "before it"])
@pytest.mark.parametrize("step", ["write", "wrote", "vote", "decide", "apply"])
def test_a_broker_killed_behind_a_step_or_in_it_is_followed_by_one_that_knows_the_same(running: Running, step: str, asked: str):
    until(running.caught_up, "the batch before")
    batch = running.at.sent // ROWS
    gate = f"{step} {batch}" if step in ("write", "wrote") else f"{'after' if asked == 'with it' else 'before'} {step} {batch}"
    running.gates.close(gate)
    running.at.feed(running.origin, ROWS)
    running.gates.held(gate)

    if asked == "before it":
        running.gates.open(gate)
    running.servers.restart_broker()
    if asked == "with it":
        running.gates.open(gate)

    until(running.caught_up, "the batch")
    assert running.at.contents(running.target) == running.at.contents(running.origin)
