"""A replay against a running broker: copies and their order, a rate, what was cut off, a second run, tables, refusals."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from halfmoon import Admin
from halfmoon.client.batches import BatchName, BatchTransactions
from halfmoon.errors import NoRoute, UsageError
from halfmoon.spark.cluster import Cluster
from halfmoon.spark.jobs import replay as replay_module
from halfmoon.spark.jobs.reading import ranges_of
from halfmoon.spark.jobs.replay import LAST, ReplayResult, replay, unsent
from halfmoon.spark.lake import schemas
from halfmoon.spark.lake.files import layout_for
from halfmoon.spark.lake.ingest import ingest
from halfmoon.spark.lake.table import LakeTable
from halfmoon.spark.sink.exactly_once import prepare
from halfmoon.spark.sink.options import sink_options
from halfmoon.wire.record import decode_records
from tests.spark.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def made(cluster, topic):
    """A topic with two queues and its target with three."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(topic, queue_count=2)
        admin.create_topic(f"{topic}_again", queue_count=3)
    return topic, f"{topic}_again"


@pytest.fixture
def held(place):
    """``held(topic)`` gives what consumers of a topic see, queue by queue in order."""

    def look(topic):
        client = place.client()
        return [
            message
            for (broker, queue), ends in sorted(client.bounds(topic).items())
            for raw in client.read(broker, topic, queue, *ends)
            for message in decode_records(raw)
        ]

    return look


def bodies(messages):
    return sorted(one.body.decode() for one in messages)


def test_what_is_chosen_is_sent_once_with_what_users_gave_it_in_the_order_of_its_queue(spark, place, made, send, held):
    source, target = made
    send(source, [f"a{i}" for i in range(5)], queue=0, tag="paid", keys=["k1", "k2"], properties={"shop": "berlin"})
    send(source, [f"b{i}" for i in range(5)], queue=1, tag="open")
    told = []

    found = replay(spark, place, source, target, id=f"id-{source}", where="body != 'b2'", on_progress=lambda *one: told.append(one))
    again = replay(spark, place, source, target, id=f"id-{source}")

    there = held(target)
    assert (found, again) == (ReplayResult(9, 1), ReplayResult(0, 0, complete_before=True))
    assert told == [(0, 9), (9, 9)]
    for letter, wanted in (("a", ["a0", "a1", "a2", "a3", "a4"]), ("b", ["b0", "b1", "b3", "b4"])):
        mine = [one for one in there if one.body.decode()[0] == letter]
        assert [one.body.decode() for one in mine] == wanted
        assert len({one.queue_id for one in mine}) == 1
    first = next(one for one in there if one.body == b"a3")
    assert (first.tag, sorted(first.keys), first.properties["shop"]) == ("paid", ["k1", "k2"], "berlin")
    assert (first.properties["REPLAY_ID"], first.properties["REPLAY_OF"]) == (f"id-{source}", f"{source}/broker-a/0/3")


def test_a_rate_is_kept_batch_by_batch_in_the_order_of_storing(spark, place, made, send, held):
    source, target = made
    send(source, [f"{i}" for i in range(7)])
    waits, told = [], []

    found = replay(
        spark, place, source, target, id=f"id-{source}", rate=3.0, wait=waits.append,
        on_progress=lambda *one: told.append((*one, bodies(held(target)))),
    )  # fmt: skip

    assert found == ReplayResult(7, 3)
    assert told == [(3, 7, ["0", "1", "2"]), (6, 7, ["0", "1", "2", "3", "4", "5"]), (7, 7, [str(i) for i in range(7)])]
    assert (len(waits), waits[0]) == (3, 0.0)
    assert all(0 <= wait <= 1.0 for wait in waits[1:])


class CutOff(Exception):
    """The process dies."""


def dies_at(count):
    """Return a ``wait`` at whose so many-th call the process dies."""
    waits = []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == count:
            raise CutOff

    return wait


def test_a_replay_that_was_cut_off_goes_on_and_sends_nothing_twice(spark, place, made, send, held):
    source, target = made
    send(source, [f"{i}" for i in range(8)])
    with pytest.raises(CutOff):
        replay(spark, place, source, target, id=f"id-{source}", rate=3.0, wait=dies_at(3))
    assert bodies(held(target)) == ["0", "1", "2", "3", "4", "5"]
    send(source, ["late"])
    to_do = replay(spark, place, source, target, id=f"id-{source}", dry_run=True)
    found = replay(spark, place, source, target, id=f"id-{source}", rate=3.0)

    assert (to_do, found) == (ReplayResult(3, 0), ReplayResult(3, 1))
    assert bodies(held(target)) == [*"01234567", "late"]
    assert replay(spark, place, source, target, id=f"id-{source}", rate=3.0).complete_before


def test_what_expired_behind_the_last_message_that_was_sent_is_named_by_queue():
    ranges = {("t", "a", 0): (7, 9), ("t", "a", 1): (6, 9), ("t", "a", 2): (3, 9), ("t", "a", 3): (0, 9)}

    assert unsent(ranges, {"t/a/0": 4, "t/a/1": 5}) == (["t a queue 0: offsets 5 to 6"], ["t a queue 2 begins at 3"])


