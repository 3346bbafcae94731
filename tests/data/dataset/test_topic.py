"""A topic as a dataset: every filter gives what a full scan filtered afterwards gives; DuckDB and Polars scan it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import halfmoon.data as hd
from halfmoon import Admin, Message, Producer
from halfmoon.data.dataset import narrowing, topic
from halfmoon.data.rows import COLUMNS
from halfmoon.errors import UsageError
from halfmoon.testing.local import LocalCluster
from tests.data.dataset.test_filters import filters

pytestmark = pytest.mark.slow

TOPIC, COUNT = "orders", 40
NAMES = ["tags", "queueId", "queueOffset", "storeTimestamp", "body"]


@pytest.fixture(scope="module", autouse=True)
def filled(cluster: LocalCluster) -> None:
    """Send messages to two queues: tags a, b and none in turn, some of them milliseconds apart."""
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic(TOPIC, queue_count=2)
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        queues = producer.queues(TOPIC)
        for number in range(COUNT):
            message = Message(TOPIC, b'{"n": %d}' % number, tag=["a", "b", ""][number % 3], properties={"big": str(number > 30)})
            producer.send(message, queue=queues[number // 2 % 2])
            time.sleep(0.002)


@pytest.fixture(params=["master", "files"], scope="module")
def read_from(request: pytest.FixtureRequest, cluster: LocalCluster) -> str:
    return "master" if request.param == "master" else f"files:{cluster.data}"


@pytest.fixture(scope="module")
def small_parts() -> Iterator[None]:
    """Read in many parts, and take clocks as right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic, "CHUNK_BYTES", 1_000)
        patch.setattr("halfmoon.data.plans.WEIGHED_MIN", 1)
        patch.setattr(narrowing, "SKEW_MS", 0)
        yield


def dataset(cluster: LocalCluster, **options: Any) -> hd.TopicDataset:
    return hd.scan(TOPIC, nameserver=cluster.nameserver, **options)


@pytest.fixture(scope="module")
def whole(cluster: LocalCluster) -> pa.Table:
    return dataset(cluster, read_from="master", columns=NAMES).to_table()


def times(whole: pa.Table) -> tuple[Any, timedelta]:
    stored = sorted(whole.column("storeTimestamp").to_pylist())
    return stored[0], (stored[-1] - stored[0]) / 9


def by_place(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["queueId"], row["queueOffset"]))


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_filter_gives_what_a_full_scan_filtered_afterwards_gives(
    cluster: LocalCluster, read_from: str, whole: pa.Table, small_parts: None, data: st.DataObject
):
    expression = data.draw(filters(*times(whole)))
    found = dataset(cluster, read_from=read_from, columns=NAMES, fetch_bytes=1_024)

    assert by_place(found.to_table(filter=expression)) == by_place(whole.filter(expression))
    rows = pa.Table.from_batches(found.to_batches(["body"], expression), pa.schema([("body", pa.binary())]))
    assert sorted(rows.column("body").to_pylist()) == sorted(whole.filter(expression).column("body").to_pylist())


