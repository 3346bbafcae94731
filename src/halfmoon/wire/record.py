"""One stored message as bytes, and back: what a commit log holds and pulls carry; and the bodies of batches. Keeps nothing.

Layout (big endian; a host is ``| ip | port i32 |``, 8 bytes, or 20 with the IPv6 bit of sysFlag, which shifts what follows)::

     0 size i32 | 4 magic i32 | 8 body crc i32 | 12 queue id i32 | 16 flag i32 | 20 queue offset i64 | 28 physical offset i64
    36 sysFlag i32 | 40 born ms i64 | 48 born host | 56 store ms i64 | 64 store host | 72 reconsume times i32
    76 prepared transaction offset i64 | 84 body length i32 | 88 body | topic length i8 (V2: i16) | topic
    properties length i16 | properties
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple
from zlib import crc32

from halfmoon.errors import BadMessage, CorruptRecord, MessageIllegal
from halfmoon.limits import BODY_BYTES_MAX, PROPERTIES_BYTES_MAX, TOPIC_LENGTH_MAX
from halfmoon.model import StoredMessage, java_hash
from halfmoon.wire import properties as props
from halfmoon.wire.flags import BORN_HOST_V6, STORE_HOST_V6
from halfmoon.wire.ids import host_hex, host_text

Buffer = bytes | bytearray | memoryview

HEAD = Struct(">iiiiiqqiq8sq8siqi")
"""The first 88 bytes of a record with two IPv4 hosts, body length included."""

HEAD_BORN_V6 = Struct(">iiiiiqqiq20sq8siqi")
HEAD_STORE_V6 = Struct(">iiiiiqqiq8sq20siqi")
HEAD_BOTH_V6 = Struct(">iiiiiqqiq20sq20siqi")
_HEADS = {0: HEAD, BORN_HOST_V6: HEAD_BORN_V6, STORE_HOST_V6: HEAD_STORE_V6, BORN_HOST_V6 | STORE_HOST_V6: HEAD_BOTH_V6}
_V6 = BORN_HOST_V6 | STORE_HOST_V6

MAGIC_V1 = -626843481  # 0xDAA320A7
MAGIC_V2 = -626843477  # 0xDAA320AB: two bytes for the topic's length; written by 5.x for topics over 127 bytes
MAGIC_BLANK = -875286124  # 0xCBD43194: nothing more in this file

RECORD_BYTES_MIN = 91
RECORD_BYTES_MAX = BODY_BYTES_MAX + 64 * 1024
"""A record of the default maxMessageSize. Follows the original, which allows 64 KiB beside the body."""

BLANK_BYTES = 8
"""A blank tail's size and magic: so much stays free at the end of a file."""

_I16 = Struct(">h")
_I32 = Struct(">i")
_BLANK = Struct(">ii")

SYS_FLAG_AT, BORN_HOST_AT = 36, 48


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
    magic: int | None = None,
) -> bytes:
    """Return the record of one message; the reference for every faster way.

    ``properties`` are as stored (`halfmoon.wire.properties.encode`). The IPv6 bits of ``sys_flag`` follow from the hosts.
    ``magic`` None: V1, and V2 for a topic over 127 bytes.

    Raises:
        MessageIllegal: topic or properties are too long, or a number does not fit its field.
    """
    name = topic.encode()
    if magic is None:
        magic = MAGIC_V1 if len(name) <= TOPIC_LENGTH_MAX else MAGIC_V2
    if not 0 < len(name) <= (TOPIC_LENGTH_MAX if magic == MAGIC_V1 else 32767):
        raise MessageIllegal(f"the topic has {len(name)} bytes")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(f"the properties have {len(properties)} bytes, more than {PROPERTIES_BYTES_MAX}")
    sys_flag = sys_flag & ~_V6 | (BORN_HOST_V6 if len(born_host) == 20 else 0) | (STORE_HOST_V6 if len(store_host) == 20 else 0)
    head = _HEADS[sys_flag & _V6]
    topic_length = bytes((len(name),)) if magic == MAGIC_V1 else _I16.pack(len(name))
    size = head.size + len(body) + len(topic_length) + len(name) + 2 + len(properties)
    try:
        front = head.pack(
            size, magic, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host,
            store_ms, store_host, reconsume_times, prepared_transaction_offset, len(body),
        )  # fmt: skip
    except struct_error as exc:
        raise MessageIllegal(f"a number does not fit the record: {exc}") from None
    return b"".join((front, body, topic_length, name, _I16.pack(len(properties)), properties))


