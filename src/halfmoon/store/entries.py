"""The entries of a store's queues as plain values, for services of the broker that keep what they know in a system topic.

They rebuild their state from these entries and their records at a start. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from halfmoon.hot import BORN_V6, ENTRY, ENTRY_BYTES, FILLER_SIZE, STORE_V6
from halfmoon.store.store import Store

_SYS_FLAG = Struct(">36xi")
_PREPARED_OFFSET = Struct(">q")
_ENTRIES_AT_ONCE = 4096


class QueueEntry(NamedTuple):
    """One entry of a queue: its queue offset, and where its record lies in the log."""

    queue_offset: int
    physical_offset: int
    size: int
    """Bytes of the record; 0 where a filler stands."""
    tag_code: int
    """The hash of the tag; for delayed messages when they are due, ms since the epoch: see `halfmoon.store.timer.messages`."""


def entries_at(store: Store, topic: str, queue_id: int, queue_offset: int, count: int) -> list[QueueEntry]:
    """Return up to ``count`` entries from an offset on, fillers included; fewer at the end of a file."""
    queue = store.queues.get((topic, queue_id))
    if queue is None or not queue.min_offset <= queue_offset < queue.max_offset:
        return []
    view = queue.entries(queue_offset, min(count, queue.per_file - queue_offset % queue.per_file))
    return [
        QueueEntry(offset, physical_offset, 0 if size == FILLER_SIZE else size, tag_code)
        for offset, (physical_offset, size, tag_code) in enumerate(
            ENTRY.iter_unpack(view[: len(view) // ENTRY_BYTES * ENTRY_BYTES]), queue_offset
        )
    ]


def entries(store: Store, topic: str, queue_id: int, begin: int = 0) -> Iterator[QueueEntry]:
    """Yield the entries of a queue from an offset on, in order, without those whose record the log no longer has."""
    at, first = max(begin, store.queue_min(topic, queue_id)), store.min_offset
    while page := entries_at(store, topic, queue_id, at, _ENTRIES_AT_ONCE):
        yield from (entry for entry in page if entry.size > 0 and entry.physical_offset >= first)
        at += len(page)


def entries_behind(store: Store, topic: str, queue_id: int, physical_offset: int) -> Iterator[QueueEntry]:
    """Yield the entries of a queue that point behind a physical offset, the last first."""
    queue = store.queues.get((topic, queue_id))
    if queue is None:
        return
    for queue_offset in range(queue.max_offset - 1, queue.min_offset - 1, -1):
        entry = QueueEntry(queue_offset, *queue.entry(queue_offset))
        if entry.size == FILLER_SIZE or entry.size <= 0:
            continue
        if entry.physical_offset <= physical_offset:
            return
        yield entry


def last_with_code(store: Store, topic: str, queue_id: int, tag_code: int) -> QueueEntry | None:
    """Return the last entry of a queue with a tag code; None: it has none."""
    behind = entries_behind(store, topic, queue_id, store.min_offset - 1)
    return next((entry for entry in behind if entry.tag_code == tag_code), None)


def prepared_offset(record: memoryview) -> int:
    """Return the prepared-transaction offset of a whole record."""
    (sys_flag,) = _SYS_FLAG.unpack_from(record)
    hosts_more = (12 if sys_flag & BORN_V6 else 0) + (12 if sys_flag & STORE_V6 else 0)  # an IPv6 host takes 12 bytes more
    (offset,) = _PREPARED_OFFSET.unpack_from(record, 76 + hosts_more)
    return int(offset)
