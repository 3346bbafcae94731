"""The stream reader against a real broker, driven as Spark drives it: offsets travel as JSON, partitions and reader as pickles.

Spark itself is in `test_queries`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from halfmoon import Admin, Message, Producer
from halfmoon.data.reading import DataLoss
from halfmoon.errors import HalfmoonError, NetworkError, NoRoute, UsageError
from halfmoon.model import MessageQueue
from halfmoon.runtime.connections.blocking_connections import LOOK_S
from halfmoon.spark.clients import client_of
from halfmoon.spark.source import stream
from halfmoon.testing.local import LocalCluster
from tests.spark.query import Query
from tests.spark.waiting import Clock

Send = Callable[..., None]


@pytest.fixture
def made(cluster: LocalCluster, topic: str) -> str:
    """A topic of four queues."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=4)
    return topic


@pytest.fixture
def query(cluster: LocalCluster, made: str) -> Callable[..., Query]:
    return lambda **given: Query(cluster.nameserver, **{"topic": made, **given})


def test_latest_begins_behind_what_is_there_and_a_first_batch_killed_before_it_ran_loses_nothing(query, made: str, send: Send):
    send(made, ["old"] * 4)
    found = query()
    assert found.plan()  # logged, with the place where each queue begins; then the driver dies
    send(made, ["new-1", "new-2"])

    found.restart()
    assert found.run() == []
    found.commit()
    assert sorted(found.batch() or []) == ["new-1", "new-2"]


def test_a_batch_run_again_after_a_restart_reads_the_same(query, made: str, send: Send):
    send(made, ["a", "b", "c"])
    found = query(startingOffsets="earliest")
    assert found.plan()
    first = found.run()
    send(made, ["d"])
    found.restart()

    assert sorted(found.run()) == sorted(first) == ["a", "b", "c"]
    found.commit()
    assert found.batch() == ["d"]
    assert found.batch() is None


def test_the_first_offset_is_a_constant_and_nothing_new_gives_back_the_very_text(query, made: str, send: Send):
    send(made, ["a"])
    found = query(startingOffsets="earliest")
    assert found.reader.initialOffset() == found.reader.initialOffset() == {"v": 1, "start": "earliest"}
    found.batch()
    text = found.start
    found.restart()

    assert json.dumps(found.reader.latestOffset(json.loads(text), ReadMaxRows(10))) == text
    assert json.dumps(found.reader.latestOffset(json.loads(text), ReadAllAvailable())) == text


def test_queues_that_come_in_mid_stream_are_read_from_their_first_message(query, cluster: LocalCluster, made: str, send: Send):
    send(made, ["a"], queue=0)
    found = query()
    found.batch()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(made, queue_count=6)
    send(made, ["five-1", "five-2"], queue=5)

    assert found.batch() == ["five-1", "five-2"]
    assert found.end()["from"] == {made: {"broker-a": {"4": 0, "5": 0}}}
    send(made, ["five-3"], queue=5)
    assert found.batch() == ["five-3"]
    assert "from" not in found.end()


def test_a_limit_of_messages_is_kept_and_everything_comes_once(query, made: str, send: Send):
    bodies = [str(number) for number in range(50)]
    send(made, bodies)
    found = query(startingOffsets="earliest", maxOffsetsPerTrigger="7")
    batches = []
    while (batch := found.batch()) is not None:
        batches.append(batch)

    assert max(map(len, batches)) == 7
    assert sorted(body for batch in batches for body in batch) == sorted(bodies)


def test_a_limit_of_bytes_is_kept_by_a_sample(query, made: str, send: Send):
    send(made, ["x" * 3_000 for _ in range(60)])
    found = query(startingOffsets="earliest", maxBytesPerTrigger="100k")

    assert 28 <= len(found.batch() or []) <= 33


def test_all_there_is_means_all_whatever_the_limits(query, made: str, send: Send):
    send(made, ["a"] * 20)

    assert len(query(startingOffsets="earliest", maxOffsetsPerTrigger="3").batch(ReadAllAvailable()) or []) == 20


