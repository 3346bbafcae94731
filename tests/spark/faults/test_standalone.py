"""A real Spark cluster: a master and two workers on this machine, a driver, and what runs there killed with -9 in mid-stream.

One stream lives through all tests, in any order: each sends a batch, has both tasks stop in the middle of their writing, and kills
something.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from halfmoon.testing.local import LocalCluster
from tests.spark.faults.conftest import job_of
from tests.spark.faults.driver import Job
from tests.spark.faults.gates import Gates
from tests.spark.faults.processes import Process, Standalone, command_of, driver, parent_of, stop
from tests.spark.faults.topics import Topics, topics
from tests.spark.waiting import until

pytestmark = pytest.mark.slow

ROWS = 120
"""Rows of a batch: the source waits for as many."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.task.duration.threshold": "500ms",
}


class Running(NamedTuple):
    """A stream on a cluster."""

    standalone: Standalone
    driver: Process
    job: Job
    gates: Gates
    at: Topics

    def feed(self, close: str = "", count: int = 1) -> str:
        """Send the next batch, with a gate closed in it; return the gate's name."""
        name = f"{close} {self.at.sent // ROWS}"
        if close:
            self.gates.close(name, count)
        self.at.feed(self.job.origin, ROWS)
        return name

    def check(self) -> None:
        """All is there once, in order, when the stream has come to its end."""
        self.at.wait_for(self.job.target, self.at.sent)
        assert self.at.contents(self.job.target) == self.at.contents(self.job.origin)


@pytest.fixture(scope="module")
def running(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The cluster and a stream on it, which has written its first batch."""
    place = tmp_path_factory.mktemp("standalone")
    with topics(cluster.nameserver) as at:
        standalone = Standalone(place)
        try:
            job = job_of(at, f"t_{uuid4().hex[:12]}", place, minOffsetsPerTrigger=str(ROWS), maxOffsetsPerTrigger=str(ROWS))
            job.master, job.settings = standalone.url, SPECULATION
            life = driver(job, place / "driver.log")
            try:
                found = Running(standalone, life, job, Gates(Path(job.gates)), at)
                found.feed()
                until(lambda: at.count(job.target) == ROWS or not life.alive, "the first batch")
                assert life.alive, life.text()[-3000:]
                yield found
                stop(life, job)
            finally:
                life.kill()
        finally:
            standalone.close()


def executor_of(pid: int) -> int:
    """Return the executor that a Python worker belongs to."""
    while "CoarseGrainedExecutorBackend" not in command_of(pid):
        pid = parent_of(pid)
    return pid


def test_two_attempts_of_a_task_that_both_write_are_one(running: Running):
    gate = running.feed("write", 1)
    running.gates.held(gate)

    running.check()  # by the other attempt, which Spark begins elsewhere as it finds this one slow

    running.gates.open(gate)
    running.feed()
    running.check()


def test_a_python_worker_killed_in_its_writing_is_followed_by_another(running: Running):
    gate = running.feed("write", 2)
    victim, _ = running.gates.held(gate, 2)
    until(lambda: running.at.held(), "rows that nobody sees yet")

    os.kill(victim, signal.SIGKILL)
    running.gates.open(gate)

    running.check()


def test_an_executor_that_is_lost_is_followed_by_another(running: Running):
    gate = running.feed("write", 2)
    victim, _ = running.gates.held(gate, 2)

    os.kill(executor_of(victim), signal.SIGKILL)
    running.gates.open(gate)

    running.check()


def test_a_worker_that_is_killed_with_all_it_runs_is_done_without(running: Running):
    gate = running.feed("write", 2)
    victim, other = running.gates.held(gate, 2)
    worker = running.standalone.worker_of(victim)
    assert worker is not running.standalone.worker_of(other)

    worker.kill()
    running.gates.open(gate)

    running.check()
    running.feed()
    running.check()
    running.standalone.complete()  # the tests behind this one have two
