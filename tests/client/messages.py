"""Stored messages for tests of consumers, as values and as the records that a broker sends."""

from __future__ import annotations

from halfmoon.model import StoredMessage
from halfmoon.wire.ids import pack_host
from halfmoon.wire.properties import encode
from halfmoon.wire.record import encode_record


def message(
    offset: int, body: bytes = b"body", *, topic: str = "orders", tag: str | None = None, **properties: str
) -> StoredMessage:
    """Return a message at a queue offset."""
    found = {"UNIQ_KEY": f"ID{offset}", **properties, **({"TAGS": tag} if tag else {})}
    return StoredMessage(
        topic, 0, offset, offset * 100, body, found, 0, 0, 1, "10.0.0.1:5", 2, "10.0.0.2:10911", 0, 0, 0, 0, "OFFSETID", "broker-a"
    )  # fmt: skip


def record(
    offset: int, body: bytes = b"body", *, topic: str = "orders", tag: str | None = None, sys_flag: int = 0,
    reconsume_times: int = 0, **properties: str,
):  # fmt: skip
    """Return a message at a queue offset as bytes."""
    found = {"UNIQ_KEY": f"ID{offset}", **properties, **({"TAGS": tag} if tag else {})}
    return encode_record(
        topic=topic, queue_id=0, queue_offset=offset, physical_offset=offset * 100, body=body, properties=encode(found), born_ms=1,
        born_host=pack_host("10.0.0.1:5"), store_ms=2, store_host=pack_host("10.0.0.2:10911"), sys_flag=sys_flag,
        reconsume_times=reconsume_times,
    )  # fmt: skip


def at(data: bytes, place: int, value: bytes) -> bytes:
    """Return bytes with others written over them."""
    return data[:place] + value + data[place + len(value) :]
