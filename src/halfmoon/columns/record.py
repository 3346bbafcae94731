"""The layout of a stored record, and reading one: the one place that has it. Keeps nothing.

Big endian; a host is ``| ip 4 or 16 | port i32 |``, 8 bytes, or 20 with bit 0x10 (born) or 0x20 (store) of sysFlag, which shifts
what follows::

     0 size i32 | 4 magic i32 | 8 body crc i32 | 12 queue id i32 | 16 flag i32 | 20 queue offset i64 | 28 physical offset i64
    36 sysFlag i32 | 40 born ms i64 | 48 born host | 56 store ms i64 | 64 store host | 72 reconsume times i32
    76 prepared transaction offset i64 | 84 body length i32 | 88 body | topic length u8 (V2: u16) | topic
    properties length u16 | properties

A queue entry is ``| physical offset i64 | size i32 | tag code i64 |``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, NamedTuple

from halfmoon.errors import BadMessage

MAGIC: Final = -626843481
"""A stored record (0xDAA320A7)."""
MAGIC_V2: Final = -626843477
"""A stored record with a topic length of two bytes (0xDAA320AB), written by 5.x for topics over 127 bytes."""

BORN_V6, STORE_V6 = 0x10, 0x20
HEADS = {
    born_bit | store_bit: Struct(f">iiiiiqqiq{born}sq{store}siqi")
    for born_bit, born in ((0, 8), (BORN_V6, 20))
    for store_bit, store in ((0, 8), (STORE_V6, 20))
}
"""Up to the body, by the IPv6 bits of sysFlag."""
HEAD = HEADS[0]
RECORD_BYTES_MIN: Final = 91
"""Bytes of a record with no body, no properties and (impossible) an empty topic."""
IPV6_BYTES_MORE: Final = 12
"""Bytes that an IPv6 host takes more than an IPv4 one."""
SYS_FLAG_AT: Final = 36

_SHAPE = Struct(">ii4xi4xqqi44xi")
"""Size, magic, queue id, queue offset, physical offset, sysFlag and, with IPv4 hosts, body length."""
_I32 = Struct(">i")
JOINED_MAX: Final = 64 * 1024
"""Bytes of records that lie apart, up to which a copy costs less than to hand them on one by one."""

APART_MIN: Final = 4096
"""Bytes of a piece that costs less to hand on than to copy."""

ENTRY = Struct(">qiq")
ENTRY_BYTES: Final = 20
TAG_CODE_AT: Final = 12
FILLER_SIZE: Final = 0x7FFFFFFF
"""Size in a queue entry that stands for no message; readers step over it."""


Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""size, magic, body crc, queue id, flag, queue offset, physical offset, sysFlag, born ms, born host, store ms, store host,
reconsume times, prepared transaction offset, body length."""


def parts_at(data: bytes | memoryview, at: int) -> tuple[Head, int, int, int, int]:
    """Return of the record at ``at`` its head, where its body begins, where its topic begins and how long that is, and its end.

    The lengths of its parts are checked, its CRC is not.

    Raises:
        BadMessage: the bytes are not a whole record.
    """
    try:
        head: Head = HEAD.unpack_from(data, at)
        body_at = at + 88
        if head[7] & 0x30:
            shape = HEADS[head[7] & 0x30]
            head, body_at = shape.unpack_from(data, at), at + shape.size
        magic, body_size = head[1], head[14]
        topic_at = body_at + body_size
        if body_size < 0:
            raise BadMessage(f"record at byte {at}: body length {body_size}")
        if magic == MAGIC:
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
        size = head[0]
        raise BadMessage(f"record at byte {at}: its parts take {end - at} bytes, its size says {size}, {len(data) - at} are there")
    return head, body_at, topic_at, topic_size, end


Row = tuple[Head, bytes, bytes, int]
"""A record: its head, its body, what stands behind that from the topic on, and how long the topic is."""


def record_rows(data: bytes, at: int) -> tuple[list[Row], int]:
    """Return the records from ``at`` on that are whole, one behind another, and where the first begins that is not, or they end.

    `parts_at` says what is wrong there.
    """
    rows: list[Row] = []
    end = len(data)
    try:
        while at < end:
            head, body_at, topic_at, topic_size, after = parts_at(data, at)
            rows.append((head, data[body_at : body_at + head[14]], data[topic_at:after], topic_size))
            at = after
    except BadMessage:
        pass
    return rows, at


def whole_records(
    data: bytes | memoryview, sizes: Sequence[int], queue_id: int, queue_offset: int, physical_offset: int
) -> int:  # fmt: skip
    """Return how many of the records that lie one behind another are whole, up to the first that is not.

    A record is whole when its magic is one, its parts take as many bytes as it says and its queue entry says, in ``sizes``, and it
    names its own place: the queue, and offsets that count on from those of the first. Its CRC is not looked at: a reader that steps
    from record to record finds the next one, and goes on where its offset says.
    """
    at = 0
    for count, size in enumerate(sizes):
        if not _is_whole(data, at, size, queue_id, queue_offset + count, physical_offset + at):
            return count
        at += size
    return len(sizes)


