"""Servers and topics that go in mid-stream: the query waits, or fails and says what to do; nothing is passed over in silence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from halfmoon import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.client.bulk import bulk
from halfmoon.model import MessageQueue
from halfmoon.wire.record import encode_batch
from tests.spark.faults.conftest import job_of
from tests.spark.faults.driver import Job, started
from tests.spark.faults.processes import Servers
from tests.spark.faults.topics import Topics, topics
from tests.spark.waiting import BOUND_S, until

pytestmark = pytest.mark.slow

OUTAGE_S = float(os.environ.get("OUTAGE_S", "3"))
"""How long the name server is gone while the broker is there. ``OUTAGE_S=60`` is the minute that must be survived."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """A name server and a broker of the test's own; the broker tells the name server of itself as often as may be."""
    found = Servers(tmp_path, {"registerNameServerPeriod": 10_000})
    try:
        yield found
    finally:
        found.close()


@contextmanager
def copying(spark: Any, servers: Servers, tmp_path: Path) -> Iterator[tuple[Topics, Job, Any]]:
    """Run a query that copies a topic, for the block from its first 40 messages on; then the copy is as the topic is."""
    with topics(servers.nameserver) as at:
        copy = job_of(at, "orders", tmp_path)
        at.feed(copy.origin, 40)
        query = started(spark, copy)
        try:
            until(lambda: at.count(copy.target) == 40, "the first batch")
            yield at, copy, query
            assert query.isActive, query.exception()
        finally:
            query.stop()
        assert at.contents(copy.target) == at.contents(copy.origin)


def test_a_task_that_begins_while_the_only_broker_is_started_again_waits_for_it(servers: Servers):
    """As a worker without routes: the name server knows neither the topic nor any broker then."""
    with topics(servers.nameserver) as at, ThreadPoolExecutor() as aside:
        at.make("orders")
        servers.broker.kill()
        with Admin(nameserver=servers.nameserver) as admin:
            until(lambda: not admin.cluster().broker_addr_table, "the name server to notice")
        with BatchTransactions(nameserver=servers.nameserver) as client, BatchTransactions(nameserver=servers.nameserver) as other:
            producer = bulk(nameserver=servers.nameserver, group="P_jobs", retries_max=20)
            queues = [aside.submit(each.queues, "orders") for each in (client, producer)]
            place = MessageQueue("orders", "broker-a", 0)
            stored = other.prepare(BatchName("q", 0), "a", 0, place, 0, 1, encode_batch([(b"paid", b"", 0)]))
            time.sleep(0.5)
            assert not any(each.done() for each in queues)
            assert not stored.done()
            servers.broker.start()
            assert all(place in each.result(60) for each in queues)
            assert stored.result(60).coordinator == "broker-a"


def test_a_query_waits_for_a_name_server_and_a_broker_that_are_gone(spark: Any, servers: Servers, tmp_path: Path):
    with copying(spark, servers, tmp_path) as (at, copy, query):
        servers.names.kill()
        at.feed(copy.origin, 40)  # the producer knows the way
        servers.broker.kill()
        until(lambda: at.count(copy.target) == -1, "us to give up, which takes seconds; the query does not")
        servers.names.start()
        servers.names.printed("ready")
        servers.broker.start()
        servers.broker.printed("ready")
        until(lambda: not query.isActive or at.count(copy.target) == 80, "the second batch")


def test_a_query_goes_on_without_a_name_server(spark: Any, servers: Servers, tmp_path: Path):
    with copying(spark, servers, tmp_path) as (at, copy, query):
        servers.names.kill()
        over, sent = time.monotonic() + OUTAGE_S, 40
        while time.monotonic() < over:
            at.feed(copy.origin, 8)
            sent += 8
            until(lambda all=sent: time.monotonic() > over or not query.isActive or at.count(copy.target) == all, "what was sent")
            assert query.isActive, query.exception()
        servers.names.start()
        servers.names.printed("ready")
        at.feed(copy.origin, 8)
        until(lambda: not query.isActive or at.count(copy.target) == sent + 8, "the rest")


def test_a_topic_that_is_deleted_in_mid_stream_ends_the_query_with_what_to_do(spark: Any, at: Topics, job: Callable[..., Job]):
    copy = job(outage="2", retries="1")
    at.feed(copy.origin, 40)
    query = started(spark, copy)
    try:
        query.processAllAvailable()
        begun = time.monotonic()
        at.admin.delete_topic(copy.origin)
        with pytest.raises(StreamingQueryException, match=rf"{copy.origin}.*is the topic deleted\? Create it again"):
            query.awaitTermination(BOUND_S)
        assert time.monotonic() - begun >= 2
    finally:
        query.stop()
    assert at.count(copy.target) == 40

    at.make(copy.origin)
    at.feed(copy.origin, 8)
    query = started(spark, copy)
    try:
        with pytest.raises(StreamingQueryException, match=r"created again since this query read it.*failOnDataLoss=false"):
            query.awaitTermination(BOUND_S)
    finally:
        query.stop()
    copy.source["failOnDataLoss"] = "false"
    query = started(spark, copy)
    try:
        query.processAllAvailable()
    finally:
        query.stop()

    again = at.contents(copy.origin)
    assert {queue: bodies[10:] for queue, bodies in at.contents(copy.target).items()} == again
    assert sum(map(len, again.values())) == 8
