"""`write`: all rows of a table or none, in order, and once for an id, however often it runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import halfmoon.data as hd
from halfmoon.client.batches import BatchTransactions
from halfmoon.data import writing
from halfmoon.data.sending.transaction import NotDecided
from halfmoon.errors import MessageIllegal, NoRoute, UsageError
from halfmoon.testing.local import LocalCluster

pytestmark = pytest.mark.slow


def rows(count: int) -> pa.Table:
    bodies = [b"%d" % number for number in range(count)]
    numbers = range(count)
    return pa.table({
        "body": bodies, "tags": [f"t{number % 2}" for number in numbers], "keys": [f"k{number}" for number in numbers],
        "properties": pa.array([[("n", str(number))] for number in numbers], pa.map_(pa.string(), pa.string())),
    })  # fmt: skip


def read(cluster: LocalCluster, topic: str) -> list[dict[str, Any]]:
    return hd.table(topic, nameserver=cluster.nameserver, columns=["body", "tags", "keys", "properties"]).to_pylist()


def test_rows_come_as_messages_with_their_columns_in_order(cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writing, "BATCH_ROWS", 7)

    assert hd.write(rows(30), topic, nameserver=cluster.nameserver) == 30
    found = read(cluster, topic)
    assert [row["body"] for row in found] == [b"%d" % number for number in range(30)]
    assert [(row["tags"], row["keys"]) for row in found] == [(f"t{number % 2}", f"k{number}") for number in range(30)]
    assert [dict(row["properties"])["n"] for row in found] == [str(number) for number in range(30)]


def test_nothing_is_visible_of_a_table_with_a_row_that_cannot_be_sent(cluster: LocalCluster, topic: str):
    wrong = pa.table({"body": [b"x"] * 50_000 + [bytes(5 << 20)]})

    with pytest.raises(MessageIllegal):
        hd.write(wrong, topic, nameserver=cluster.nameserver)
    assert read(cluster, topic) == []


def test_nothing_is_visible_of_a_stream_that_fails_half_way(cluster: LocalCluster, topic: str):
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(10).to_batches()
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        hd.write(pa.RecordBatchReader.from_batches(rows(1).schema, batches()), topic, nameserver=cluster.nameserver)
    assert read(cluster, topic) == []


def test_nothing_is_visible_where_a_broker_votes_no(cluster: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(BatchTransactions, "vote", lambda *_: "not whole")

    with pytest.raises(NotDecided, match="does not hold it whole"):
        hd.write(rows(10), topic, nameserver=cluster.nameserver)
    assert read(cluster, topic) == []


def test_a_repeat_with_the_same_id_writes_nothing_and_other_rows_are_an_error(cluster: LocalCluster, topic: str):
    given: Any = {"nameserver": cluster.nameserver, "transactional_id": f"job-{topic}"}
    assert [hd.write(rows(5), topic, **given) for _ in range(2)] == [5, 5]
    assert len(read(cluster, topic)) == 5
    assert hd.write(rows(2), topic, batch_number=1, **given) == 2

    with pytest.raises(UsageError, match="other rows"):
        hd.write(rows(3), topic, batch_number=1, **given)
    assert len(read(cluster, topic)) == 7


def test_a_topic_can_be_copied_with_a_warning_about_what_is_no_part_of_a_message(
    cluster: LocalCluster, topic: str, caplog: pytest.LogCaptureFixture
):
    hd.write(rows(4), topic, nameserver=cluster.nameserver)
    copied = hd.scan(topic, nameserver=cluster.nameserver, columns=["body", "tags", "queueOffset"])

    assert hd.write(copied, topic, nameserver=cluster.nameserver) == 4
    assert [row["body"] for row in read(cluster, topic)] == [b"0", b"1", b"2", b"3"] * 2
    assert "columns left out, which are not part of a message: queueOffset" in caplog.messages


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.large_binary()])
def test_texts_and_bytes_of_other_libraries_are_taken(cluster: LocalCluster, topic: str, kind: pa.DataType):
    table = pa.table({"body": pa.array(["x", "y"]).cast(pa.binary() if kind == pa.large_binary() else pa.string()).cast(kind)})

    assert hd.write(table.to_batches()[0], topic, nameserver=cluster.nameserver) == 2
    assert [row["body"] for row in read(cluster, topic)] == [b"x", b"y"]


def test_a_frame_of_polars_is_a_table(cluster: LocalCluster, topic: str):
    pl = pytest.importorskip("polars", reason="Polars is not installed")

    assert hd.write(pl.DataFrame({"body": ["a", "b"], "tags": ["t", None]}), topic, nameserver=cluster.nameserver) == 2
    assert [row["tags"] for row in read(cluster, topic)] == ["t", None]


def test_an_empty_table_writes_nothing(cluster: LocalCluster, topic: str):
    assert hd.write(rows(1).slice(1), topic, nameserver=cluster.nameserver) == 0


@pytest.mark.parametrize(
    ("table", "given", "says"),
    [
        (pa.table({"tags": ["a"]}), {}, "no column 'body'"),
        (pa.table({"body": [1]}), {}, "'body' is int64"),
        ({"body": ["x"]}, {}, "a dict is no table"),
        (pa.table({"body": ["x"]}), {"batch_number": 1}, "needs transactional_id"),
        (pa.table({"body": ["x"]}), {"topic": ""}, "the rows have no topic"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_sent(table: Any, given: dict[str, Any], says: str):
    with pytest.raises(UsageError, match=says):
        hd.write(table, **{"topic": "orders", "nameserver": "127.0.0.1:1", **given})


def test_a_topic_that_does_not_exist_is_an_error(cluster: LocalCluster):
    with pytest.raises((UsageError, NoRoute), match="nowhere"):
        hd.write(rows(1), "nowhere", nameserver=cluster.nameserver, retries_max=0)
