"""Queries that begin again: behind a commit that failed, a first batch that was not done, with the checkpoint of yesterday."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.faults.driver import Job, started
from tests.spark.faults.gates import Gates
from tests.spark.faults.topics import Topics

pytestmark = pytest.mark.slow

BOUND_S = 240


@contextmanager
def running(spark: Any, job: Job) -> Iterator[Any]:
    """Give the query of a job, started; it is stopped at the end."""
    query = started(spark, job)
    try:
        yield query
    finally:
        query.stop()


def caught_up(spark: Any, job: Job) -> None:
    """Run a job until it has all that is there."""
    with running(spark, job) as query:
        query.processAllAvailable()


def failed(spark: Any, job: Job) -> str:
    """Run a job that fails; return with which words."""
    with running(spark, job) as query, pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(BOUND_S)
    return str(raised.value)


def test_a_commit_that_fails_behind_the_decision_is_carried_out_and_the_next_run_adds_nothing(
    spark: Any, at: Topics, job: Callable[..., Job]
):
    copy = job()
    at.feed(copy.origin, 40)
    Gates(Path(copy.gates)).break_at("after decide 0")

    assert "broken at after decide 0" in failed(spark, copy)
    at.wait_for(copy.target, 40)  # Spark's abort has the broker ask what became of the batch
    caught_up(spark, copy)

    assert at.contents(copy.target) == at.contents(copy.origin)


def test_a_first_batch_that_failed_is_repeated_from_where_latest_was(spark: Any, at: Topics, job: Callable[..., Job]):
    copy = job(startingOffsets="latest", minOffsetsPerTrigger="1")
    at.feed(copy.origin, 8)
    with running(spark, copy) as query:
        query.processAllAvailable()
    before = [path.read_text() for path in sorted(Path(copy.checkpoint, "offsets").glob("[0-9]*"))]
    shutil.rmtree(Path(copy.checkpoint, "commits"))  # as if the driver had been killed behind its first log entry
    at.feed(copy.origin, 12)

    caught_up(spark, copy)

    after = [path.read_text() for path in sorted(Path(copy.checkpoint, "offsets").glob("[0-9]*"))]
    assert after[: len(before)] == before
    assert at.contents(copy.target) == {queue: bodies[2:] for queue, bodies in at.contents(copy.origin).items()}


def test_a_checkpoint_of_yesterday_is_an_error_that_says_what_to_do(
    spark: Any, at: Topics, job: Callable[..., Job], tmp_path: Path
):
    copy = job()
    for batch in range(4):
        at.feed(copy.origin, 8)
        caught_up(spark, copy)
        if batch == 1:
            shutil.copytree(copy.checkpoint, tmp_path / "yesterday")
    shutil.rmtree(copy.checkpoint)
    shutil.copytree(tmp_path / "yesterday", copy.checkpoint)
    at.feed(copy.origin, 8)
    before = at.contents(copy.target)

    said = failed(spark, copy)

    assert "batch 2 of" in said
    assert "restored from a backup? Continue with the newest checkpoint; a new transactionalId" in said
    assert "strictReplay=false continues after what is there" in said
    assert at.contents(copy.target) == before


def test_the_end_of_what_is_there_is_reached_while_producers_go_on(spark: Any, at: Topics, job: Callable[..., Job]):
    copy = job(maxOffsetsPerTrigger="16", maxPartitions="1")
    at.feed(copy.origin, 40)
    there = at.contents(copy.origin)
    gates = Gates(Path(copy.gates))
    gates.close("done 0")
    copy.available_now = True
    with running(spark, copy) as query:
        gates.held("done 0")
        at.feed(copy.origin, 100)
        gates.open("done 0")
        at.feed(copy.origin, 20)
        assert query.awaitTermination(BOUND_S)

    assert at.contents(copy.target) == there


def test_queues_that_come_in_mid_stream_are_copied_whole(spark: Any, at: Topics, job: Callable[..., Job]):
    copy = job()
    at.admin.create_topic(copy.target, queue_count=6)
    at.feed(copy.origin, 8)
    with running(spark, copy) as query:
        query.processAllAvailable()
        at.admin.create_topic(copy.origin, queue_count=6)
        at.feed(copy.origin, 18, queues=6)
        query.processAllAvailable()

    found = at.contents(copy.target)
    assert found == at.contents(copy.origin)
    assert len(found[5]) == 3
