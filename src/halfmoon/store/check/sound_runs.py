"""The quick part of `fsck`: proves runs of records at once to be what queues and the key index say of them. Yields no problem.

A run is some hundred records that lie one behind another. It is sound if every body has its checksum, every record names its place,
the queues have exactly these entries, and the key index has exactly these keys next: bytes are compared. Whatever is not as usual
(a gap, transactions, delays, damage) is left to the check of each record, which says what is wrong, or that nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from halfmoon.hot import ENTRY_BYTES, INDEX_ENTRY, KEY, checked_records
from halfmoon.store.keyindex.key_index import HEADER_BYTES, SLOT_BYTES, IndexFile
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.log.segments import Segments
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Key
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC

RUN_BYTES = 512 * 1024
_NUMBERS = Struct(">i")
_UNUSUAL = tuple(topic.encode() for topic in (HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))
_HASH_AND_OFFSET = 12
"""Bytes that a packed key and an index entry have in common, at their beginning."""


class SoundRun(NamedTuple):
    """Whole records one behind another: how many bytes, of each queue the first offset and the entries, and the packed keys."""

    size_bytes: int
    queues: Mapping[Key, tuple[int, bytes]]
    keys: bytes


def run_at(segments: Segments, position: int) -> SoundRun | None:
    """Return the run that begins at a position, up to the first record that is not usual and whole; None: that is the next one."""
    base = segments.base(position)
    data = bytes(segments.view(position, min(RUN_BYTES, base + segments.file_bytes - position)))
    size, queues, keys = checked_records(data, position, _UNUSUAL)
    return (
        SoundRun(size, {(topic, queue_id): (first, entries) for topic, queue_id, first, entries in queues}, keys) if size else None
    )


def has_entries(queue: ConsumeQueue, first: int, entries: bytes) -> bool:
    """Whether a queue has exactly these entries from an offset on, in one of its files."""
    at = first * ENTRY_BYTES
    if first < queue.first or at + len(entries) > queue.segments.end:
        return False
    return bytes(queue.segments.view(at, len(entries))) == entries  # to compare a view costs more than to copy it


def has_keys(file: IndexFile, number: int, keys: bytes) -> bool:
    """Whether an index file has exactly these packed keys from an entry on."""
    count = len(keys) // KEY.size
    if number + count > file.header.count:
        return False
    entries, step = bytes(file.entries(number, count)), KEY.size
    return all(entries[byte::step] == keys[byte::step] for byte in range(_HASH_AND_OFFSET))


def chains_are_whole(file: IndexFile) -> bool:
    """Whether every entry of an index file is in the chain of some slot, once."""
    count = file.header.count
    heads = _NUMBERS.iter_unpack(file.file.view(HEADER_BYTES, SLOT_BYTES * file.slots))
    previous = INDEX_ENTRY.iter_unpack(file.entries(1, max(0, count - 1)))
    pointed = bytearray(b"\1" + bytes(max(0, count - 1)))  # no entry has the number 0
    for (number,) in heads:
        if 0 < number < count:
            if pointed[number]:
                return False
            pointed[number] = 1
    for number, (*_, before) in enumerate(previous, 1):
        if before >= number or (before > 0 and pointed[before]):
            return False  # a chain only goes back
        pointed[max(before, 0)] = 1
    return 0 not in pointed
