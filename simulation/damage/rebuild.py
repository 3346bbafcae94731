"""Compares the indexes of a stopped store with what its log says they must be. Reads a `ports.Disk`, writes nothing.

Written from the format alone and without the store's own code, so that the two check each other: 20-byte entries of consume queues
(``| physical offset i64 | size i32 | tag hash i64 |``) and key index files (a header of 40 bytes, slots of 4, entries of 20).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from halfmoon.errors import PeerError
from halfmoon.model import KEYS, UNIQ_KEY, java_hash
from halfmoon.ports import Disk
from halfmoon.wire.record import decode_record

PROBLEMS_MAX = 20

_ENTRY = Struct(">qiq")
_TWO = Struct(">ii")
_KEY_ENTRY = Struct(">iqii")  # | key hash i32 | physical offset i64 | seconds i32 | previous entry i32 |
_RECORD_BYTES_MIN = 91
_BLANK, _V1, _V2 = -875286124, -626843481, -626843477
_FILLER_BYTES = 0x7FFFFFFF  # as a size: a place without a message, left by lost or deleted ones
_NOT_INDEXED = (4, 12)  # prepared and rolled back records of the 3.x kind


class LogRecord(NamedTuple):
    """Fields of one record that the indexes need."""

    physical_offset: int
    size_bytes: int
    topic: str
    queue_id: int
    queue_offset: int
    tag_hash: int
    keys: tuple[str, ...]


def scan_log(disk: Disk) -> list[LogRecord]:
    """Return the records of the log, in order; what is damaged is left out."""
    return [record for view in walk_log(disk) if (record := _record(view)) is not None]


def walk_log(disk: Disk) -> Iterator[memoryview]:
    """Yield the bytes of each record of the log, in order, over all of its files.

    Bytes that are no record are left out up to the next one that is one and lies where it says.
    """
    for name in disk.list("commitlog"):
        size = disk.file_size(f"commitlog/{name}")
        view = disk.open(f"commitlog/{name}").view(0, size)
        base, at = int(name), 0
        while at + 8 <= size and not _is_blank(view, at):
            if _is_record(view, base, at):
                end = at + _TWO.unpack_from(view, at)[0]
                yield view[at:end]
                at = end
            else:
                at = _next_record(view, base, at + 1)


def indexes_differ(
    disk: Disk, *, queue_file_bytes: int, hash_slots: int, index_entries_max: int, spoilt: AbstractSet[int] = frozenset()
) -> list[str]:
    """Return every difference between the indexes of a cleanly stopped store and a rebuild from its log.

    Of the records at the physical offsets ``spoilt``, which were whole once, indexes may still know.
    """
    records = [record for record in scan_log(disk) if record.physical_offset not in spoilt]
    names = disk.list("commitlog")
    first = int(names[0]) if names else 0
    problems = _wrong_places(records)
    problems += _queues_differ(disk, records, first, queue_file_bytes, spoilt)
    problems += _keys_differ(disk, records, first, hash_slots, index_entries_max, spoilt)
    return problems[:PROBLEMS_MAX]


def _next_record(view: memoryview, base: int, at: int) -> int:
    """Return where the next record or the blank tail of a file begins, or the file's end."""
    data = bytes(view)
    while at < len(data):
        marks = [place for magic in (_V1, _V2, _BLANK) if (place := data.find(magic.to_bytes(4, "big", signed=True), at + 4)) >= 0]
        if not marks:
            break
        at = min(marks) - 4
        if _is_record(view, base, at) or _is_blank(view, at):
            return at
        at += 1
    return len(data)


def _is_blank(view: memoryview, at: int) -> bool:
    return at + 8 <= len(view) and _TWO.unpack_from(view, at) == (len(view) - at, _BLANK)


def _is_record(view: memoryview, base: int, at: int) -> bool:
    """Whether a whole record begins at a byte of the file that begins at ``base``, and says so of itself."""
    total, magic = _TWO.unpack_from(view, at) if at + _RECORD_BYTES_MIN <= len(view) else (0, 0)
    if magic not in (_V1, _V2) or not _RECORD_BYTES_MIN <= total <= len(view) - at:
        return False
    try:
        message = decode_record(view[at : at + total])
    except PeerError:
        return False
    return message.physical_offset == base + at and crc32(message.body) & 0x7FFFFFFF == message.body_crc


