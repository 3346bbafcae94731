"""Trace records as spans: each send, second phase and call of a listener with its end, the first ones first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from halfmoon.spark.jobs import traces
from halfmoon.wire.bodies.traces import TraceRecord, encode_traces

BEGIN_MS = 1_780_000_000_000
RECORDS = [
    TraceRecord(kind="SubAfter", msg_id="m1", request_id="r1", cost_ms=5, success=False, code=4),
    TraceRecord(kind="SubBefore", at_ms=BEGIN_MS + 40, group="C", msg_id="m2", request_id="r1"),
    TraceRecord(
        kind="EndTransaction", at_ms=BEGIN_MS + 20, group="P", topic="orders", msg_id="m1", state="COMMIT_MESSAGE", from_check=True
    ),
    TraceRecord(kind="SubBefore", at_ms=BEGIN_MS + 30, group="C", msg_id="m1", request_id="r1", retries=2),
    TraceRecord(kind="Pub", at_ms=BEGIN_MS, group="P", topic="orders", msg_id="m1", cost_ms=7, message_kind=1),
]


def at(ms: int) -> datetime:
    return datetime.fromtimestamp((BEGIN_MS + ms) / 1000, UTC)


def spans_of(records: list[TraceRecord], count_max: int, **bounds: int) -> list[dict[str, Any]]:
    """Return the spans of records, of which each body has some."""
    bodies = [encode_traces(records[at : at + 2]).encode() for at in range(0, len(records), 2)]
    return traces.spans_of([*bodies, b"no trace", b"\xff\x01\x02", b""], count_max, **bounds)


def test_spans_have_their_times_and_a_call_without_an_end_has_none():
    found = spans_of(RECORDS, 10)

    told = [tuple(one[name] for name in ("span", "who", "msgId", "costMs", "success", "retries", "fromCheck")) for one in found]
    assert told == [
        ("half", "P", "m1", 7, True, 0, False),
        ("commit", "P", "m1", 0, True, 0, True),
        ("consume", "C", "m1", 5, False, 2, False),
        ("consume", "C", "m2", None, None, 0, False),
    ]
    assert [one["end"] for one in found] == [at(7), at(20), at(35), None]


def test_only_the_first_spans_are_held():
    later = [TraceRecord(kind="SubAfter", msg_id="m9", request_id="r9"), *RECORDS[1:]] * 400

    found = spans_of([*RECORDS, *later], 3, ends_max=1)

    assert [one["msgId"] for one in found] == ["m1"] * 3
    assert {one["span"] for one in found} == {"half"}


def test_a_time_that_no_calendar_has_is_left_out():
    assert [one["begin"] for one in spans_of([TraceRecord(kind="Pub"), TraceRecord(kind="Pub", at_ms=10**18)], 2)] == [None, None]


def test_records_of_other_messages_are_left_out():
    body = encode_traces(RECORDS).encode()

    assert [one["span"] for one in traces.spans_of([body], 9, "m2")] == ["consume"]
