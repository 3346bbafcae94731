"""A queue of the log as a journal of its own: its records read back in order, what pins log files, and syncs on demand.

For services of the broker that keep their state in records of a system topic and rebuild it from these at a start. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from halfmoon.hot import ENTRY, ENTRY_BYTES
from halfmoon.store.layout import FILLER_SIZE
from halfmoon.store.store import Store

_SYS_FLAG = Struct(">36xi")
_PREPARED = Struct(">q")


class Entry(NamedTuple):
    """One record of a queue: its queue offset, where it lies in the log, its size and tag code."""

    queue_offset: int
    physical_offset: int
    size: int
    tag_code: int


def entries(store: Store, topic: str, queue_id: int, begin: int = 0) -> Iterator[Entry]:
    """Yield the entries of a queue from an offset on, in order, those left out that the log has no more."""
    queue = store._queues.get((topic, queue_id))
    if queue is None:
        return
    at, first = max(begin, queue.min_offset), store.min_offset
    while at < queue.max_offset:
        view = queue.entries(at, min(queue.max_offset - at, queue.per_file - at % queue.per_file))
        if not len(view):
            return
        for place, size, code in ENTRY.iter_unpack(view[: len(view) // ENTRY_BYTES * ENTRY_BYTES]):
            if 0 < size != FILLER_SIZE and place >= first:
                yield Entry(at, place, size, code)
            at += 1


def entries_behind(store: Store, topic: str, queue_id: int, physical_offset: int) -> Iterator[Entry]:
    """Yield the entries of a queue that point behind a physical offset, the last first."""
    queue = store._queues.get((topic, queue_id))
    if queue is None:
        return
    for at in range(queue.max_offset - 1, queue.min_offset - 1, -1):
        place, size, code = queue.entry(at)
        if size == FILLER_SIZE or size <= 0:
            continue
        if place <= physical_offset:
            return
        yield Entry(at, place, size, code)


def last_with_code(store: Store, topic: str, queue_id: int, tag_code: int) -> Entry | None:
    """Return the last entry of a queue with a tag code; None: it has none."""
    for entry in entries_behind(store, topic, queue_id, store.min_offset - 1):
        if entry.tag_code == tag_code:
            return entry
    return None


def prepared_offset(record: memoryview) -> int:
    """Return the prepared-transaction offset of a whole record."""
    (sys_flag,) = _SYS_FLAG.unpack_from(record)
    wider = (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
    found: int = _PREPARED.unpack_from(record, 76 + wider)[0]
    return found


def sync_now(store: Store) -> None:
    """Start a sync of the log for what was appended, in any flush mode; behind one in flight it must be asked for again."""
    store._flush.log_wanted = True
    store._start_log_sync(inline=False)


def pin(store: Store, from_: Callable[[], int]) -> None:
    """Keep log files from a physical offset on that ``from_`` gives, beside those that are kept already."""
    before = store.maintenance.undecided_from
    store.maintenance.undecided_from = from_ if before is None else lambda: min(before(), from_())


def room_wanted_below(store: Store) -> int:
    """Return the physical offset below which files would go if nothing kept them, because the disk needs room; 0: it does not."""
    return store.maintenance.wanted_below