def test_a_batch_waits_for_enough_messages_but_not_too_long(query, made: str, send: Send):
    clock = Clock()
    found = query(clock=clock, minOffsetsPerTrigger="3", maxTriggerDelay="15m")
    found.batch()
    send(made, ["a", "b"])
    assert found.batch() is None
    send(made, ["c"])
    assert sorted(found.batch() or []) == ["a", "b", "c"]
    send(made, ["d"])
    assert found.batch() is None
    clock.sleep(900)
    assert found.batch() == ["d"]


def test_available_now_ends_while_producers_go_on(query, made: str, send: Send):
    send(made, [str(number) for number in range(20)])
    found = query(startingOffsets="earliest", maxOffsetsPerTrigger="6", minOffsetsPerTrigger="50")
    found.reader.prepareForTriggerAvailableNow()
    read = []
    for _ in range(4):
        send(made, ["late"] * 3)
        read += found.batch() or []

    assert sorted(read) == sorted(str(number) for number in range(20))
    assert found.batch() is None
    assert found.reader.reportLatestOffset() != found.end()


def test_it_begins_at_given_offsets_and_refuses_ones_that_do_not_fit(query, made: str, send: Send):
    send(made, ["a", "b", "c"], queue=1)
    at = {"0": -1, "1": 2, "2": -2, "3": 0}
    assert query(startingOffsets=json.dumps({made: {"broker-a": at}})).batch() == ["c"]

    with pytest.raises(UsageError, match=r"queues that do not exist: .* broker-a 9"):
        query(startingOffsets=json.dumps({made: {"broker-a": {**at, "9": 0}}})).plan()
    with pytest.raises(UsageError, match=r"leaves out .* broker-a 3"):
        query(startingOffsets=json.dumps({made: {"broker-a": {"0": 0, "1": 0, "2": 0}}})).plan()
    with pytest.raises(UsageError, match="it ends at 3"):
        query(startingOffsets=json.dumps({made: {"broker-a": {**at, "1": 4}}})).plan()


def test_it_begins_at_a_time(query, made: str, send: Send):
    send(made, ["before"] * 4)
    time.sleep(0.02)
    now = int(time.time() * 1000)
    time.sleep(0.02)
    send(made, ["after"], queue=2)

    with pytest.raises(UsageError, match="startingTimestampStrategy=latest"):
        query(startingTimestamp=str(now)).plan()
    assert query(startingTimestamp=str(now), startingTimestampStrategy="latest").batch() == ["after"]


def test_progress_is_reported_to_a_group_and_a_stream_may_begin_there(query, cluster: LocalCluster, made: str, send: Send):
    send(made, ["a", "b"], queue=0)
    found = query(startingOffsets="earliest", consumerGroup="G_report")
    found.batch()
    assert not found.plan()  # as Spark asks once a batch is done: nothing of it is left to report with the next one
    with Admin(nameserver=cluster.nameserver) as admin:
        progress = admin.consume_stats("G_report", made)[MessageQueue(made, "broker-a", 0)]
    assert (progress.consumer_offset, progress.broker_offset) == (2, 2)

    send(made, ["c"], queue=0)
    assert query(startingOffsets="group", consumerGroup="G_report").batch() == ["c"]
    quiet = query(startingOffsets="earliest", consumerGroup="G_silent", reportOffsets="false")
    assert quiet.batch() == ["a", "b", "c"]
    assert not quiet.plan()
    silent = client_of(found.reader._options).committed("G_silent", made)
    assert set(silent.values()) == {0}  # what a broker says of a group that never told of itself, while the first message is there