def test_a_replay_that_goes_on_after_its_source_expired_says_what_it_never_sent(
    spark, place, made, send, held, monkeypatch, caplog
):
    source, target = made
    send(source, [f"{i}" for i in range(8)], queue=0)
    with pytest.raises(CutOff):
        replay(spark, place, source, target, id=f"id-{source}", rate=3.0, wait=dies_at(2))

    def expired(cluster, topics, **more):
        found = ranges_of(cluster, topics, **more)
        return {queue: (max(low, 5), high) if queue[0] == source and high else (low, high) for queue, (low, high) in found.items()}

    monkeypatch.setattr(replay_module, "ranges_of", expired)  # as if retention had removed the first five
    with pytest.raises(UsageError, match=f"{source} broker-a queue 0: offsets 3 to 4"):
        replay(spark, place, source, target, id=f"id-{source}", rate=3.0)
    loose = Cluster(place.endpoints, {**place.options, "failOnDataLoss": "false"})

    assert replay(spark, loose, source, target, id=f"id-{source}", rate=3.0) == ReplayResult(3, 1)
    assert f"{source} broker-a queue 0: offsets 3 to 4" in caplog.text
    assert bodies(held(target)) == list("012567")


@pytest.fixture
def decided(cluster, made):
    """``decided(number, bodies)`` decides a batch with the first messages of queue 0, which a dead driver then shows to nobody."""
    source, target = made

    def decide(number, bodies):
        options = sink_options({"endpoints": cluster.nameserver, "topic": target, "delivery": "exactly-once"})
        of = [{"REPLAY_ID": f"id-{source}", "REPLAY_OF": f"{source}/broker-a/0/{offset}"} for offset in range(len(bodies))]
        rows = pa.table({"body": bodies, "properties": pa.array(of, pa.map_(pa.string(), pa.string()))})
        with BatchTransactions(nameserver=cluster.nameserver) as transactions:
            name = BatchName(f"id-{source}", number)
            prepare(transactions, options, name, 1, rows.to_batches())  # an attempt that no decision names
            said = prepare(transactions, options, name, 0, rows.to_batches())
            (broker,), (coordinator,) = said.counts, said.coordinators
            attempts = {said.attempt: said.parts()[broker]}
            assert transactions.vote(said.batch, broker, coordinator, attempts) is None
            assert not transactions.decide(said.batch, coordinator, {broker: attempts}, "").already

    return decide


DECIDED = [(0, ["a", "b"], ReplayResult(1, 1)), (LAST, ["a", "b", "c"], ReplayResult(0, 0, complete_before=True))]


@pytest.mark.parametrize(("number", "bodies_decided", "wanted"), DECIDED)
def test_what_was_decided_and_not_shown_when_the_driver_died_is_shown_first_and_not_sent_again(
    spark, place, made, send, held, decided, number, bodies_decided, wanted
):
    source, target = made
    send(source, ["a", "b", "c"], queue=0)
    decided(number, bodies_decided)
    assert held(target) == []

    found = replay(spark, place, source, target, id=f"id-{source}")

    assert found == wanted
    assert bodies(held(target)) == ["a", "b", "c"]


@pytest.mark.parametrize(("number", "bodies_decided", "wanted"), DECIDED)
def test_a_dry_run_shows_nothing_that_was_decided_and_does_not_count_it(
    spark, cluster, place, made, send, held, decided, number, bodies_decided, wanted
):
    source, target = made
    send(source, ["a", "b", "c"], queue=0)
    decided(number, bodies_decided)

    def known():
        with Admin(nameserver=cluster.nameserver) as admin:
            (one,) = (one for broker in admin.batches(f"id-{source}") for one in broker.ids)
        return one.applied, one.decided, one.aborted, one.waiting, {(each.attempt, each.state) for each in one.attempts}

    before = known()
    found = replay(spark, place, source, target, id=f"id-{source}", dry_run=True)

    assert (found.rows, found.batches, found.complete_before) == (wanted.rows, 0, wanted.complete_before)
    assert (held(target), known()) == ([], before)
    assert replay(spark, place, source, target, id=f"id-{source}") == wanted


def test_a_table_is_replayed_from_a_time_on_and_its_copies_name_their_messages(spark, cluster, place, made, send, held, tmp_path):
    source, target = made
    send(source, ["old"], queue=0)
    table, layout = LakeTable(tmp_path / "lake", kind="delta"), layout_for(tmp_path / "lake")
    until(lambda: time.time_ns() // 1_000_000 > held(source)[0].store_ms)
    since = time.time_ns() // 1_000_000
    send(source, ["new", "other"], queue=1)
    ingest(spark, table, layout, {"endpoints": cluster.nameserver, "topic": source})

    found = replay(spark, place, table, target, id=f"id-{source}", since_ms=since, where="cast(body as string) like 'n%'")

    [one] = held(target)
    assert (found, one.body, one.properties["REPLAY_OF"]) == (ReplayResult(1, 1), b"new", f"{source}/broker-a/1/0")


def test_a_replay_of_nothing_leaves_its_id_free(spark, place, made, send, held):
    source, target = made
    send(source, ["a"])

    assert replay(spark, place, source, target, id=f"id-{source}", where="body = 'b'") == ReplayResult(0, 0)
    assert replay(spark, place, source, target, id=f"id-{source}", where="body = 'b'", rate=1.0) == ReplayResult(0, 0)
    assert replay(spark, place, source, target, id=f"id-{source}") == ReplayResult(1, 1)


def test_what_cannot_be_replayed_is_refused(spark, place, made, send, tmp_path, cluster):
    source, target = made
    send(source, ['{"n": 1}'])
    table = LakeTable(tmp_path / "lake", kind="delta")
    layout = layout_for(tmp_path / "lake", decode="json", schema=schemas.from_ddl("n bigint"))
    ingest(spark, table, layout, {"endpoints": cluster.nameserver, "topic": source})

    with pytest.raises(NoRoute):
        replay(spark, place, source, f"{target}_no", id="x")
    with pytest.raises(UsageError, match="there is no topic"):
        replay(spark, place, f"{source}_no", target, id="x")
    with pytest.raises(UsageError, match="to itself"):
        replay(spark, place, source, source, id="x")
    with pytest.raises(UsageError, match="the table has no body"):
        replay(spark, place, table, target, id="x")
