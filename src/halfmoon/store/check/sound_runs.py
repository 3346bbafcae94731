"""The quick part of `fsck`: proves runs of records at once to be what queues and the key index say of them. Yields no problem.

A run is some hundred records that lie one behind another. It is sound if every body has its checksum, every record names its place,
the queues have exactly these entries, and the key index has exactly these keys next: bytes are compared. Whatever is not as usual
(a gap, transactions, delays, damage) is left to the check of each record, which says what is wrong, or that nothing is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from halfmoon import arrays
from halfmoon.hot import ENTRY, ENTRY_BYTES, KEY, crc32, record_keys, record_rows
from halfmoon.store.keyindex.key_index import HEADER_BYTES, SLOT_BYTES, IndexFile
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.log.segments import Segments
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Key
from halfmoon.store.records import tag_hash_of
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC

RUN_BYTES = 512 * 1024
_TRANSACTION = 0xC
_UNUSUAL = frozenset((HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC))
_HASH_AND_OFFSET = 12
"""Bytes that a packed key and an index entry have in common, at their beginning."""


class Run(NamedTuple):
    """Whole records one behind another: how many bytes, of each queue the first offset and the entries, and the packed keys."""

    size_bytes: int
    queues: Mapping[Key, tuple[int, bytes]]
    keys: bytes


def run_at(segments: Segments, position: int) -> Run | None:
    """Return the run that begins at a position; None: not all of its records are usual and whole."""
    base = segments.base(position)
    data = bytes(segments.view(position, min(RUN_BYTES, base + segments.file_bytes - position)))
    rows, used = record_rows(data, 0)
    queues: dict[tuple[bytes, int], list[bytes]] = {}
    firsts: dict[tuple[bytes, int], int] = {}
    at, pack = position, ENTRY.pack
    for head, body, tail, topic_size in rows:
        size, _, crc, queue_id, _, queue_offset, place, flag, _, _, store_ms, _, _, _, _ = head
        if place != at or flag & _TRANSACTION or store_ms <= 0 or crc32(body) & 0x7FFFFFFF != crc:
            return None
        key = tail[:topic_size], queue_id
        entries = queues.get(key)
        if entries is None:
            queues[key] = entries = []
            firsts[key] = queue_offset
        elif queue_offset != firsts[key] + len(entries):
            return None
        entries.append(pack(at, size, _tag_code(tail, topic_size + 2)))
        at += size
    if not rows:
        return None
    count, end, keys = record_keys(data, 0, position, len(rows))
    named = {(_text(topic), queue_id): (firsts[topic, queue_id], b"".join(of)) for (topic, queue_id), of in queues.items()}
    if (count, end) != (len(rows), used) or any(not topic or topic in _UNUSUAL or queue_id < 0 for topic, queue_id in named):
        return None
    return Run(used, named, keys)


_codes: dict[bytes, int] = {}
_CODES_MAX = 4096


def _tag_code(tail: bytes, properties_at: int) -> int:
    """Return the tag code of properties that begin at a place, as `tag_hash_of` does, which copies them."""
    mark = tail.find(b"TAGS\x01", properties_at)
    if mark < 0:
        return 0
    if mark != properties_at and tail[mark - 1] != 2:
        return tag_hash_of(tail[properties_at:])  # it is the end of another name
    end = tail.find(b"\x02", mark)
    tag = tail[mark + 5 : end if end >= 0 else len(tail)]
    code = _codes.get(tag)
    if code is None:
        if len(_codes) >= _CODES_MAX:
            _codes.clear()
        code = _codes[tag] = tag_hash_of(tail[properties_at:])
    return code


def _text(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return ""


def has_entries(queue: ConsumeQueue, first: int, entries: bytes) -> bool:
    """Whether a queue has exactly these entries from an offset on, in one of its files."""
    at = first * ENTRY_BYTES
    return queue.first <= first and at + len(entries) <= queue.segments.end and queue.segments.view(at, len(entries)) == entries


def has_keys(file: IndexFile, number: int, keys: bytes) -> bool:
    """Whether an index file has exactly these packed keys from an entry on."""
    count = len(keys) // KEY.size
    if number + count > file.header.count:
        return False
    entries = bytes(file.entries(number, count))
    step = KEY.size
    return all(entries[at : at + _HASH_AND_OFFSET] == keys[at : at + _HASH_AND_OFFSET] for at in range(0, len(keys), step))


def chains_are_whole(file: IndexFile) -> bool:
    """Whether every entry of an index file is in the chain of some slot, once; False also where numpy is not there to tell."""
    arrays.load()
    np, count = arrays.np, file.header.count
    if np is None:
        return False
    heads = np.frombuffer(file.file.view(HEADER_BYTES, SLOT_BYTES * file.slots), dtype=">i4")
    previous = np.frombuffer(file.entries(1, max(0, count - 1)), dtype=[("entry", "V16"), ("previous", ">i4")])["previous"]
    if (previous >= np.arange(1, count)).any():
        return False  # a chain only goes back
    pointed = np.concatenate([each[(each > 0) & (each < count)].astype(np.int64) for each in (heads, previous)])
    return bool((np.bincount(pointed, minlength=count)[1:] == 1).all())