def test_a_report_that_fails_does_not_fail_the_query(query, made: str, send: Send, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise HalfmoonError("no")

    send(made, ["a"])
    found = query(startingOffsets="earliest", consumerGroup="G_refused")
    monkeypatch.setattr("halfmoon.client.ranges.Ranges.commit", refuse)

    assert found.batch() == ["a"]
    send(made, ["b"])
    assert found.batch() == ["b"]


def test_only_the_tags_and_the_expression_asked_for_come(query, made: str, send: Send):
    send(made, ["a"], tag="red", properties={"n": "5"})
    send(made, ["b"], tag="blue", properties={"n": "50"})
    send(made, ["c"])

    assert query(startingOffsets="earliest", tags="red || green").batch() == ["a"]
    assert query(startingOffsets="earliest", sqlFilter="n > 10").batch() == ["b"]
    with pytest.raises(UsageError):
        query(sqlFilter="n >")


def test_a_topic_that_matches_the_pattern_later_joins(cluster: LocalCluster, topic: str, send: Send):
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(f"{topic}_a", queue_count=1)
        found = Query(cluster.nameserver, topicPattern=f"{topic}_.*|RMQ.*|SCHEDULE.*")
        found.batch()
        assert list(found.end()["end"]) == [f"{topic}_a"]
        admin.create_topic(f"{topic}_b", queue_count=1)
    send(f"{topic}_b", ["new"])

    assert found.batch() == ["new"]


def test_assigned_queues_alone_are_read(query, made: str, send: Send):
    send(made, ["a", "b", "c", "d"])
    nameserver = query().given["endpoints"]
    found = Query(nameserver, assign=json.dumps({made: {"broker-a": [1, 3]}}), startingOffsets="earliest")

    assert sorted(found.batch() or []) == ["b", "d"]
    with pytest.raises(UsageError, match="assign names queues that do not exist"):
        Query(nameserver, assign=json.dumps({made: {"broker-a": [7]}})).plan()


def recreated(query, cluster: LocalCluster, made: str, send: Send):
    """Two queries, of which only the second lets data be lost, that have read three messages of a topic recreated since."""
    send(made, ["a", "b", "c"], queue=0)
    strict, loose = query(startingOffsets="earliest"), query(startingOffsets="earliest", failOnDataLoss="false")
    strict.batch(), loose.batch()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(made)
        admin.create_topic(made, queue_count=4)
    return strict, loose


def test_a_recreated_topic_is_a_loss_and_is_read_from_its_beginning_where_that_is_let(
    query, cluster: LocalCluster, made: str, send: Send
):
    strict, loose = recreated(query, cluster, made, send)
    send(made, ["again"], queue=0)

    with pytest.raises(UsageError, match=rf"created again since this query read it: {made} at broker-a.*failOnDataLoss=false"):
        strict.plan()
    assert loose.batch() == ["again"]
    assert loose.batch() is None


def test_a_topic_recreated_and_filled_beyond_the_old_offset_loses_no_message(query, cluster: LocalCluster, made: str, send: Send):
    strict, loose = recreated(query, cluster, made, send)
    again = [f"again-{number}" for number in range(8)]
    send(made, again, queue=0)

    with pytest.raises(UsageError, match="created again since this query read it"):
        strict.plan()
    assert sorted(loose.batch()) == again
    assert loose.batch() is None


def test_a_restarted_broker_and_a_changed_topic_are_no_new_topic(query, cluster: LocalCluster, made: str, send: Send):
    send(made, ["a", "b", "c"], queue=0)
    strict = query(startingOffsets="earliest")
    strict.batch()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(made, queue_count=6)
    cluster.kill()
    cluster.restart()
    time.sleep(LOOK_S)  # a connection that was idle for so long is looked at before it is used
    send(made, ["d"], queue=0)

    assert strict.batch() == ["d"]


def test_messages_that_go_while_a_batch_waits_to_be_run_are_a_loss_or_passed_over(
    query, cluster: LocalCluster, made: str, send: Send
):
    send(made, ["a", "b", "c"], queue=0)
    strict, loose = query(startingOffsets="earliest"), query(startingOffsets="earliest", failOnDataLoss="false")
    assert strict.plan()
    assert loose.plan()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(made)
        admin.create_topic(made, queue_count=4)
    send(made, ["again"], queue=0)

    with pytest.raises(DataLoss, match="failOnDataLoss=false"):
        strict.run()
    assert loose.run() == []
    loose.commit()
    assert loose.batch() == ["again"]
    assert loose.batch() is None


def test_a_deleted_topic_is_waited_for_and_then_the_query_fails_with_what_to_do(
    query, cluster: LocalCluster, made: str, send: Send
):
    clock = Clock()
    found = query(clock=clock, retries="1")
    found.batch()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(made)
    assert not found.plan()
    clock.sleep(stream.OUTAGE_S)

    with pytest.raises(UsageError, match="is the topic deleted"):
        found.plan()


def test_a_topic_that_is_deleted_while_a_batch_waits_to_be_run_fails_the_query_with_what_to_do(
    query, cluster: LocalCluster, made: str, send: Send
):
    send(made, ["a"], queue=0)
    found = query(startingOffsets="earliest", failOnDataLoss="false", retries="1")
    assert found.plan()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.delete_topic(made)

        with pytest.raises(UsageError, match=rf"topic {made} is not there any more.*is it deleted\? Created again"):
            found.run()
        admin.create_topic(made, queue_count=4)
    send(made, ["again"], queue=1)

    assert found.run() == []
    found.commit()
    assert found.batch() == ["again"]


def test_a_topic_that_never_was_is_refused_at_once(cluster: LocalCluster, topic: str):
    with pytest.raises(NoRoute, match=topic):
        Query(cluster.nameserver, topic=topic, retries="0").plan()


def test_a_broker_that_is_restarted_is_waited_for(tmp_path, topic: str):
    with LocalCluster(tmp_path / "store") as own:
        with Admin(nameserver=own.nameserver) as admin:
            admin.create_topic(topic, queue_count=1)
        with Producer(group="P", nameserver=own.nameserver) as producer:
            producer.send(Message(topic, b"before"))
            found = Query(own.nameserver, topic=topic, startingOffsets="earliest")
            assert found.batch() == ["before"]
            producer.send(Message(topic, b"after"))
        own.stop()
        again = threading.Timer(1.0, own.start)
        again.start()
        batches = [found.batch() for _ in range(40) if not again.join(0)]
        again.join()

    assert [batch for batch in batches if batch] == [["after"]]


def test_a_broker_that_is_gone_when_a_batch_is_read_fails_the_task_with_what_to_do(tmp_path, topic: str):
    with LocalCluster(tmp_path / "store") as own:
        with Admin(nameserver=own.nameserver) as admin, Producer(group="P", nameserver=own.nameserver) as producer:
            admin.create_topic(topic, queue_count=1)
            producer.send(Message(topic, b"a"))
        found = Query(own.nameserver, topic=topic, startingOffsets="earliest", retries="1")
        assert found.plan()
        own.stop()

        with pytest.raises(NetworkError) as raised:
            found.run()
        own.start()

        assert "Started again, a stream continues where it was" in "".join(raised.value.__notes__)
        assert "after 1 retries; the option retries makes it wait longer" in "".join(raised.value.__notes__)
        assert found.run() == ["a"]


def test_a_batch_is_shared_out_the_same_way_by_messages_when_no_broker_is_there_to_ask(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_HALFMOON_CORES", "2")
    found = Query("127.0.0.1:1", topic="orders", retries="0", requestTimeout="100")
    start, end = (
        {"v": 1, "end": {"orders": {"a": {"0": one, "1": two, "2": three}}}} for one, two, three in [(0, 5, 0), (1500, 905, 600)]
    )
    first = found.reader.partitions(start, end)
    found.restart()

    assert [part.ranges for part in found.reader.partitions(start, end)] == [part.ranges for part in first]
    assert [sum(each.count for each in part.ranges) for part in first] == [1500, 1500]


def test_a_checkpoint_of_another_source_is_refused(query):
    found = query()
    with pytest.raises(UsageError, match="checkpoint location of its own"):
        found.reader.latestOffset({"orders": {"0": 5}}, ReadMaxRows(1))


def test_ranges_come_as_rows_for_who_reads_them_itself(query, made: str, send: Send):
    send(made, ["a", "b"], queue=3)
    found = query(startingOffsets="earliest", emit="ranges")
    assert found.plan()
    (partition,) = found.reader.partitions(json.loads(found.start), found.end())
    (batch,) = found.reader.read(partition)

    place = {"topic": made, "brokerName": "broker-a", "queueId": 3, "beginOffset": 0, "endOffset": 2}
    assert batch.to_pylist() == [{**place, "topicBirthMs": found.end()["born"][made]["broker-a"]}]
