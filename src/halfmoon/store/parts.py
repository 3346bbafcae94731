"""A stored record taken apart, so that its message can be stored again under another topic or sent to somebody. Keeps nothing.

The broker does this with half messages: a commit stores the message where consumers see it, a check sends it to its producer.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from halfmoon.errors import CorruptRecord
from halfmoon.hot import crc32
from halfmoon.store.layout import MAGIC, MAGIC_V2
from halfmoon.store.records import BORN_V6, STORE_V6

_HEADS = {  # by the IPv6 bits of sysFlag; fields as in halfmoon.store.records
    born_bit | store_bit: Struct(f">iiiiiqqiq{born}sq{store}siqi")
    for born_bit, born in ((0, 8), (BORN_V6, 20))
    for store_bit, store in ((0, 8), (STORE_V6, 20))
}
_SYS_FLAG = Struct(">36xi")


class Parts(NamedTuple):
    """What one record holds. ``properties`` are as stored; times are milliseconds since the epoch."""

    topic: str
    queue_offset: int
    physical_offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    reconsume_times: int
    body: bytes
    properties: bytes


def parts_of(record: memoryview) -> Parts:
    """Take a whole record apart. Raises CorruptRecord when its lengths or its body's checksum are wrong."""
    if len(record) < 91:
        raise CorruptRecord(-1, f"a record of {len(record)} bytes")
    (sys_flag,) = _SYS_FLAG.unpack_from(record)
    head = _HEADS[sys_flag & (BORN_V6 | STORE_V6)]
    if len(record) < head.size + 3:
        raise CorruptRecord(-1, f"a record of {len(record)} bytes")
    (
        size, magic, crc, _, flag, queue_offset, physical_offset, _, born_ms, born_host, store_ms, _, reconsume_times, _,
        body_bytes,
    ) = head.unpack_from(record)  # fmt: skip
    width = 2 if magic == MAGIC_V2 else 1
    topic_at = head.size + body_bytes + width
    if magic not in (MAGIC, MAGIC_V2) or size != len(record) or body_bytes < 0 or topic_at + 2 > size:
        raise CorruptRecord(physical_offset, "the lengths of its parts do not add up to its size")
    body = bytes(record[head.size : head.size + body_bytes])
    topic_bytes = int.from_bytes(record[topic_at - width : topic_at], "big")
    if topic_at + topic_bytes + 2 > size:
        raise CorruptRecord(physical_offset, f"a topic of {topic_bytes} bytes does not fit")
    if crc32(body) & 0x7FFFFFFF != crc:
        raise CorruptRecord(physical_offset, "the body's CRC is wrong")
    topic = str(record[topic_at : topic_at + topic_bytes], "utf-8", "replace")
    properties = bytes(record[topic_at + topic_bytes + 2 :])
    return Parts(
        topic, queue_offset, physical_offset, flag, sys_flag, born_ms, born_host, store_ms, reconsume_times, body, properties
    )


def size_of(topic_bytes: int, body_bytes: int, properties_bytes: int, born_host: bytes, store_host: bytes) -> int:
    """Return how many bytes the record of a message takes (V1)."""
    return 75 + len(born_host) + len(store_host) + topic_bytes + body_bytes + properties_bytes
