"""The Spark source on Apache's brokers, driven as Spark drives it: what it promises on ours it keeps there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import pyarrow as pa
import pytest

from halfmoon.client.admin import Admin
from halfmoon.client.sync import Producer
from halfmoon.errors import UsageError
from halfmoon.model import Message, MessageQueue
from halfmoon.spark.source.source import HalfmoonSource
from tests.interop.apache import Cluster
from tests.spark.query import Query

TOPIC = "SparkSource"


@pytest.mark.interop
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_a_stream_reads_everything_once_and_a_batch_what_is_asked_for(apache: Callable[..., Cluster], version: str) -> None:
    cluster = apache(version)
    sent = [f"m{number}" for number in range(100)]
    with Admin(nameserver=cluster.nameserver) as admin, Producer(group="P", nameserver=cluster.nameserver) as producer:
        admin.create_topic(TOPIC, queue_count=2)
        admin.create_group("G")  # 5.x refuses the progress of a group that it does not know

        def send(bodies: list[str]) -> None:
            for number, body in enumerate(bodies):
                message = Message(TOPIC, body.encode(), tag=("red", "blue")[number % 2], keys=[body])
                producer.send(message, queue=MessageQueue(TOPIC, "broker-a", number // 2 % 2))

        latest = Query(cluster.nameserver, topic=TOPIC)
        latest.batch()
        send(sent)
        time.sleep(0.05)
        now = int(time.time() * 1000)
        query = Query(cluster.nameserver, topic=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="30", consumerGroup="G")
        batches = []
        while (batch := query.batch()) is not None:
            batches.append(batch)
        assert [len(found) for found in batches] == [30, 30, 30, 10]
        assert sorted(body for found in batches for body in found) == sorted(sent)
        assert sorted(latest.batch() or []) == sorted(sent)

        send(["late-1", "late-2", "late-3"])
        query.restart()
        assert sorted(query.batch() or []) == ["late-1", "late-2", "late-3"]
        assert query.batch() is None  # the next trigger reports what the last one read
        assert sorted(Query(cluster.nameserver, topic=TOPIC, startingTimestamp=str(now)).batch() or []) == [
            "late-1", "late-2", "late-3"
        ]  # fmt: skip
        assert Query(cluster.nameserver, topic=TOPIC, startingOffsets="group", consumerGroup="G").batch() == []

        source = HalfmoonSource({"endpoints": cluster.nameserver, "topic": TOPIC, "tags": "red", "columns": "keys,tags"})
        reader = source.reader(source.schema())
        rows = [
            row for share in reader.partitions() for batch in reader.read(share) for row in cast(pa.RecordBatch, batch).to_pylist()
        ]
        assert sorted(row["keys"] for row in rows) == sorted([*sent[::2], "late-1", "late-3"])

        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, queue_count=2)
        time.sleep(1)
        send(["again"])
        with pytest.raises(UsageError, match="failOnDataLoss=false"):
            query.plan()