def blank_tail(remaining: int) -> bytes:
    """Return the 8 bytes that close a file with ``remaining`` bytes left; the rest of the file is undefined."""
    return _BLANK.pack(remaining, MAGIC_BLANK)


def blank_size(view: Buffer, at: int = 0) -> int | None:
    """Return how many bytes a blank tail covers, or None when there is none."""
    if len(view) - at < BLANK_BYTES:
        return None
    size, magic = _BLANK.unpack_from(view, at)
    return size if magic == MAGIC_BLANK and size >= BLANK_BYTES else None


# ---------------------------------------------------------------- read for users


class Record(StoredMessage):
    """A message that reads its fields from its record when they are first asked for; most are never."""

    __slots__ = ("_head", "_more", "_tail", "_topic_size", "_unpack")
    _head: tuple[Any, ...]  # as `HEAD` has it
    _tail: bytes  # topic, two bytes, properties
    _topic_size: int
    _more: dict[str, str] | None  # properties beside those; None: they are together
    _unpack: tuple[Callable[[StoredMessage, bytes, int], tuple[bytes, int]], bytes] | None  # and what it is to unpack

    def __new__(cls, *values: Any, **named: Any) -> StoredMessage:  # type: ignore[misc]
        """Return a plain message: only `decode_record` makes one that reads."""
        return StoredMessage(*values, **named)

    def __getattr__(self, name: str) -> Any:
        reads = _READS.get(name)
        if reads is None:
            raise AttributeError(f"a message has no {name}", name=name, obj=self)
        found = reads(self)
        setattr(self, name, found)
        return found

    @property
    def held_bytes(self) -> int:
        """Bytes of the body as it came."""
        size: int = self._head[14]
        return size

    def note(self, found: dict[str, str]) -> None:
        """Add properties that are not in the record. The dict is not changed, now or later."""
        more = self._more
        if more is None:
            self.properties.update(found)
        else:
            self._more = {**more, **found} if more else found

    def unpack_later(self, unpack: Callable[[StoredMessage, bytes, int], tuple[bytes, int]]) -> None:
        """Have the body unpacked when it is asked for: of the message, body and flags as stored, give body and flags to show."""
        self._unpack = unpack, self.body
        del self.body, self.sys_flag

    def _properties(self) -> dict[str, str]:
        found = props.decode(self._tail[self._topic_size + 2 :])
        if self._more:
            found.update(self._more)
        self._more = None
        return found

    def _unpacked(self) -> tuple[bytes, int]:
        """Return body and flags as they are shown. Two threads may come here at once; what the first one set is what counts."""
        waiting = self._unpack
        if waiting is not None:
            unpack, body = waiting
            self.body, self.sys_flag = unpack(self, body, self._head[7])
            self._unpack = None
        return self.body, self.sys_flag

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
    return _decode(view, at)


def decode_records(body: Buffer) -> list[StoredMessage]:
    """Return the messages of a pull's body: records one behind the other.

    Raises:
        BadMessage: the bytes are not whole records. Differs: the original stops at the first bad one and forgets the rest.
    """
    found, _, fault = decode_run(bytes(body))
    if fault is not None:
        raise fault
    return found


