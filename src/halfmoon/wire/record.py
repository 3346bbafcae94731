"""Stored messages as users see them, and the bodies of batches: bytes and back. The layout is in `halfmoon.columns.record`."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple

from halfmoon import hot
from halfmoon.columns.messages import Messages
from halfmoon.errors import BadMessage
from halfmoon.hot import Head, batch_items, parts_at, record_rows
from halfmoon.limits import BODY_BYTES_MAX
from halfmoon.model import StoredMessage
from halfmoon.wire import properties as props
from halfmoon.wire.compression import beginning
from halfmoon.wire.ids import host_hex, host_text

Buffer = bytes | bytearray | memoryview

RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
"""A record of the default maxMessageSize. Follows the original, which allows 64 KiB beside the body."""

KEPT_BYTES_MAX = BODY_BYTES_MAX
"""Largest decompressed body that a message caches: the default limit of senders and brokers."""

_I32 = Struct(">i")


# ---------------------------------------------------------------- write


def encode_record(
    *,
    topic: str,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    body: Buffer,
    properties: bytes,
    born_ms: int,
    born_host: bytes,
    store_ms: int,
    store_host: bytes,
    flag: int = 0,
    sys_flag: int = 0,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> bytes:
    """Return the record of one message, as the store writes it.

    ``properties`` are as stored (`halfmoon.wire.properties.encode`). The IPv6 bits of ``sys_flag`` follow from the hosts.

    Raises:
        MessageIllegal: topic or properties are too long, or a number does not fit its field.
    """
    draft = (bytes(body), properties, flag, sys_flag, born_ms, born_host, reconsume_times, prepared_transaction_offset, 0)
    place = topic, queue_id, queue_offset, physical_offset
    return Messages([draft]).encode(*place, 2**31, 2**31, store_ms, store_host)[0]


# ---------------------------------------------------------------- read for users


class Record(StoredMessage):
    """Message that decodes its fields from its record on first access; most fields are never read."""

    __slots__ = ("_head", "_more", "_tail", "_topic_size", "_unpack")
    _head: tuple[Any, ...]  # as `HEAD` has it
    _tail: bytes  # topic, two bytes, properties
    _topic_size: int
    _more: dict[str, str] | None  # properties beside those; None: they are together
    _unpack: tuple[Callable[[StoredMessage, bytes, int], tuple[bytes, int]], bytes] | None  # and what it is to unpack

    def __new__(cls, *values: Any, **named: Any) -> StoredMessage:  # type: ignore[misc]
        """Return a plain message: only `decode_record` creates one that decodes lazily."""
        return StoredMessage(*values, **named)

    def __getattr__(self, name: str) -> Any:
        reads = _READS.get(name)
        if reads is None:
            if (told := vars(StoredMessage).get(name)) is not None:
                told.__get__(self, type(self))  # raises its own error again
            raise AttributeError(f"a message has no {name}", name=name, obj=self)
        value = reads(self)
        if name not in ("body", "sys_flag"):  # `_unpacked` keeps these
            setattr(self, name, value)
        return value

    @property
    def held_bytes(self) -> int:
        """Size of the stored body, bytes."""
        size: int = self._head[14]
        return size

    def beginning(self, size_max: int) -> bytes:
        """Return the first bytes of the body. Decompresses no more than that, and caches nothing."""
        body, sys_flag = self.as_stored()
        return beginning(body, sys_flag, size_max) if self._unpack else body[:size_max]

    def as_stored(self) -> tuple[bytes, int]:
        """Return body and ``sys_flag`` as stored, or decompressed if they already are."""
        waiting = self._unpack
        return (self.body, self.sys_flag) if waiting is None else (waiting[1], self._head[7])

    def note(self, properties: dict[str, str]) -> None:
        """Add properties that are not in the record. The dict is not changed, now or later."""
        more = self._more
        if more is None:
            self.properties.update(properties)
        else:
            self._more = {**more, **properties} if more else properties

    def unpack_later(self, unpack: Callable[[StoredMessage, bytes, int], tuple[bytes, int]]) -> None:
        """Decompress the body on first access: ``unpack`` gets message, body and flags as stored, and returns body and flags."""
        self._unpack = unpack, self.body
        del self.body, self.sys_flag

    def _properties(self) -> dict[str, str]:
        properties = props.decode(self._tail[self._topic_size + 2 :])
        if self._more:
            properties.update(self._more)
        self._more = None
        return properties

    def _unpacked(self) -> tuple[bytes, int]:
        """Return body and flags to show. Two threads may enter at once; the first result is kept.

        A body larger than `KEPT_BYTES_MAX` is decompressed on each access, to bound the memory of a page of messages.
        """
        waiting = self._unpack
        if waiting is None:
            return self.body, self.sys_flag
        unpack, stored = waiting
        body, sys_flag = unpack(self, stored, self._head[7])
        if len(body) <= max(KEPT_BYTES_MAX, len(stored)):
            self.body, self.sys_flag = body, sys_flag
            self._unpack = None
        return body, sys_flag

    def _offset_msg_id(self) -> str:
        return f"{host_hex(self._head[11])}{self._head[6] & 0xFFFFFFFFFFFFFFFF:016X}"


_READS: dict[str, Callable[[Record], Any]] = {
    "topic": lambda record: str(record._tail[: record._topic_size], "utf-8", "replace"),
    "queue_id": lambda record: record._head[3],
    "physical_offset": lambda record: record._head[6],
    "body": lambda record: record._unpacked()[0],
    "properties": Record._properties,
    "flag": lambda record: record._head[4],
    "sys_flag": lambda record: record._unpacked()[1],
    "born_ms": lambda record: record._head[8],
    "born_host": lambda record: host_text(record._head[9]),
    "store_ms": lambda record: record._head[10],
    "store_host": lambda record: host_text(record._head[11]),
    "reconsume_times": lambda record: record._head[12],
    "prepared_transaction_offset": lambda record: record._head[13],
    "body_crc": lambda record: record._head[2],
    "size_bytes": lambda record: record._head[0],
    "offset_msg_id": Record._offset_msg_id,
}
_NOTHING: dict[str, str] = {}
_blank = object.__new__


def decode_record(view: Buffer, at: int = 0) -> StoredMessage:
    """Return the message whose record begins at ``at``. The body is as stored; its CRC is not looked at, as clients do.

    Raises:
        BadMessage: the bytes are not a whole record.

    Follows MessageDecoder.decode (RocketMQ 4.9.8).
    """
    if not isinstance(view, bytes):
        size = _I32.unpack_from(view, at)[0] if len(view) - at >= 4 else 0
        view, at = bytes(view[at : at + max(0, size)]), 0
    head, body_at, topic_at, topic_size, end = parts_at(view, at)
    return _record(head, view[body_at : body_at + head[14]], view[topic_at:end], topic_size)


def decode_records(body: Buffer) -> list[StoredMessage]:
    """Return the messages of a pull's body: records one behind the other.

    Raises:
        BadMessage: the bytes are not whole records. Differs: the original stops at the first bad one and forgets the rest.
    """
    messages, _, fault = decode_run(bytes(body))
    if fault is not None:
        raise fault
    return messages


def decode_run(data: bytes, at: int = 0) -> tuple[list[StoredMessage], int, BadMessage | None]:
    """Return the messages of consecutive records, and the position and error of the first record that cannot be read, or None.

    Checks their lengths once. Each message holds the bytes of its own record only.
    """
    rows, at = record_rows(data, at)
    messages: list[StoredMessage] = [_record(*row) for row in rows]
    if at < len(data):
        try:
            parts_at(data, at)
        except BadMessage as fault:
            return messages, at, fault
    return messages, at, None


def _record(head: Head, body: bytes, tail: bytes, topic_size: int) -> Record:
    record: Record = _blank(Record)
    record._head, record._tail, record._topic_size = head, tail, topic_size
    record._more, record._unpack = _NOTHING, None
    record.queue_offset, record.sys_flag, record.broker_name = head[5], head[7], ""
    record.body = body
    return record


# ---------------------------------------------------------------- batches


class BatchItem(NamedTuple):
    """One message of a batch body; ``properties`` as they travel."""

    body: bytes
    properties: bytes
    flag: int = 0


encode_batch = hot.encode_batch
"""Return the body of a batch of items. Raises MessageIllegal for items that cannot be encoded."""


def decode_batch(body: Buffer) -> list[BatchItem]:
    """Return the messages of a batch body.

    Raises:
        BadMessage: a length does not fit, or bytes are left over.
    """
    try:
        return [BatchItem(*item) for item in batch_items(bytes(body))]
    except ValueError as exc:
        raise BadMessage(str(exc)) from exc
