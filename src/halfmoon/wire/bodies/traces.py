"""Trace records as clients write them into a trace topic: texts joined by 0x01, each record ended by 0x02. Holds the format only.

Follows TraceDataEncoder (RocketMQ 4.9.8), with what 5.x added at the ends. Numbers of fields tell the versions apart.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
FIELD, RECORD = "\x01", "\x02"
RECORDS_MAX = 10_000
"""Bound of records read from one body; the original's clients join up to a hundred messages."""

PUB, SUB_BEFORE, SUB_AFTER, END_TRANSACTION = "Pub", "SubBefore", "SubAfter", "EndTransaction"


class MessageKind(IntEnum):
    """Kind of a message. Follows MessageType (RocketMQ 4.9.8)."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3


class ConsumeCode(IntEnum):
    """Result of a listener's call. Follows ConsumeReturnType."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


class TraceRecord(msgspec.Struct, kw_only=True):
    """Trace record. Fields that its kind does not have stay empty; ``at_ms`` -1: unknown. ``cost_ms``: duration of the call.

    ``kind`` is Pub (a send and its result), SubBefore and SubAfter (a listener's call, joined by ``request_id``) or
    EndTransaction (a second phase).
    """

    kind: str
    at_ms: int = -1
    region: str = ""
    group: str = ""
    topic: str = ""
    msg_id: str = ""
    tags: str = ""
    keys: str = ""
    store_host: str = ""
    size_bytes: int = 0
    cost_ms: int = 0
    message_kind: int = 0
    offset_msg_id: str = ""
    success: bool = True
    client_host: str = ""
    request_id: str = ""
    retries: int = 0
    code: int = 0
    transaction_id: str = ""
    state: str = ""
    from_check: bool = False


def encode_traces(records: list[TraceRecord]) -> str:
    """Return records as a body's text. Separators inside a value become blanks; an empty value is written as Java writes null."""
    return "".join(FIELD.join(_fields(record)) + RECORD for record in records)


def _fields(r: TraceRecord) -> list[str]:
    if r.kind == PUB:
        return [
            PUB, str(r.at_ms), *map(_text, (r.region, r.group, r.topic, r.msg_id, r.tags, r.keys, r.store_host)), str(r.size_bytes),
            str(r.cost_ms), str(r.message_kind), _text(r.offset_msg_id), _truth(r.success),
        ]  # fmt: skip
    if r.kind == SUB_BEFORE:
        texts = map(_text, (r.region, r.group, r.request_id, r.msg_id))
        return [SUB_BEFORE, str(r.at_ms), *texts, str(r.retries), _text(r.keys)]
    if r.kind == SUB_AFTER:
        return [
            SUB_AFTER, _text(r.request_id), _text(r.msg_id), str(r.cost_ms), _truth(r.success), _text(r.keys), str(r.code),
            str(r.at_ms), _text(r.group),
        ]  # fmt: skip
    return [
        END_TRANSACTION, str(r.at_ms), *map(_text, (r.region, r.group, r.topic, r.msg_id, r.tags, r.keys, r.store_host)),
        str(r.message_kind), _text(r.transaction_id), _text(r.state), _truth(r.from_check),
    ]  # fmt: skip


def _text(text: str) -> str:
    return text.replace(FIELD, " ").replace(RECORD, " ") if text else "null"


def _truth(value: bool) -> str:
    return "true" if value else "false"


def decode_traces(text: str) -> list[TraceRecord]:
    """Return the records of a body's text, without malformed ones and unknown kinds."""
    records = []
    for line in text.split(RECORD, RECORDS_MAX)[:RECORDS_MAX]:
        record = _decoded(["" if field == "null" else field for field in line.split(FIELD, 32)])
        if record is not None:
            records.append(record)
    return records


def _decoded(f: list[str]) -> TraceRecord | None:
    kind, count = f[0], len(f)
    if kind == PUB and count >= 13:
        late = [""] * (count == 13) + f[12:]  # the oldest have no offset message id
        return TraceRecord(
            kind=PUB, at_ms=_number(f[1], -1), region=f[2], group=f[3], topic=f[4], msg_id=f[5], tags=f[6], keys=f[7],
            store_host=f[8], size_bytes=_number(f[9]), cost_ms=_number(f[10]), message_kind=_number(f[11]), offset_msg_id=late[0],
            success=late[1] == "true", client_host=late[2] if len(late) > 2 else "",
        )  # fmt: skip
    if kind == SUB_BEFORE and count >= 8:
        return TraceRecord(
            kind=SUB_BEFORE, at_ms=_number(f[1], -1), region=f[2], group=f[3], request_id=f[4], msg_id=f[5], retries=_number(f[6]),
            keys=f[7],
        )  # fmt: skip
    if kind == SUB_AFTER and count >= 6:
        success = f[4] == "true"
        return TraceRecord(
            kind=SUB_AFTER, request_id=f[1], msg_id=f[2], cost_ms=_number(f[3]), success=success, keys=f[5],
            code=_number(f[6]) if count > 6 else 0 if success else int(ConsumeCode.FAILED),
            at_ms=_number(f[7], -1) if count > 8 else -1, group=f[8] if count > 8 else "",
        )  # fmt: skip
    if kind == END_TRANSACTION and count >= 13:
        return TraceRecord(
            kind=END_TRANSACTION, at_ms=_number(f[1], -1), region=f[2], group=f[3], topic=f[4], msg_id=f[5], tags=f[6], keys=f[7],
            store_host=f[8], message_kind=_number(f[9]), transaction_id=f[10], state=f[11], from_check=f[12] == "true",
        )  # fmt: skip
    return None


def _number(text: str, otherwise: int = 0) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else otherwise
