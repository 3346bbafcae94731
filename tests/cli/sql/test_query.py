"""Queries in this process: topics are tables by their names, whatever these look like, and nothing else of Python is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("duckdb", reason="DuckDB is not installed")

from halfmoon import Admin, Message, Producer
from halfmoon.cli.sql.query import run
from halfmoon.errors import UsageError
from halfmoon.testing.local import LocalCluster

ROWS: dict[str, Any] = {"since": None, "decode": "binary", "into": "", "limit": 10}


def test_a_topic_with_an_odd_name_is_a_table_in_quotes_and_topics_can_be_joined(cluster: LocalCluster):
    with Admin(nameserver=cluster.nameserver) as admin:
        for topic in ("a-b", "b"):
            admin.create_topic(topic, queue_count=1)
    with Producer(group="P", nameserver=cluster.nameserver) as producer:
        for topic in ("a-b", "b"):
            producer.send(Message(topic, topic.encode()))

    columns, rows, more = run(
        'select l.body, r.body from "a-b" l join b r using (queueOffset)', nameserver=cluster.nameserver, **ROWS
    )
    assert (columns, rows, more) == (["body", "body_2"], [{"body": b"a-b", "body_2": b"b"}], False)


def test_variables_of_python_are_no_tables(cluster: LocalCluster):
    with pytest.raises(UsageError, match="datasets"):
        run("select * from datasets", nameserver=cluster.nameserver, **ROWS)
