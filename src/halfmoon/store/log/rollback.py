"""Takes back what the saved tables of a broker say of records that are about to be cut off the log. Reads queues, writes tables.

Progress of groups and trims end where their queues do. Of delayed messages nobody knows which copies are cut, only how many there
may be: the last ones of each level and of the timer count as waiting again, and some of them are delivered twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import TypeVar

from halfmoon.errors import PeerError
from halfmoon.hot import ENTRY_BYTES, FILLER_SIZE
from halfmoon.ports import Disk
from halfmoon.store.check.tables import DELAYS, OFFSETS, TIMER, TOPICS, TRIMS
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.queues.inventory import Key
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.wire.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    TimerOffset,
    TopicConfigTable,
    TrimTable,
    from_json,
    to_json,
)
from halfmoon.wire.json import Body

B = TypeVar("B", bound=Body)
Ends = Mapping[Key, int]

DELIVERED_AT_ONCE = 256
"""Most messages that a broker delivers at once, and stores in another order than that of their delivery."""


def roll_back_tables(disk: Disk, queues: Mapping[Key, ConsumeQueue], ends: Ends, log_end: int, delayed_count: int) -> None:
    """Save the tables as they are for a log that ends at an offset, with queues that end at ``ends``.

    ``delayed_count``: how many deliveries of delayed messages may be cut. A table that cannot be read is left to the next start.
    Waits for the disk; raises OSError.
    """
    _change(disk, OFFSETS, ConsumerOffsetTable, lambda table: _clamp(table.offset_table, ends, _topic_of))
    _change(disk, TRIMS, TrimTable, lambda table: _clamp(table.trims, ends, str))
    _change(disk, TOPICS, TopicConfigTable, lambda table: _take_back_births(table, log_end))
    back = delayed_count + DELIVERED_AT_ONCE if delayed_count else 0
    _change(disk, DELAYS, DelayOffsetTable, lambda table: _take_back_levels(table, queues, ends, back))
    _change(disk, TIMER, TimerOffset, lambda table: _take_back_timer(table, queues, ends, back))


def _change(disk: Disk, path: str, cls: type[B], change: Callable[[B], None]) -> None:
    """Change a saved table, and the copy of it from the save before."""
    data = None if disk.is_directory(path) else disk.read(path)
    if data is None or not data.strip():
        return
    try:
        table = from_json(cls, data, bounds=None)
    except PeerError:
        return
    before = to_json(table)
    change(table)
    if (after := to_json(table)) != before:
        for _ in range(2):  # else a start that cannot read it would go on with the copy, which says more
            disk.save(path, after)


def _topic_of(name: str) -> str:
    return name.rpartition("@")[0]


def _clamp(table: Mapping[str, dict[int, int]], ends: Ends, topic_of: Callable[[str], str]) -> None:
    for name, offsets in table.items():
        for queue_id, offset in offsets.items():
            offsets[queue_id] = min(offset, ends.get((topic_of(name), queue_id), offset))


def _take_back_births(table: TopicConfigTable, log_end: int) -> None:
    for config in table.topic_config_table.values():
        if (config.birth_offset or 0) > log_end:
            config.birth_offset = log_end


def _take_back_levels(table: DelayOffsetTable, queues: Mapping[Key, ConsumeQueue], ends: Ends, back: int) -> None:
    for level, offset in table.offset_table.items():
        key = (SCHEDULE_TOPIC, level - 1)
        if (queue := queues.get(key)) is None:
            continue
        at = min(offset, ends[key])
        for _ in range(back):
            if at <= queue.first:
                break
            at = queue.real_before(at, queue.first)
        table.offset_table[level] = max(at, 0)


def _take_back_timer(table: TimerOffset, queues: Mapping[Key, ConsumeQueue], ends: Ends, back: int) -> None:
    """Let the last messages that were delivered wait again, those below the end of each mark by themselves."""
    key = (TIMER_TOPIC, 0)
    if (queue := queues.get(key)) is None:
        return
    begin, marks = queue.first, []
    for end, due, offset in table.marks or [(ends[key], table.due_ms, table.offset)]:
        end = min(end, ends[key])
        delivered = (pair for pair in _pairs(queue, begin, end) if pair <= (due, offset))
        last = nlargest(back, delivered)
        if last:
            due, offset = last[-1][0], last[-1][1] - 1
            table.low = min(table.low, *(place for _, place in last))
        marks.append((end, due, offset))
        begin = max(begin, end)
    # Whatever a cancel behind the cut has cancelled waits again.
    table.marks, table.low = marks, min(table.low, ends[key], *_cancelled(queue, ends[key]))
    _, table.due_ms, table.offset = marks[-1]


def _pairs(queue: ConsumeQueue, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield due time and queue offset of each message of the timer topic; cancels are none."""
    for place in range(begin, end):
        _, size, code = queue.entry(place)
        if size != FILLER_SIZE and code >= 0:
            yield code, place


def _cancelled(queue: ConsumeQueue, begin: int) -> Iterator[int]:
    """Yield the queue offsets that cancels behind an offset name."""
    for place in range(begin, queue.segments.end // ENTRY_BYTES):
        _, size, code = queue.entry(place)
        if size <= 0:
            return
        if code < 0:
            yield -1 - code
