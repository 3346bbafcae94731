"""Walks the log for what concerns transactions: half records, op records, and the visible records of committed messages.

These three are the truth; the state table is derived from them. Of other records only the head and the length of the topic are
read, about a microsecond each. Writes nothing and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from halfmoon.errors import CorruptRecord
from halfmoon.hot import (
    BORN_V6,
    COMMIT_KIND,
    ENTRY,
    ENTRY_BYTES,
    HALF_KIND,
    MAGIC,
    OP_KIND,
    RECORD_BYTES_MIN,
    STORE_V6,
    property_of,
    transaction_kind,
)
from halfmoon.model import java_hash
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.log.commit_log import CommitLog
from halfmoon.store.log.resync import next_record
from halfmoon.store.queues.missing import Queues
from halfmoon.store.records import RecordFacts, check_at, is_torn
from halfmoon.store.store import Store

_HEAD = Struct(">ii28xi44xi")  # size, magic, sysFlag, body length of a record with two IPv4 hosts
_FIELDS = Struct(">12xi4xq28xq12xqi")  # queueId, queueOffset, store time, preparedTransactionOffset, body length of the same
_PREPARED_OFFSET_BACK = 12
"""Where preparedTransactionOffset lies: so many bytes before the body, in any record."""
_UNUSUAL = BORN_V6 | STORE_V6 | 0xC
_TOPICS = HALF_TOPIC.encode(), OP_TOPIC.encode()
_LENGTHS = tuple(map(len, _TOPICS))
_DIGITS_MAX = 19


class RecordKind(Enum):
    """Role of a record in a transaction."""

    HALF = HALF_KIND
    OP = OP_KIND
    COMMIT = COMMIT_KIND


class TransactionRecord(NamedTuple):
    """One record that changes a state."""

    kind: RecordKind
    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_s: int
    """When it was stored, seconds since the epoch."""
    half_offset: int
    """COMMIT: where the half record lies."""
    body: bytes
    """OP: see `indexes_of`."""
    properties: bytes
    """As stored."""
    torn: bool
    """COMMIT: the record shows that its write was cut short."""


def transaction_records(store: Store, start: int) -> Iterator[TransactionRecord]:
    """Yield the records about transactions of an open store from a record's offset on: none lies before the first half message."""
    queue, first = store.queues.get((HALF_TOPIC, 0)), first_half(store)
    if queue is not None and first is not None:
        yield from walk(store.log, max(start, queue.entry(first)[0]), store.end_offset)


def first_half(store: Store) -> int | None:
    """Return the half queue offset of the first half message that the log still has; None: there is none."""
    queue = store.queues.get((HALF_TOPIC, 0))
    first = None if queue is None else queue.real_entry(queue.min_offset, queue.written)
    return None if first is None else first[0]


