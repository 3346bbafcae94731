"""Jobs that copy topics of the shared broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halfmoon.testing.local import LocalCluster
from tests.spark.faults.driver import Job
from tests.spark.faults.topics import Topics, topics


@pytest.fixture
def at(cluster: LocalCluster) -> Iterator[Topics]:
    """The topics of the shared broker."""
    with topics(cluster.nameserver) as found:
        yield found


@pytest.fixture
def job(at: Topics, topic: str, tmp_path: Path) -> Callable[..., Job]:
    """``job(**options of the source)`` copies ``{topic}_in`` to ``{topic}_out``, which are made."""
    return lambda **source: job_of(at, topic, tmp_path, **source)


def job_of(at: Topics, topic: str, place: Path, **source: str) -> Job:
    """Make two topics and return the job that copies one to the other."""
    at.make(f"{topic}_in", f"{topic}_out")
    return Job(at.nameserver, f"{topic}_in", f"{topic}_out", str(place / "checkpoint"), str(place / "gates"), source)