def test_all_columns_come_in_the_order_of_offsets_within_each_queue(cluster: LocalCluster, read_from: str, small_parts: None):
    table = dataset(cluster, read_from=read_from, fetch_bytes=1_024).to_table()

    assert table.schema.names == list(COLUMNS)
    assert table.num_rows == COUNT
    for queue in (0, 1):
        offsets = table.filter(pc.field("queueId") == queue).column("queueOffset").to_pylist()
        assert offsets == list(range(COUNT // 2))


def test_brokers_send_only_messages_of_the_tags_that_a_filter_names(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    taken: list[int] = []
    real = topic.rows

    def rows(reader: Any, options: Any, scan: Any, part: Any) -> Iterator[pa.RecordBatch]:
        for batch in real(reader, options, scan, part):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(topic, "rows", rows)
    found = dataset(cluster, read_from="master").to_table(filter=(pc.field("tags") == "a") & (pc.field("queueOffset") < 4))

    assert sum(taken) == found.num_rows == 3


def test_arguments_select_as_filters_do_and_decoded_bodies_are_columns(cluster: LocalCluster, whole: pa.Table):
    start, step = times(whole)
    at = start + 4 * step

    def numbers(**options: Any) -> list[int]:
        return sorted(hd.table(TOPIC, nameserver=cluster.nameserver, decode="json", **options).column("n").to_pylist())

    assert numbers() == list(range(COUNT))
    assert numbers(tags="b") == list(range(1, COUNT, 3))
    assert numbers(sql="big = 'True'") == list(range(31, COUNT))
    early, late = numbers(until=at), numbers(since=at)
    assert early + late == list(range(COUNT))
    assert 0 < len(early) < COUNT
    assert hd.table(TOPIC, nameserver=cluster.nameserver, decode="json", columns=["n", "tags"]).schema.names == ["n", "tags"]
    decoded = dataset(cluster, decode="json")
    assert decoded.schema.names == [*COLUMNS[:-1], "n"]
    assert decoded.to_table(["n"], pc.field("n") > 37).column("n").to_pylist() == [38, 39]


def test_expressions_heads_counts_and_streams_are_answered_as_by_any_dataset(cluster: LocalCluster):
    found = dataset(cluster)
    twice = found.to_table({"twice": pc.field("queueOffset") * 2}, pc.field("queueOffset") == 3)

    assert twice.to_pydict() == {"twice": [6, 6]}
    assert found.count_rows() == COUNT
    assert found.count_rows(pc.field("tags") == "a") == 14
    assert found.head(5, ["queueOffset"]).column("queueOffset").to_pylist() == [0, 1, 2, 3, 4]
    assert found.take([3], ["queueOffset"]).column("queueOffset").to_pylist() == [3]
    assert pa.RecordBatchReader.from_stream(found).read_all().num_rows == COUNT
    assert dataset(cluster, columns=["tags"]).to_table([]).num_rows == COUNT
    assert repr(found) == "<topic orders>"


def test_duckdb_scans_it_as_a_python_variable(cluster: LocalCluster):
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    orders = dataset(cluster)

    rows = duckdb.sql("select tags, count(*) from orders where tags in ('a', 'b') and queueOffset >= 1 group by 1 order by 1")
    assert rows.fetchall() == [("a", 13), ("b", 13)]
    assert duckdb.sql("select count(*) from orders").fetchall() == [(COUNT,)]
    recent = "select count(*) from orders where storeTimestamp > now() - interval 1 hour and tags is null"
    assert duckdb.sql(recent).fetchall() == [(13,)]
    assert duckdb.sql("select distinct properties['big'] from orders order by 1").fetchall() == [("False",), ("True",)]
    assert orders.count_rows() == COUNT


def test_polars_scans_it_as_a_dataset(cluster: LocalCluster):
    pl = pytest.importorskip("polars", reason="Polars is not installed")
    orders = dataset(cluster)

    lazy = pl.scan_pyarrow_dataset(orders)
    assert lazy.filter(pl.col("tags") == "a").select(pl.len()).collect().item() == 14
    assert lazy.filter(pl.col("tags").is_in(["a", "b"]) & (pl.col("queueOffset") < 2)).collect().height == 3
    assert lazy.head(3).collect().height == 3
    assert pl.DataFrame(orders).height == COUNT


def test_an_abandoned_scan_leaves_nothing_behind(cluster: LocalCluster, small_parts: None):
    for _ in range(20):
        next(iter(dataset(cluster, read_from="master", fetch_bytes=1_024).to_batches()))

    assert dataset(cluster, read_from="master").count_rows() == COUNT


def test_following_yields_what_is_there_and_then_what_comes(cluster: LocalCluster):
    following = dataset(cluster, follow=True, columns=["body", "queueOffset"], since="1h").to_batches()
    bodies = list[bytes]()
    while len(bodies) < COUNT:
        bodies += next(following).column("body").to_pylist()
    with Admin(nameserver=cluster.nameserver) as admin:
        admin.create_topic("followed", queue_count=1)
    other = hd.scan("followed", nameserver=cluster.nameserver, follow=True, columns=["body"]).to_batches()
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        for body in (b"1", b"2", b"3"):
            producer.send(Message("followed", body))

    found = chain.from_iterable(batch.column("body").to_pylist() for batch in other)
    assert sorted(bodies) == sorted(b'{"n": %d}' % number for number in range(COUNT))
    assert [next(found) for _ in range(3)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (lambda orders: orders.to_table(["nothing"]), "there is no column 'nothing'"),
        (lambda orders: orders.to_table(["nothing"], pc.field("tags") == "a"), "there is no column 'nothing'"),
        (lambda orders: orders.sort_by("tags"), "a topic can only be scanned"),
        (lambda orders: orders.get_fragments(), "a topic can only be scanned"),
        (lambda orders: orders.partition_expression, "a topic can only be scanned"),
        (lambda orders: orders.filter(pc.field("tags") == "a"), "a topic can only be scanned"),
    ],
)
def test_what_a_topic_cannot_do_is_refused(cluster: LocalCluster, action: Any, says: str):
    with pytest.raises(UsageError, match=says):
        action(dataset(cluster))


@pytest.mark.parametrize(
    "use", [lambda found: found.to_table(), lambda found: found.to_batches(["tags"]), lambda found: found.head(1)]
)
def test_a_scan_without_end_is_only_iterated(cluster: LocalCluster, use: Any):
    with pytest.raises(UsageError, match="follow=True"):
        use(dataset(cluster, follow=True))