class EntryLookup:
    """Looks up whether queues have an entry for a record: then the store took it for a whole one. Nobody may write meanwhile."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._views: dict[tuple[str, int], tuple[int, int, memoryview]] = {}
        """The file of each queue that was asked last: offsets of its first entry and behind its last, and its bytes."""

    def __call__(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> bool:
        """Whether the entry of a queue offset points at a physical offset."""
        first, end, view = self._views.get((topic, queue_id), _NO_ENTRIES)
        if not first <= queue_offset < end:
            queue = self._queues.get((topic, queue_id))
            if queue is None or not queue.first <= queue_offset < queue.segments.end // ENTRY_BYTES:
                return False
            queue.write_out()
            first = queue_offset - queue_offset % queue.per_file
            written = -(-queue.segments.data_end(first * ENTRY_BYTES) // ENTRY_BYTES)
            end = first + min(queue.per_file, written)
            if queue_offset >= end:
                return False
            view = queue.segments.view(first * ENTRY_BYTES, queue.per_file * ENTRY_BYTES)
            self._views[topic, queue_id] = first, end, view
        offset, size, _ = ENTRY.unpack_from(view, (queue_offset - first) * ENTRY_BYTES)
        return bool(offset == physical_offset and size > 0)


_NO_ENTRIES = (0, 0, memoryview(b""))


def walk(log: CommitLog, start: int, end: int) -> Iterator[TransactionRecord]:
    """Yield the records about transactions between two physical offsets, in order.

    A damaged record is left out; behind one whose size is damaged too the walk goes on with the next record that proves itself.
    Bodies and properties of the others are not checked against anything: whether a record counts is for the caller to ask the
    record's queue (`Store` enters whole records only).
    """
    segments = log.segments
    position = max(start, segments.first)
    end = min(end, segments.end)
    while position < end:
        base = segments.base(position)
        view = segments.view(base, log.file_bytes)
        yield from _walk_file(log, view, base, position - base, min(end - base, len(view)))
        position = base + log.file_bytes


def _walk_file(log: CommitLog, view: memoryview, base: int, at: int, stop: int) -> Iterator[TransactionRecord]:
    unpack, before = _HEAD.unpack_from, at
    while at < stop:
        if stop - at >= RECORD_BYTES_MIN:
            # The usual record: its head alone tells that it is not about a transaction, without a checksum or a copy.
            size, magic, sys_flag, body_bytes = unpack(view, at)
            if (
                magic == MAGIC and not sys_flag & _UNUSUAL and RECORD_BYTES_MIN <= size <= stop - at
                and 0 <= body_bytes <= size - RECORD_BYTES_MIN
            ):  # fmt: skip
                topic_bytes = view[at + 88 + body_bytes]
                if topic_bytes in _LENGTHS and (record := _usual(view, at, base, size, body_bytes, topic_bytes)) is not None:
                    yield record
                before, at = at, at + size
                continue
        try:
            facts = check_at(view, at, base + at)
        except CorruptRecord:
            behind = _behind_damage(log, view, base, before, at, stop)
            if behind is None:
                return
            before = at = behind
            continue
        if not isinstance(facts, RecordFacts):
            return  # the blank tail of the file
        if (record := transaction_record(base + at, facts, view[at : at + facts.size_bytes])) is not None:
            yield record
        before, at = at, at + facts.size_bytes


def _behind_damage(log: CommitLog, view: memoryview, base: int, before: int, at: int, stop: int) -> int | None:
    """Return where the next record begins behind one at ``at`` that does not check out; None: nowhere in this file.

    ``before`` is the record in front of it: its size led here, and may be what is damaged.
    """
    if size := log.damaged_size(view, at, base + at, base + stop):
        return at + size
    damaged = at if _is_whole(view, before, base) else before
    behind = next_record(log.segments, base + damaged + 1, base + stop)
    return None if behind is None else behind - base


def _is_whole(view: memoryview, at: int, base: int) -> bool:
    try:
        return isinstance(check_at(view, at, base + at), RecordFacts)
    except CorruptRecord:
        return False


def _usual(view: memoryview, at: int, base: int, size: int, body_bytes: int, topic_bytes: int) -> TransactionRecord | None:
    """Return what a record with two IPv4 hosts and no transaction bits is to a transaction; None: nothing."""
    topic_at = at + 89 + body_bytes
    topic, properties = bytes(view[topic_at : topic_at + topic_bytes]), bytes(view[topic_at + topic_bytes + 2 : at + size])
    queue_id, queue_offset, store_ms, _, _ = _FIELDS.unpack_from(view, at)
    kind = transaction_kind(0, queue_id, topic, properties, _TOPICS)
    if kind is None:
        return None
    body = b"" if kind == HALF_KIND else bytes(view[at + 88 : at + 88 + body_bytes])
    return TransactionRecord(
        RecordKind(kind), base + at, size, str(topic, "utf-8"), queue_id, queue_offset, store_ms // 1000, 0, body, properties, False
    )


def transaction_record(position: int, facts: RecordFacts, record: memoryview) -> TransactionRecord | None:
    """Return what a checked record is to a transaction; None: nothing."""
    kind = transaction_kind(facts.sys_flag, facts.queue_id, facts.topic.encode(), facts.properties, _TOPICS)
    if kind is None:
        return None
    at, is_commit = facts.body_at - _PREPARED_OFFSET_BACK, kind == COMMIT_KIND
    half_offset = int.from_bytes(record[at : at + 8], "big", signed=True) if is_commit else 0
    body = bytes(record[facts.body_at : facts.body_at + facts.body_bytes]) if kind == OP_KIND else b""
    return TransactionRecord(
        RecordKind(kind), position, facts.size_bytes, facts.topic, facts.queue_id, facts.queue_offset, facts.store_ms // 1000,
        half_offset, body, facts.properties, is_commit and is_torn(facts),
    )  # fmt: skip


def indexes_of(body: bytes) -> tuple[list[int], int]:
    """Return the half queue offsets that an op record's body names, and how many of its parts are no numbers.

    Follows TransactionalMessageServiceImpl.fillOpRemoveMap: one number (4.x), or many with a comma behind each (5.x).
    """
    if len(body) <= _DIGITS_MAX and body.isdigit():
        return [int(body)], 0
    parts = [number for number in body.split(b",") if number]
    good = [int(number) for number in parts if len(number) <= _DIGITS_MAX and number.isdigit()]
    return good, len(parts) - len(good)


def group_hash_of(properties: bytes) -> int:
    """Return Java's hash of the producer group that a half record names; that of the empty text without one."""
    return _hash_of(property_of(properties, b"PGROUP") or b"")


@lru_cache(maxsize=1024)
def _hash_of(group: bytes) -> int:
    return java_hash(group.decode("utf-8", "replace"))