def gather(
    area: memoryview, base: int, entries: bytes, chosen: Sequence[int] | None, queue_id: int, queue_offset: int, bytes_max: int,
    known: bool,
) -> tuple[int, int, list[memoryview]]:  # fmt: skip
    """Return how many records are taken, how many bytes they have, and these bytes, where neighbours are one piece.

    ``area`` are bytes of one file of the log from the offset ``base`` on, ``entries`` those of a queue from ``queue_offset`` on,
    ``chosen`` the indexes, rising, of those that are wanted; None: all. Ends before a record that does not fit into ``bytes_max``,
    or that is not whole in the area (see `whole_records`); ``known``: those that lie in it are whole, and are not looked into. Up
    to `JOINED_MAX` bytes are one piece, a copy, where they lie apart, but for known ones in pieces of `APART_MIN` on the average.
    """
    runs: list[tuple[int, int]] = []
    count = size_bytes = begin = end = 0
    limit = len(area)
    for number, (place, size, _) in _numbered(entries, chosen, queue_offset):
        at = place - base
        if size_bytes + size > bytes_max or at < 0 or not 0 < size <= limit - at:
            break
        if not known:
            try:  # as `_is_whole` says of the usual record, for a call costs as much as half of this
                stored, magic, queue, named, placed, flag, body = _SHAPE.unpack_from(area, at)
                tail = at + 89 + body
                tail += area[tail - 1]
                whole = (
                    at + size == tail + 2 + (area[tail] << 8 | area[tail + 1]) and stored == size and magic == MAGIC
                    and body >= 0 and placed == place and named == number and queue == queue_id and not flag & 0x30
                )  # fmt: skip
            except (struct_error, IndexError):
                whole = False
            if not whole and not _is_whole(area, at, size, queue_id, number, place):
                break
        if at != end:
            runs.append((begin, end))
            begin = at
        end = at + size
        count += 1
        size_bytes += size
    runs.append((begin, end))
    return count, size_bytes, _pieces(area, runs, size_bytes, known)


def _pieces(area: memoryview, runs: list[tuple[int, int]], size_bytes: int, known: bool) -> list[memoryview]:
    """Return the bytes of runs, joined where a copy costs less than handing them on one by one."""
    pieces = [area[begin:end] for begin, end in runs if begin < end]
    if len(pieces) > 1 and size_bytes <= JOINED_MAX and not (known and size_bytes >= len(pieces) * APART_MIN):
        return [memoryview(b"".join(pieces))]
    return pieces


def _numbered(entries: bytes, chosen: Sequence[int] | None, queue_offset: int) -> Iterable[tuple[int, tuple[Any, ...]]]:
    """Return the queue offsets of entries, and what they say."""
    if chosen is not None:
        return [(queue_offset + index, ENTRY.unpack_from(entries, index * ENTRY_BYTES)) for index in chosen]
    return enumerate(ENTRY.iter_unpack(entries[: len(entries) // ENTRY_BYTES * ENTRY_BYTES]), queue_offset)


def _is_whole(data: bytes | memoryview, at: int, size: int, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
    """Whether a record of this size and place, as `whole_records` says, begins at ``at``, which is not negative."""
    end = at + size
    try:
        stored, magic, queue, number, place, flag, body = _SHAPE.unpack_from(data, at)
        topic_at = at + 88 + body
        if magic == MAGIC and not flag & 0x30:
            properties_at = topic_at + 1 + data[topic_at]
        else:
            topic_at, properties_at = _topic_and_properties(data, at, magic, flag)
        return (
            end == properties_at + 2 + (data[properties_at] << 8 | data[properties_at + 1])
            and stored == size
            and topic_at >= at
            and end <= len(data)
            and place == physical_offset
            and number == queue_offset
            and queue == queue_id
        )
    except (struct_error, IndexError):
        return False


def _topic_and_properties(data: bytes | memoryview, at: int, magic: int, flag: int) -> tuple[int, int]:
    """Return where topic and properties begin. Raises IndexError or struct.error where they cannot."""
    head = at + HEADS[flag & 0x30].size
    topic_at: int = head + _I32.unpack_from(data, head - 4)[0]
    if magic == MAGIC:
        return topic_at, topic_at + 1 + data[topic_at]
    if magic != MAGIC_V2:
        raise IndexError(at)
    return topic_at, topic_at + 2 + (data[topic_at] << 8 | data[topic_at + 1])


class Parts(NamedTuple):
    """One stored record, taken apart. ``properties`` are as stored; times are milliseconds since the epoch."""

    size_bytes: int
    body_crc: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    reconsume_times: int
    topic: str
    body: bytes
    properties: bytes


def parts_of(data: bytes) -> Parts:
    """Return the record that bytes begin with. Raises what `parts_at` does."""
    head, body_at, topic_at, topic_size, end = parts_at(data, 0)
    size, _, crc, _, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms, _, reconsume_times, _, body = head
    properties_at = topic_at + topic_size
    return Parts(
        size, crc, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, store_ms, reconsume_times,
        str(data[topic_at:properties_at], "utf-8", "replace"), data[body_at : body_at + body], data[properties_at + 2 : end],
    )  # fmt: skip


Columns = tuple[int, bytes, list[list[tuple[int, int] | None]]]
"""Records as the buffers of Arrow columns: how many rows, the buffers, and the columns.

The buffers lie in one run of bytes, so that the allocator may give the same pages again. A column is the position (begin, size) of
its buffers: of numbers; of validity bits (None: all are valid), offsets and bytes of texts and bodies; of offsets, name offsets,
names, value offsets and values of the properties. Numbers are in machine order, offsets have 32 bits, times are microseconds.
"""


def row_columns(raw: bytes, begin: int, end: int, names: Sequence[str], verify: bool) -> Columns | None:
    """Return the records of ``raw``, one behind another, that have a queue offset in [begin, end), as columns.

    ``names`` are those of `data.rows.COLUMNS` but brokerName. ``verify`` compares the CRC of every body. None: not all of
    them are ordinary, and whoever asked makes the columns with numpy, or says what is wrong. This twin leaves all of them to numpy.
    """
    return None