def _record(view: memoryview) -> LogRecord | None:
    message = decode_record(view)
    if message.sys_flag & 12 in _NOT_INDEXED:
        return None
    keys = ((message.properties[UNIQ_KEY],) if UNIQ_KEY in message.properties else ()) + tuple(
        message.properties.get(KEYS, "").split()
    )
    tag_hash = java_hash(message.tag) if message.tag else 0
    return LogRecord(
        message.physical_offset, len(view), message.topic, message.queue_id, message.queue_offset, tag_hash, keys
    )  # fmt: skip


def _wrong_places(records: list[LogRecord]) -> list[str]:
    last: dict[tuple[str, int], int] = {}
    problems = []
    for record in records:
        queue = (record.topic, record.queue_id)
        if record.queue_offset <= last.get(queue, -1):
            problems.append(f"log: {queue} has offset {record.queue_offset} after {last[queue]}")
        last[queue] = record.queue_offset
    return problems


def _queues_differ(disk: Disk, records: list[LogRecord], first: int, file_bytes: int, spoilt: AbstractSet[int]) -> list[str]:
    expected: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
    for record in records:
        entry = (record.physical_offset, record.size_bytes, record.tag_hash)
        expected.setdefault((record.topic, record.queue_id), {})[record.queue_offset] = entry
    actual = {
        (topic, int(queue_id)): dict(_queue_entries(disk, f"consumequeue/{topic}/{queue_id}", file_bytes))
        for topic in disk.list("consumequeue")
        for queue_id in disk.list(f"consumequeue/{topic}")
    }
    problems = []
    for queue, entries in expected.items():
        there = actual.get(queue, {})
        problems += [
            f"queue {queue}: offset {offset} is {there.get(offset)} and should be {entry}"
            for offset, entry in entries.items()
            if there.get(offset) != entry
        ]
    for queue, there in actual.items():
        problems += [
            f"queue {queue}: offset {offset} is {entry}, which the log does not say"
            for offset, entry in there.items()
            if offset not in expected.get(queue, {}) and entry[0] >= first and entry[0] not in spoilt
        ]
    return problems


def _queue_entries(disk: Disk, path: str, file_bytes: int) -> Iterator[tuple[int, tuple[int, int, int]]]:
    for name in disk.list(path):
        size = disk.file_size(f"{path}/{name}")
        view = disk.open(f"{path}/{name}").view(0, size)
        base = int(name) // 20
        for i in range(min(size, file_bytes) // 20):
            entry = _ENTRY.unpack_from(view, i * 20)
            if entry[1] not in (0, _FILLER_BYTES):
                yield base + i, entry


def _keys_differ(
    disk: Disk, records: list[LogRecord], first: int, slots: int, entries_max: int, spoilt: AbstractSet[int]
) -> list[str]:
    expected = Counter((_key_hash(f"{record.topic}#{key}"), record.physical_offset) for record in records for key in record.keys)
    actual: Counter[tuple[int, int]] = Counter()
    problems = []
    for name in disk.list("index"):
        path = f"index/{name}"
        size = disk.file_size(path)
        view = disk.open(path).view(0, size)
        (count,) = Struct(">i").unpack_from(view, 36)
        if not 0 <= count <= entries_max:
            problems.append(f"{path}: counts {count} entries")
            continue
        linked = _linked(view, slots, count)
        for number in range(1, count):
            key_hash, physical_offset, _, _ = _KEY_ENTRY.unpack_from(view, 40 + 4 * slots + 20 * number)
            actual[key_hash, physical_offset] += 1
            if number not in linked:
                problems.append(f"{path}: entry {number} is in no chain")
    missing, foreign = expected - actual, actual - expected
    for what, count in list(missing.items())[:3]:
        problems.append(f"key index: {count} x hash {what[0]} of the record at {what[1]} is missing (one of {len(missing)})")
    for what, count in foreign.items():
        if what[1] >= first and what[1] not in spoilt:
            problems.append(f"key index: {count} x hash {what[0]} at {what[1]}, which the log does not say")
    return problems


def _linked(view: memoryview, slots: int, count: int) -> set[int]:
    """Return the numbers of all entries that a walk from their own slot reaches."""
    found: set[int] = set()
    for slot in range(slots):
        (number,) = Struct(">i").unpack_from(view, 40 + 4 * slot)
        while 0 < number < count and number not in found:
            key_hash, _, _, previous = _KEY_ENTRY.unpack_from(view, 40 + 4 * slots + 20 * number)
            if key_hash % slots != slot:
                break
            found.add(number)
            number = previous
    return found


def _key_hash(text: str) -> int:
    """Follows IndexFile.indexKeyHashMethod: the absolute Java hash, 0 for the smallest int."""
    value = abs(java_hash(text))
    return value if value < 2**31 else 0