def decode_run(data: bytes, at: int = 0) -> tuple[list[StoredMessage], int, BadMessage | None]:
    """Return the messages of records that lie one behind the other, where the first one begins that cannot be read, and why not;
    None: all of them can.

    Their lengths are checked here, once. Each message has the bytes of its own record only, and keeps no others in memory.
    """
    found: list[StoredMessage] = []
    end = len(data)
    try:
        while at < end:
            message = _decode(data, at)
            found.append(message)
            at += message._head[0]
    except BadMessage as fault:
        return found, at, fault
    return found, at, None


def _decode(data: bytes, at: int) -> Record:
    try:
        head = HEAD.unpack_from(data, at)
        sys_flag, body_at = head[7], at + 88
        if sys_flag & _V6:
            shape = _HEADS[sys_flag & _V6]
            head, body_at = shape.unpack_from(data, at), at + shape.size
        magic, body_size = head[1], head[14]
        topic_at = body_end = body_at + body_size
        if body_size < 0:
            raise BadMessage(f"record at byte {at}: body length {body_size}")
        if magic == MAGIC_V1:
            topic_size = data[topic_at]
            topic_at += 1
        elif magic == MAGIC_V2:
            topic_size = data[topic_at] << 8 | data[topic_at + 1]
            topic_at += 2
        else:
            raise BadMessage(f"record at byte {at}: magic {magic & 0xFFFFFFFF:#x}")
        properties_at = topic_at + topic_size + 2
        end = properties_at + (data[properties_at - 2] << 8 | data[properties_at - 1])
    except (struct_error, IndexError):
        raise BadMessage(f"record at byte {at} is cut short") from None
    if end != at + head[0] or end > len(data):
        raise BadMessage(
            f"record at byte {at}: its parts take {end - at} bytes, its size says {head[0]}, {len(data) - at} are there"
        )
    record: Record = _blank(Record)
    record._head, record._tail, record._topic_size = head, data[topic_at:end], topic_size
    record._more, record._unpack = _NOTHING, None
    record.queue_offset, record.sys_flag, record.broker_name = head[5], sys_flag, ""
    record.body = data[body_at:body_end]
    return record


# ---------------------------------------------------------------- read for the store


class RecordFacts(NamedTuple):
    """What a store needs to know of a record whose every field was checked."""

    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    store_ms: int
    prepared_transaction_offset: int
    body_at: int  # first byte of the body, from the record's begin
    body_size: int
    properties: bytes  # as stored
    tag_hash: int  # 0: no tag


def check_record(view: Buffer, physical_offset: int, *, size_max: int = RECORD_BYTES_MAX) -> RecordFacts:
    """Return the facts of the record that should begin at the view's begin and at ``physical_offset`` of the log.

    Everything that the format lets us check is checked: the size (first, and bounded), the magic, the place, all lengths against
    the size, the body's CRC, the broker's own numbers, the ports, and that the topic is text. Never reads beyond the view.

    Raises:
        CorruptRecord: something does not hold; a blank tail too (ask `blank_size` first).

    Differs: the original does not compare the physical offset, and reserves memory before it looks at the size.
    """
    facts = _check(view, physical_offset, size_max)
    if isinstance(facts, str):
        raise CorruptRecord(physical_offset, facts)
    return facts


