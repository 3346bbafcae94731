"""Requests of batch transactions, as they travel."""

from __future__ import annotations

from halfmoon.wire.headers import batch
from halfmoon.wire.table import REQUESTS
from tests.wire.headers.fields import sent


def test_a_prepared_batch_names_its_stream_its_attempt_and_its_place():
    header = batch.PrepareBatch(
        transactional_id="job-1", batch_id=7, attempt="a", partition=2, first_seq=30, topic="orders", queue_id=3, count=10,
        coordinator="broker-a", sys_flag=1,
    )  # fmt: skip
    assert sent(header) == {
        "transactionalId": "job-1", "batchId": "7", "attempt": "a", "partition": "2", "firstSeq": "30", "topic": "orders",
        "queueId": "3", "count": "10", "coordinator": "broker-a", "sysFlag": "1",
    }  # fmt: skip


def test_a_decision_that_is_not_known_any_more_says_so():
    assert sent(batch.DecideBatchReply(result="ALREADY", last=7)) == {"result": "ALREADY", "last": "7", "complete": "false"}


def test_all_of_them_are_halfmoons_own_and_only_the_list_is_for_administrators():
    lines = [line for line in REQUESTS.values() if line.header.__module__ == batch.__name__]
    assert {(line.since, line.code // 10) for line in lines} == {("Halfmoon", 3103)}
    assert [line.name for line in lines if line.admin] == ["LIST_BATCHES"]
