"""Log files that expire under a stream that fell behind: an error that names queue and offsets, or a word of what is left out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from halfmoon.data.reading import DataLoss
from halfmoon.errors import UsageError
from halfmoon.testing.local import LocalCluster
from tests.spark.faults.topics import Topics, topics
from tests.spark.query import Query

FILE_BYTES = 64 * 1024
COUNT = 1200


def expire(cluster: LocalCluster) -> None:
    """Take away the two oldest files of the log, as its retention does when they are too old."""
    cluster.stop()
    for path in sorted(Path(cluster.data, "commitlog").iterdir())[:2]:
        path.unlink()
    cluster.start()


def left(at: Topics) -> list[str]:
    """Return what is still there."""
    return sorted(body for bodies in at.contents("orders").values() for body in bodies)


@pytest.mark.parametrize("planned", [False, True])
def test_what_expired_before_it_was_read_is_an_error_or_passed_over_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, planned: bool
):
    with LocalCluster(tmp_path, {"mappedFileSizeCommitLog": FILE_BYTES}) as own, topics(own.nameserver) as at:
        at.make("orders")
        at.feed("orders", 4)
        queries = [
            Query(own.nameserver, topic="orders", startingOffsets="earliest", failOnDataLoss=fail) for fail in ("true", "false")
        ]
        for query in queries:
            assert len(query.batch() or []) == 4
        at.feed("orders", COUNT)
        if planned:
            assert all(query.plan() for query in queries)
        expire(own)
        strict, loose = queries

        if planned:
            with pytest.raises(
                DataLoss, match=r"offsets 1 to \d+ of .*hold no message any more: they expired.*failOnDataLoss=false"
            ):
                strict.run()
        else:
            with pytest.raises(
                UsageError, match=r"queue 0: offsets 1 to \d+ are gone; the oldest there is \d+.*failOnDataLoss=false"
            ):
                strict.plan()
        with caplog.at_level(logging.WARNING, "halfmoon.spark"):
            found = loose.run() if planned else loose.batch()

        assert sorted(found or []) == left(at)
        assert 100 < len(found or []) < COUNT
        assert "messages lost, passed over by failOnDataLoss=false" in caplog.text