def _check(view: Buffer, place: int, size_max: int) -> RecordFacts | str:
    there = len(view)
    if there < RECORD_BYTES_MIN:
        return f"only {there} bytes are left"
    (size,) = _I32.unpack_from(view)
    if not RECORD_BYTES_MIN <= size <= size_max:
        return f"size {size} is not within {RECORD_BYTES_MIN} and {size_max}"
    if size > there:
        return f"size {size} reaches beyond the {there} bytes that are left"
    data = bytes(view[:size])
    head = _HEADS[_I32.unpack_from(data, SYS_FLAG_AT)[0] & _V6]
    if size < head.size + 3:
        return f"size {size} is too small for its hosts"
    (
        _, magic, crc, queue_id, _, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms, store_host, _,
        prepared, body_size,
    ) = head.unpack_from(data)  # fmt: skip
    wide = 1 if magic == MAGIC_V1 else 2
    if wide == 2 and magic != MAGIC_V2:
        return f"magic {magic & 0xFFFFFFFF:#x}"
    if physical_offset != place:
        return f"it says that it lies at {physical_offset}"
    topic_at = head.size + body_size + wide
    if body_size < 0 or topic_at + 2 > size:
        return f"body length {body_size} does not fit size {size}"
    topic_size = int.from_bytes(data[topic_at - wide : topic_at], "big", signed=True)
    properties_at = topic_at + topic_size + 2
    if topic_size <= 0 or properties_at > size:
        return f"topic length {topic_size} does not fit"
    properties_size = int.from_bytes(data[properties_at - 2 : properties_at], "big", signed=True)
    if properties_size < 0 or properties_at + properties_size != size:
        return f"properties length {properties_size} does not fit size {size}"
    if crc32(data[head.size : topic_at - wide]) & 0x7FFFFFFF != crc:
        return "the body's CRC differs"
    if min(queue_id, queue_offset, store_ms, prepared) < 0:
        return "a number is negative that cannot be"
    if not _is_host(born_host) or not _is_host(store_host):
        return "a port is out of range"
    try:
        topic = str(data[topic_at : properties_at - 2], "utf-8")
    except UnicodeDecodeError:
        return "the topic is not UTF-8"
    properties = data[properties_at:]
    return RecordFacts(
        size, topic, queue_id, queue_offset, physical_offset, sys_flag, born_ms, store_ms, prepared, head.size, body_size,
        properties, _tag_hash(props.value_of(properties, b"TAGS")),
    )  # fmt: skip


def _is_host(host: bytes) -> bool:
    return host[-4] == 0 and host[-3] == 0


@lru_cache(4096)
def _tag_hash(tag: bytes | None) -> int:
    return java_hash(str(tag, "utf-8", "replace")) if tag else 0


# ---------------------------------------------------------------- batches


class BatchItem(NamedTuple):
    """One message of a batch body; ``properties`` as they travel."""

    body: bytes
    properties: bytes
    flag: int = 0


_ITEM = Struct(">iiiii")  # | size i32 | magic i32 = 0 | crc i32 = 0 | flag i32 | body length i32 |
ITEM_BYTES_MIN = 22


def encode_batch(items: Iterable[BatchItem]) -> bytes:
    """Return the body of a batch: ``| size | 0 | 0 | flag | body length | body | properties length i16 | properties |`` each.

    Raises:
        MessageIllegal: properties over 32,767 bytes.
    """
    pieces: list[Any] = []
    for body, properties, flag in items:
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise MessageIllegal(f"the properties have {len(properties)} bytes, more than {PROPERTIES_BYTES_MAX}")
        size = ITEM_BYTES_MIN + len(body) + len(properties)
        pieces += (_ITEM.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(properties)), properties)
    return b"".join(pieces)


def decode_batch(body: Buffer) -> list[BatchItem]:
    """Return the messages of a batch body.

    Raises:
        BadMessage: a length does not fit, or bytes are left over.
    """
    data = bytes(body)
    at, end = 0, len(data)
    found: list[BatchItem] = []
    while at < end:
        if end - at < ITEM_BYTES_MIN:
            raise BadMessage(f"batch item {len(found)}: {end - at} bytes are left over")
        size, _, _, flag, body_size = _ITEM.unpack_from(data, at)
        stop = at + size
        properties_at = at + ITEM_BYTES_MIN + body_size
        if body_size < 0 or stop > end or properties_at > stop:
            raise BadMessage(f"batch item {len(found)}: body length {body_size}, size {size}, {end - at} bytes are there")
        (properties_size,) = _I16.unpack_from(data, properties_at - 2)
        if properties_size < 0 or properties_at + properties_size != stop:
            raise BadMessage(f"batch item {len(found)}: properties length {properties_size} does not fit size {size}")
        found.append(BatchItem(data[at + 20 : properties_at - 2], data[properties_at:stop], flag))
        at = stop
    return found
