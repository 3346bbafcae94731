"""Tests of the exactly-once sink with several real brokers, without Spark: one joins, one leaves, and the query goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from halfmoon import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.data.sending.transaction import commit_batch
from halfmoon.errors import NetworkError
from halfmoon.spark.sink.exactly_once import prepare
from halfmoon.spark.sink.options import SinkOptions
from halfmoon.testing.local import LocalCluster
from halfmoon.wire.bodies.batches import coordinator_of
from tests.visible import visible

Start = Callable[[str], LocalCluster]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a broker by its name: the first with a name server, which the others register with, too; with the topic."""
    there: list[LocalCluster] = []

    def started(name: str) -> LocalCluster:
        settings = {"brokerName": name, **({"namesrvAddr": there[0].nameserver} if there else {})}
        found = LocalCluster(tmp_path / name, settings)
        found.start()
        there.append(found)
        with Admin(nameserver=found.nameserver) as admin:
            admin.create_topic("orders", queue_count=2)
        return found

    yield started
    for each in reversed(there):
        each.stop()


def batch(names: LocalCluster, owner: str, number: int, rows: int = 40) -> None:
    """Write a batch as two new processes do: a client for its tasks, another for the driver."""
    options = SinkOptions(endpoints=names.nameserver, topic="orders", delivery="exactly-once", batch_bytes=1024)
    bodies = [f"{number}/{row}".ljust(100) for row in range(rows)]
    with BatchTransactions(nameserver=names.nameserver, request_timeout_ms=5_000, retries_max=3) as tasks:
        name = BatchName(owner, number)
        said = [prepare(tasks, options, name, part, [pa.RecordBatch.from_pydict({"body": bodies[part::2]})]) for part in range(2)]
    with BatchTransactions(nameserver=names.nameserver, request_timeout_ms=5_000, retries_max=3) as driver:
        commit_batch(driver, options, said)


def bodies(names: LocalCluster) -> list[str]:
    """Return what consumers see."""
    return sorted(message.body.decode().strip() for message in visible(names.nameserver, "orders"))


def expected(*numbers: int) -> list[str]:
    """Return the rows of batches."""
    return sorted(f"{number}/{row}" for number in numbers for row in range(40))


def moving(old: list[str], new: str) -> str:
    """Return an id whose coordinator would be the new broker, were it chosen from those that are there then."""
    return next(f"query-{n}" for n in range(1000) if coordinator_of(f"query-{n}", [*old, new]) == new)


def test_a_broker_that_joins_stops_no_query_and_a_batch_that_runs_again_adds_nothing(start: Start):
    first, owner = start("broker-a"), moving(["broker-a"], "broker-b")
    batch(first, owner, 0)
    start("broker-b")
    batch(first, owner, 0)
    batch(first, owner, 1)
    start("broker-c")
    batch(first, owner, 1)
    batch(first, owner, 2)

    assert bodies(first) == expected(0, 1, 2)


def test_a_broker_that_leaves_stops_a_query_only_while_it_coordinates(start: Start):
    first, _, third = start("broker-a"), start("broker-b"), start("broker-c")
    names = ["broker-a", "broker-b", "broker-c"]
    mine = next(f"query-{n}" for n in range(1000) if coordinator_of(f"query-{n}", names) == "broker-a")
    theirs = next(f"query-{n}" for n in range(1000) if coordinator_of(f"query-{n}", names) == "broker-c")
    batch(first, mine, 0)
    batch(first, theirs, 5)
    third.stop()
    batch(first, mine, 1)
    with pytest.raises(NetworkError, match="broker-c coordinates"):
        batch(first, theirs, 6)
    third.start()
    batch(first, mine, 2)
    batch(first, theirs, 6)
    batch(first, theirs, 6)
    assert bodies(first) == expected(0, 1, 2, 5, 6)
