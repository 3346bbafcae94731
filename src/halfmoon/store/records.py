"""A stored record seen from the store: what recovery, indexing and queries need of it, checked whole.

Decodes no message. The layout is in `halfmoon.columns.record`.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from halfmoon.errors import BadMessage, CorruptRecord
from halfmoon.hot import BORN_V6, Parts, crc32, parts_at, parts_of, property_of
from halfmoon.model import java_hash
from halfmoon.store.layout import BLANK, BLANK_BYTES, BLANK_MAGIC

__all__ = ["BLANK_TAIL", "RecordFacts", "check_at", "is_torn", "store_time_at", "tag_code_of", "tag_hash_of"]

_I64 = Struct(">q")
_I32 = Struct(">i")
_SECTOR = bytes(512)


class RecordFacts(NamedTuple):
    """Facts of a checked record. Positions count from the record's first byte."""

    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: bytes
    body_at: int
    body_bytes: int

    @property
    def transaction(self) -> int:
        """The transaction bits: 0, 4 prepared, 8 commit, 12 rollback."""
        return self.sys_flag & 0xC


class _Marker:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


BLANK_TAIL = _Marker("BLANK_TAIL")
"""Result of `check_at` for the closed rest of a file."""


def check_at(view: memoryview, at: int, physical_offset: int) -> RecordFacts | _Marker:
    """Return the record at a position of a log file's bytes, everything verified.

    ``view`` reaches from the file's start, or from anywhere before the record, to the end of what may belong to it.

    Raises:
        CorruptRecord: magic, physical offset, a length, the body's CRC or the topic's text is wrong.

    Follows CommitLog.checkMessageAndReturnSize (RocketMQ 4.9.8).
    Differs: the physical offset must be the real one, which tells the bytes of an older life of the file; lengths are bounded
    before anything is read by them.
    """
    rest = len(view) - at
    if rest < BLANK_BYTES:
        raise CorruptRecord(physical_offset, "fewer than 8 bytes are left")
    size, magic = BLANK.unpack_from(view, at)
    if magic == BLANK_MAGIC:
        if size != rest:
            raise CorruptRecord(physical_offset, f"a blank tail of {size} bytes where {rest} are left")
        return BLANK_TAIL
    try:
        head, body_at, topic_at, topic_bytes, end = parts_at(view, at)
    except BadMessage as exc:
        raise CorruptRecord(physical_offset, str(exc)) from None
    _, _, body_crc, queue_id, _, queue_offset, claimed, sys_flag, _, _, store_ms, _, _, _, body_bytes = head
    if claimed != physical_offset:
        raise CorruptRecord(physical_offset, f"the record says that it lies at {claimed}")
    if crc32(view[body_at : body_at + body_bytes]) & 0x7FFFFFFF != body_crc:
        raise CorruptRecord(physical_offset, "the body's CRC is wrong")
    if queue_id < 0 or queue_offset < 0 or store_ms <= 0:
        raise CorruptRecord(physical_offset, f"queue {queue_id}, offset {queue_offset}, stored {store_ms}")
    try:
        topic = str(view[topic_at : topic_at + topic_bytes], "utf-8")
    except UnicodeDecodeError:
        raise CorruptRecord(physical_offset, "the topic is not text") from None
    if not topic:
        raise CorruptRecord(physical_offset, "the topic is empty")
    properties = bytes(view[topic_at + topic_bytes + 2 : end])
    return RecordFacts(size, topic, queue_id, queue_offset, sys_flag, store_ms, properties, body_at - at, body_bytes)


def whole_record(record: memoryview) -> Parts:
    """Take a whole record apart, so that its message can be stored again under another topic or sent to somebody.

    Raises CorruptRecord when its lengths or its body's checksum are wrong.
    """
    try:
        parts = parts_of(bytes(record))
    except BadMessage as exc:
        raise CorruptRecord(-1, str(exc)) from exc
    if parts.size_bytes != len(record):
        raise CorruptRecord(parts.physical_offset, "the lengths of its parts do not add up to its size")
    if crc32(parts.body) & 0x7FFFFFFF != parts.body_crc:
        raise CorruptRecord(parts.physical_offset, "the body's CRC is wrong")
    return parts


def is_torn(record: RecordFacts) -> bool:
    """Whether a record that checks out lacks a part of its topic or properties, which no checksum covers.

    A write that was cut short, and a page that did not reach the device, leave zeros: the last byte is one, or a whole sector.
    To be asked only of what nobody knows to be whole. Properties that end with a NUL of their own are taken for torn then.

    Differs: the original delivers such a message with zeros in its properties.
    """
    return "\0" in record.topic or record.properties.endswith(b"\0") or _SECTOR in record.properties


def store_time_at(view: memoryview) -> int:
    """Return the store time, in ms, of the record that a view begins with (at least 76 bytes of it)."""
    (sys_flag,) = _I32.unpack_from(view, 36)
    return int(_I64.unpack_from(view, 68 if sys_flag & BORN_V6 else 56)[0])


_tag_hashes: dict[bytes, int] = {}
_TAG_HASHES_MAX = 4096


def tag_hash_of(properties: bytes) -> int:
    """Return the Java hash of the TAGS property, 0 without one."""
    tag = property_of(properties, b"TAGS")
    if not tag:
        return 0
    code = _tag_hashes.get(tag)
    if code is None:
        if len(_tag_hashes) >= _TAG_HASHES_MAX:
            _tag_hashes.clear()
        code = _tag_hashes[tag] = java_hash(tag.decode("utf-8", "replace"))
    return code


def tag_code_of(topic: str, properties: bytes, store_ms: int) -> int:
    """Return the number in the tag field of a message's queue entry, whatever its topic: the hash of its TAGS."""
    return tag_hash_of(properties)


TagCode = Any
"""A function (topic, properties, store_ms) -> the number in a queue entry's tag field; the default is `tag_hash_of`."""
