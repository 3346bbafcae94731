"""The exactly-once sink of Spark: reports travel to the driver, and errors say what to do; `tests.data.sending` has the rest."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from pyspark.sql.datasource import WriterCommitMessage

from halfmoon.errors import ConnectionLost
from halfmoon.spark.sink.exactly_once import PrepareMessage, prepare
from tests.data.sending.test_transaction import BATCH, OPTIONS, Brokers, rows


def test_a_report_is_a_message_of_spark_and_comes_back_from_its_bytes():
    report = prepare(cast(Any, Brokers()), OPTIONS, BATCH, 0, [rows(["a", "b"])])

    assert isinstance(report, WriterCommitMessage)
    assert isinstance(report, PrepareMessage)
    assert pickle.loads(pickle.dumps(report)) == report
    assert report.rows == 2


def test_brokers_that_cannot_be_reached_leave_word_of_what_to_do():
    class Gone(Brokers):
        def queues(self, topic):
            raise ConnectionLost("gone")

    with pytest.raises(ConnectionLost) as raised:
        prepare(cast(Any, Gone()), OPTIONS, BATCH, 0, [rows(["a"])])

    assert "Started again, a stream continues where it was" in raised.value.__notes__[0]
    assert f"after {OPTIONS.retries} retries; the option retries" in raised.value.__notes__[0]
