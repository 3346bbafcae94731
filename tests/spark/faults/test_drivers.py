"""A driver killed with -9 at each step of the commit: the next one goes on from the checkpoint, and every row is there once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.faults.driver import Job, started
from tests.spark.faults.gates import Gates
from tests.spark.faults.processes import driver
from tests.spark.faults.topics import Topics

pytestmark = pytest.mark.slow

ROWS = 40
"""Rows of a batch."""


def test_a_driver_killed_before_each_step_is_followed_by_one_that_carries_it_out(
    spark: Any, at: Topics, job: Callable[..., Job], tmp_path: Path
):
    copy = job(maxOffsetsPerTrigger=str(ROWS))
    gates = Gates(Path(copy.gates))
    at.feed(copy.origin, 5 * ROWS)
    steps = ("before vote", "before decide", "before apply", "done")
    for batch, step in enumerate(steps):
        # the life before was killed with batch - 1 under way; this one repeats that, and is killed with the next
        gates.close(f"{step} {batch}")
        life = driver(copy, tmp_path / f"driver-{batch}.log")
        try:
            gates.held(f"{step} {batch}")
            visible = at.count(copy.target)
        finally:
            life.kill()
            gates.open(f"{step} {batch}")
        assert visible == (batch + (step == "done")) * ROWS

    query = started(spark, copy)
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    assert query.lastProgress.batchId >= 4
    assert at.contents(copy.target) == at.contents(copy.origin)
