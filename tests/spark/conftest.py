"""One Spark session a process, one broker a session of tests, and a directory for checkpoints each test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from halfmoon import Message, MessageQueue, Producer
from halfmoon.testing.local import LocalCluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of `halfmoon.spark.session` with two cores."""
    from pyspark.logger import PySparkLogger

    import halfmoon.spark

    place = tmp_path_factory.mktemp("spark")
    found = halfmoon.spark.session(
        "tests",
        master="local[2]",
        warehouse=place / "warehouse",
        settings={
            "spark.local.dir": str(place / "local"),
            "spark.sql.streaming.metricsEnabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it lives for minutes: half the work
        },
    )
    found.sparkContext.setLogLevel("OFF")
    # PySpark's loggers give their format to every handler that is added, also to pytest's, with which all later tests read the log
    PySparkLogger.addHandler = logging.Logger.addHandler  # type: ignore[method-assign]
    yield found
    found.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that all tests share; topics are their own."""
    with LocalCluster(tmp_path_factory.mktemp("broker") / "store") as found:
        yield found


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t_{uuid4().hex[:12]}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A place for a checkpoint."""
    return str(tmp_path / "checkpoint")


@pytest.fixture
def send(cluster: LocalCluster) -> Iterator[Callable[..., None]]:
    """``send(topic, ["a", "b"], queue=0, **fields)`` sends bodies, to one queue or in turn to all."""
    with Producer(group="P_spark", nameserver=cluster.nameserver) as producer:

        def sends(topic: str, bodies: list[str], queue: int | None = None, **fields: Any) -> None:
            count = len(producer.queues(topic))
            for number, body in enumerate(bodies):
                place = MessageQueue(topic, "broker-a", number % count if queue is None else queue)
                producer.send(Message(topic, body.encode(), **fields), queue=place)

        yield sends
