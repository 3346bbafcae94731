"""Spans in a trace topic: sends, second phases and calls of listeners with their ends. Asks no broker and needs no Spark."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any

from halfmoon.wire.bodies.traces import END_TRANSACTION, PUB, SUB_AFTER, SUB_BEFORE, MessageKind, TraceRecord, decode_traces

ENDS_MAX = 200_000
"""Ends of calls that are remembered until their begin is read; the oldest are dropped."""

TIME_MAX_MS = 253_402_300_799_999


def spans_of(bodies: Iterable[bytes], count_max: int, msg_id: str | None = None, ends_max: int = ENDS_MAX) -> list[dict[str, Any]]:
    """Return the sends, second phases and calls of listeners that began first, from bodies of a trace topic.

    ``msg_id`` selects one message. A call joins SubBefore and SubAfter by message and request. One without an end is still running,
    or its client died: its ``success`` is None.
    """
    begins: list[TraceRecord] = []
    ends: dict[tuple[str, str], TraceRecord] = {}
    records = (record for body in bodies for record in decode_traces(body.decode("utf-8", "replace")))
    for record in records:
        if msg_id not in (None, record.msg_id):
            continue
        if record.kind == SUB_AFTER:
            ends[record.msg_id, record.request_id] = record
            if len(ends) > ends_max:
                del ends[next(iter(ends))]
        elif record.kind in (PUB, SUB_BEFORE, END_TRANSACTION):
            begins.append(record)
            if len(begins) > 2 * count_max + 1000:
                begins = _first(begins, count_max)
    return [_span(record, ends.get((record.msg_id, record.request_id))) for record in _first(begins, count_max)]


def _first(records: list[TraceRecord], count: int) -> list[TraceRecord]:
    return nsmallest(count, records, key=lambda record: record.at_ms)


def _span(record: TraceRecord, end: TraceRecord | None) -> dict[str, Any]:
    cost_ms: int | None = record.cost_ms
    success: bool | None = record.success
    if record.kind == PUB:
        name = "half" if record.message_kind == MessageKind.HALF else "send"
    elif record.kind == END_TRANSACTION:
        name = record.state.removesuffix("_MESSAGE").lower()
    else:
        name = "consume"
        cost_ms, success = (None, None) if end is None else (end.cost_ms, end.success)
    return {
        "msgId": record.msg_id, "span": name, "who": record.group, "topic": record.topic or None, "begin": _time(record.at_ms),
        "end": None if cost_ms is None else _time(record.at_ms + cost_ms), "costMs": cost_ms, "success": success,
        "retries": record.retries, "fromCheck": record.from_check,
    }  # fmt: skip


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if 0 <= ms <= TIME_MAX_MS else None
