"""`halfmoon msg dump`: of a stopped store and of a running cluster, filtered, damaged, as JSON lines and as Arrow."""

from __future__ import annotations

import base64
import operator
import os
import subprocess
import sys

import pytest

from halfmoon import Message, Producer
from halfmoon.testing.local import LocalCluster

BINARY = b"\xff\x00\xfe"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A stopped store: ten orders with tags a and b and a property, one of them binary, one compressed, and another topic."""
    directory = tmp_path_factory.mktemp("dump") / "store"
    with LocalCluster(directory) as cluster, Producer(group="P", nameserver=cluster.nameserver) as producer:
        for number in range(10):
            body = BINARY if number == 3 else b"long " * 2000 if number == 4 else f"body {number}".encode()
            properties = {"amount": str(number)}
            producer.send(Message("orders", body, tag="ab"[number % 2], keys=[f"k{number}"], properties=properties))
        producer.send(Message("others", b"other"))
    return directory


def test_every_message_of_a_topic_is_a_line_with_its_body_and_how_that_is_written(run_alone, store):
    ran = run_alone("msg", "dump", store, "--topic", "orders")

    assert (ran.code, ran.err) == (0, "")
    lines = ran.lines()
    assert [line["keys"] for line in lines] == [[f"k{number}"] for number in range(10)]
    assert [line["body_encoding"] for line in lines] == ["text"] * 3 + ["base64"] + ["text"] * 6
    assert base64.b64decode(lines[3]["body"]) == BINARY
    assert lines[4]["body"] == "long " * 2000
    assert lines[5]["body"] == "body 5"


def test_without_a_topic_all_topics_of_users_come_and_with_all_the_others_too(run_alone, store):
    topics = {line["topic"] for line in run_alone("msg", "dump", store).lines()}
    assert topics == {"orders", "others"}
    assert {line["topic"] for line in run_alone("msg", "dump", store, "--all").lines()} >= topics


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (["--filter", "a"], [0, 2, 4, 6, 8]),
        (["--filter", "a || b"], list(range(10))),
        (["--sql", "amount > 6"], [7, 8, 9]),
        (["--from", "1h"], list(range(10))),
        (["--to", "1h"], []),
        (["--from", "1h", "--to", "0"], []),
    ],
)
def test_filters_and_times(run_alone, store, options, numbers):
    lines = run_alone("msg", "dump", store, "--topic", "orders", *options).lines()
    assert [int(line["properties"]["amount"]) for line in lines] == numbers


def test_a_span_of_time_is_half_open(run_alone, store):
    lines = run_alone("msg", "dump", store, "--topic", "orders").lines()
    first, last = lines[0]["store_ms"], lines[-1]["store_ms"]
    found = run_alone("msg", "dump", store, "--topic", "orders", "--from", first, "--to", last).lines()
    assert found == [line for line in lines if first <= line["store_ms"] < last]


def test_an_arrow_file_is_what_it_was_where_a_dump_fails(run_alone, store, tmp_path):
    pytest.importorskip("pyarrow")
    kept = tmp_path / "orders.arrow"
    kept.write_bytes(b"kept")
    assert run_alone("msg", "dump", tmp_path, "--arrow", kept).code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["orders.arrow"]
    assert kept.read_bytes() == b"kept"
    kept.chmod(0o640)
    assert run_alone("msg", "dump", store, "--arrow", kept).code == 0
    assert kept.read_bytes().startswith(b"ARROW1")
    assert kept.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["orders.arrow"]


def test_an_arrow_file_has_the_same_messages(run_alone, store, tmp_path):
    pa = pytest.importorskip("pyarrow")
    ran = run_alone("msg", "dump", store, "--topic", "orders", "--arrow", tmp_path / "orders.arrow")

    assert (ran.code, ran.out) == (0, "")
    with pa.OSFile(str(tmp_path / "orders.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    lines = run_alone("msg", "dump", store, "--topic", "orders").lines()
    assert table.column("msgId").to_pylist() == [line["msg_id"] for line in lines]
    assert table.column("body").to_pylist()[3:5] == [BINARY, b"long " * 2000]
    assert dict(table.column("properties")[7].as_py())["amount"] == "7"
    assert [round(at.timestamp() * 1000) for at in table.column("storeTimestamp").to_pylist()] == [
        line["store_ms"] for line in lines
    ]


def test_an_arrow_file_of_a_cluster_has_the_rows_and_columns_of_halfmoon_data(run, cluster, topic, tmp_path):
    pa = pytest.importorskip("pyarrow")
    import halfmoon.data

    for number in range(3):
        run("produce", topic, "--tag", "paid", "--key", "k1", "--key", "k2", f"body {number}")
    run("produce", topic, "plain")
    assert run("msg", "dump", "--topic", topic, "--nameserver", cluster.nameserver, "--arrow", tmp_path / "rows.arrow").code == 0

    with pa.OSFile(str(tmp_path / "rows.arrow")) as file:
        dumped = pa.ipc.open_file(file).read_all()
    read = halfmoon.data.table(topic, nameserver=cluster.nameserver)
    assert dumped.schema == read.schema
    key = operator.itemgetter("queueId", "queueOffset")
    of_pulls = ("MIN_OFFSET", "MAX_OFFSET")  # a pull adds them
    rows = [
        [{**row, "properties": {k: v for k, v in row["properties"] if k not in of_pulls}} for row in table.to_pylist()]
        for table in (dumped, read)
    ]
    assert sorted(rows[0], key=key) == sorted(rows[1], key=key)


def test_damage_is_named_on_standard_error_and_the_rest_comes(run_alone, store, tmp_path):
    copy = tmp_path / "copy"
    assert run_alone("backup", store, copy).code == 0
    log = next((copy / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"body 6")] ^= 1
    log.write_bytes(data)

    ran = run_alone("msg", "dump", copy, "--topic", "orders")
    assert ran.code == 1
    assert "the body's CRC is wrong" in ran.err
    assert [line["keys"] for line in ran.lines()] == [[f"k{number}"] for number in range(10) if number != 6]


def test_a_running_cluster_is_read_by_its_name_server(run_alone, tmp_path):
    with LocalCluster(tmp_path / "store") as cluster:
        with Producer(group="P", nameserver=cluster.nameserver) as producer:
            for number in range(5):
                producer.send(Message("orders", b"%d" % number, tag="ab"[number % 2]))
        ran = run_alone("msg", "dump", "--nameserver", cluster.nameserver, "--topic", "orders", "--filter", "a")
        refused = run_alone("msg", "dump", tmp_path / "store")
    assert sorted(line["body"] for line in ran.lines()) == ["0", "2", "4"]
    assert refused.code == 2
    assert "locked" in refused.err


def test_wrong_arguments_are_refused(run_alone, store, tmp_path):
    assert run_alone("msg", "dump").code == 2
    assert run_alone("msg", "dump", store, "--nameserver", "127.0.0.1:1", "--topic", "t").code == 2
    assert run_alone("msg", "dump", tmp_path).code == 2
    assert run_alone("msg", "dump", store, "--sql", "amount >").code != 0


def test_a_reader_that_has_enough_ends_it_quietly(store):
    command = [sys.executable, "-m", "halfmoon.cli.main", "msg", "dump", str(store)]
    reading, writing = os.pipe()
    with subprocess.Popen(command, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(reading)
        os.close(writing)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
