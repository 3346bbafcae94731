"""Trace records as rows and as spans, from bodies as clients write them."""

from __future__ import annotations

import pytest

from halfmoon.spark.jobs import traces
from halfmoon.wire.bodies.traces import TraceRecord, encode_traces
from tests.spark.jobs.frames import BEGIN_MS, at, frame, row

pytestmark = pytest.mark.slow

RECORDS = [
    TraceRecord(
        kind="Pub",
        at_ms=BEGIN_MS,
        group="P",
        topic="orders",
        msg_id="m1",
        cost_ms=7,
        message_kind=1,
        offset_msg_id="7F",
        success=True,
    ),
    TraceRecord(
        kind="EndTransaction", at_ms=BEGIN_MS + 20, group="P", topic="orders", msg_id="m1", state="COMMIT_MESSAGE", from_check=True
    ),
    TraceRecord(kind="SubBefore", at_ms=BEGIN_MS + 30, group="C", msg_id="m1", request_id="r1", retries=2),
    TraceRecord(kind="SubAfter", msg_id="m1", request_id="r1", cost_ms=5, success=False, code=4),
    TraceRecord(kind="SubBefore", at_ms=BEGIN_MS + 40, group="C", msg_id="m2", request_id="r1"),
]


@pytest.fixture
def events(spark):
    bodies = [encode_traces(RECORDS[:3]).encode(), encode_traces(RECORDS[3:]).encode(), b"no trace", b"\xff\x01\x02", b""]
    return traces.events(frame(spark, [row(topic="RMQ_SYS_TRACE_TOPIC", body=body) for body in bodies]))


def test_every_record_is_a_row_and_what_is_none_is_left_out(events):
    found = events.collect()

    assert [(one.kind, one.msgId, one.clientGroup) for one in found] == [
        ("Pub", "m1", "P"),
        ("EndTransaction", "m1", "P"),
        ("SubBefore", "m1", "C"),
        ("SubAfter", "m1", ""),
        ("SubBefore", "m2", "C"),
    ]
    assert (found[0].topic, found[0].costMs, found[1].fromCheck, found[3].at, found[3].code) == ("orders", 7, True, None, 4)


def test_spans_have_their_times_and_a_call_without_an_end_has_none(events):
    found = traces.spans(events).orderBy("begin").collect()

    assert [(one.span, one.who, one.msgId, one.costMs, one.success, one.retries, one.fromCheck) for one in found] == [
        ("half", "P", "m1", 7, True, 0, False),
        ("commit", "P", "m1", 0, True, 0, True),
        ("consume", "C", "m1", 5, False, 2, False),
        ("consume", "C", "m2", None, None, 0, False),
    ]
    assert [one.end for one in found] == [
        at(7).replace(tzinfo=None),
        at(20).replace(tzinfo=None),
        at(35).replace(tzinfo=None),
        None,
    ]
