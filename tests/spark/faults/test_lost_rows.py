"""Rows returned and loss reported are what is stored: brokers away, topics deleted or created again, queues taken away.

Each reader of bounds gets each of these faults, once strict and once with ``failOnDataLoss=false``: it returns every message that
is stored, or fails, or says which part it goes on without. Real brokers, without Spark.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from halfmoon.client.ranges import BrokersAbsent
from halfmoon.data.reading import DataLoss
from halfmoon.errors import HalfmoonError, UsageError
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs.query import log_behind
from halfmoon.spark.lake.ledger import TableState
from halfmoon.spark.source import stream
from tests.spark.brokers import Brokers, brokers
from tests.spark.query import Query
from tests.spark.waiting import Clock

QUEUES, FEWER = 4, 2

FAULTS: dict[str, Callable[[Brokers, str], list[str]]] = {
    "none": lambda there, topic: [],
    "queues are written no more": lambda there, topic: there.topic(topic, "broker-b", write_queue_count=FEWER) or [],
    "queues are read no more": lambda there, topic: there.topic(topic, "broker-b", queue_count=FEWER) or [],
    "a broker is away": lambda there, topic: there.there["broker-b"].stop() or [],
    "a broker was killed": lambda there, topic: there.there["broker-b"].kill() or [],
    "the topic is another": lambda there, topic: another(there, topic),
}
"""What happens between two reads; each returns the messages that are stored besides."""

KEPT = {"none", "queues are written no more"}
"""After these faults everything is read."""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with brokers(tmp_path_factory.mktemp("two"), "broker-a", "broker-b") as found:
        yield found


def another(there: Brokers, topic: str) -> list[str]:
    there.delete(topic)
    there.topic(topic, "broker-a", "broker-b", queue_count=QUEUES)
    return there.send(topic, "broker-a", 40, QUEUES)  # beyond where the old one was read


def filled(there: Brokers, topic: str) -> list[str]:
    """Send some messages to each queue of both brokers."""
    return [body for name in ("broker-a", "broker-b") for body in there.send(topic, name, 2 * QUEUES, QUEUES)]


@pytest.mark.parametrize(("fault", "strict"), list(product(FAULTS, (True, False))))
@pytest.mark.parametrize("reader", ["batch", "stream", "available now", "ingest"])
def test_what_is_stored_is_returned_or_its_loss_is_reported(
    there: Brokers, topic: str, reader: str, fault: str, strict: bool, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING, "halfmoon.spark")
    there.topic(topic, "broker-a", "broker-b", queue_count=QUEUES)
    given = {"topic": topic, "failOnDataLoss": str(strict).lower(), "retries": "1"}
    clock = Clock()
    query = Query(there.nameserver, clock, **given, startingOffsets="earliest")
    read, stored, table = [], filled(there, topic), TableState(None, ())
    if reader == "ingest":
        read, table = there.ingest(table, **given)
    elif reader != "batch":
        read += query.batch() or []
    if reader != "batch":
        stored += filled(there, topic)
    new = FAULTS[fault](there, topic)
    failed = False
    try:
        if reader == "batch":
            read += there.batch(**given)
        elif reader == "ingest":
            read += there.ingest(table, **given)[0]
        else:
            query.restart()
            if reader == "available now":
                query.reader.prepareForTriggerAvailableNow()
            read += query.batch() or []
            read += query.batch() or []
            clock.sleep(stream.OUTAGE_S)
            read += query.batch() or []
    except (HalfmoonError, DataLoss):
        failed = True
    finally:
        there.start("broker-b")

    here = [body for body in stored if body.startswith("broker-a")]
    assert len(read) == len(set(read))
    if fault == "the topic is another":
        # a batch reads what is there now; of a query, what it had not read of the old topic is lost, and the rest is the new topic
        assert failed == (reader == "ingest" or (reader != "batch" and strict))  # offsets of two topics do not go into one table
        assert failed or set(read) >= set(new)
        assert failed or reader == "batch" or "created again" in caplog.text
    elif fault in KEPT or (reader == "batch" and fault == "queues are read no more"):  # nobody says any more what they held
        assert not failed
        assert sorted(read) == sorted(stored) or (reader == "batch" and set(read) > set(here))
    else:
        assert failed == strict
        assert strict or (set(here) <= set(read) < set(stored) and f"{topic}" in caplog.text and "broker-b" in caplog.text)


def test_a_query_goes_on_without_a_broker_and_reads_all_of_it_when_it_is_back(there: Brokers, topic: str):
    there.topic(topic, "broker-a", "broker-b", queue_count=QUEUES)
    query = Query(there.nameserver, topic=topic, startingOffsets="earliest", retries="1")
    read = query.batch() or []
    sent = filled(there, topic)
    with there.away("broker-b"):
        sent += there.send(topic, "broker-a", 4)
        while (batch := query.batch()) is not None:
            read += batch
        assert len(read) == 2 * QUEUES + 4
    while (batch := query.batch()) is not None:
        read += batch

    assert sorted(read) == sorted(sent)


def test_a_query_from_latest_reads_no_old_message_of_a_broker_that_was_away_at_its_start(there: Brokers, topic: str, monkeypatch):
    there.topic(topic, "broker-a", "broker-b", queue_count=QUEUES)
    filled(there, topic)
    monkeypatch.setattr(stream, "SKEW_MS", 0)
    with there.away("broker-b"):
        query = Query(there.nameserver, topic=topic, failOnDataLoss="false", retries="1")
        assert not query.batch()
    new = there.send(topic, "broker-b", 3)

    assert sorted(query.batch() or []) == new


def test_a_pattern_does_not_forget_a_topic_that_was_deleted_unread(there: Brokers, topic: str):
    names = [f"{topic}_kept", f"{topic}_gone"]
    there.topic(names[0], "broker-a", queue_count=2)
    there.topic(names[1], "broker-a", queue_count=2)
    clock = Clock()
    query = Query(there.nameserver, clock, topicPattern=f"{topic}_.*", startingOffsets="earliest", retries="1")
    there.send(names[1], "broker-a", 3)
    assert len(query.batch() or []) == 3
    there.delete(names[1])
    assert query.batch() is None
    clock.sleep(stream.OUTAGE_S)

    with pytest.raises(UsageError, match=f"{names[1]} is not at broker-a any more"):
        query.plan()
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    with pytest.raises(UsageError, match=f"{names[1]} is not at broker-a any more"):
        query.plan()


def test_births_of_a_broker_that_is_away_are_kept_while_a_topic_at_another_is_read_anew(there: Brokers, topic: str, tmp_path: Path):
    """One topic was created again while the broker of the other was away; then so was the other."""
    first, second = f"{topic}_a", f"{topic}_b"
    there.topic(first, "broker-a", queue_count=2)
    there.topic(second, "broker-b", queue_count=2)
    query = Query(there.nameserver, topicPattern=f"{topic}_.*", startingOffsets="earliest", failOnDataLoss="false", retries="1")
    there.send(first, "broker-a", 2)
    there.send(second, "broker-b", 5)
    assert len(query.batch() or []) == 7
    with there.away("broker-b"):
        there.delete(first)
        there.topic(first, "broker-a", queue_count=2)
        there.send(first, "broker-a", 2)
        assert len(query.batch() or []) == 2
    there.delete(second)
    there.topic(second, "broker-b", queue_count=2)
    again = there.send(second, "broker-b", 8)

    assert sorted(query.batch() or []) == again


def test_the_log_is_not_read_behind_an_archive_of_another_topic_or_without_a_broker(there: Brokers, topic: str):
    there.topic(topic, "broker-a", "broker-b", queue_count=QUEUES)
    filled(there, topic)
    _, table = there.ingest(TableState(None, ()), topic=topic)
    strict, loose = (Cluster(there.nameserver, {"retries": "1", "failOnDataLoss": value}) for value in ("true", "false"))
    new = filled(there, topic)
    assert sum(end - begin for begin, end in log_behind(strict, topic, table.spans).values()) == len(new)
    with there.away("broker-b"):
        with pytest.raises(BrokersAbsent, match="broker-b"):
            log_behind(strict, topic, table.spans)
        assert sum(end - begin for begin, end in log_behind(loose, topic, table.spans).values()) == len(new) // 2
    another(there, topic)

    for cluster in (strict, loose):
        with pytest.raises(UsageError, match=f"created again since the table was filled: {topic} at broker-a"):
            log_behind(cluster, topic, table.spans)


@pytest.mark.parametrize("strict", [True, False])
def test_a_batch_of_queues_that_are_read_no_more_names_the_loss_or_goes_on(there: Brokers, topic: str, strict: bool):
    there.topic(topic, "broker-a", queue_count=QUEUES)
    query = Query(there.nameserver, topic=topic, startingOffsets="earliest", failOnDataLoss=str(strict).lower(), retries="1")
    sent = there.send(topic, "broker-a", 2 * QUEUES, QUEUES)
    assert query.plan()  # the batch fails, and the topic loses queues before it runs again
    there.topic(topic, "broker-a", queue_count=FEWER)
    query.restart()

    if strict:
        with pytest.raises(DataLoss, match=f"offsets 0 to 1 of {topic} broker-a queue 2"):
            query.run()
    else:
        assert sorted(query.run()) == sorted(body for number, body in enumerate(sent) if number % QUEUES < FEWER)
        query.commit()
        assert query.batch() is None
        new = there.send(topic, "broker-a", 2)
        assert sorted(query.batch() or []) == new
        assert json.loads(query.log[-1])["end"][topic]["broker-a"]["3"] == 2
