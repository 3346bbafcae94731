"""The part of `fsck` about the broker's saved tables: topics, offsets of groups, delay levels and timer, uptime. Never writes.

A table that is ahead of its queue speaks of messages that do not exist; a start takes it back. A table that cannot be read is a
problem.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import TypeVar

from halfmoon.errors import PeerError
from halfmoon.ports import Disk
from halfmoon.store.check.transactions import Problem
from halfmoon.store.journal import Journal
from halfmoon.store.layout import JOURNAL
from halfmoon.store.queues.inventory import Key
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.store.timer.progress import read_progress
from halfmoon.wire.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    LockTable,
    SubscriptionGroupTable,
    TimerOffset,
    TopicConfigTable,
    TrimTable,
    UptimeTable,
    from_json,
)

TOPICS, GROUPS, OFFSETS = "config/topics.json", "config/subscriptionGroup.json", "config/consumerOffset.json"
_SYSTEM_TOPICS = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "%", "BATCH", "TBW102")
DELAYS, TIMER = "config/delayOffset.json", "config/timerOffset.json"
UPTIME, TRIMS, LOCKS = "config/brokerUptime.json", "config/topicTrims.json", "config/queueLocks.json"
TABLES: Mapping[str, type] = {
    TOPICS: TopicConfigTable,
    GROUPS: SubscriptionGroupTable,
    OFFSETS: ConsumerOffsetTable,
    DELAYS: DelayOffsetTable,
    TIMER: TimerOffset,
    UPTIME: UptimeTable,
    TRIMS: TrimTable,
    LOCKS: LockTable,
}
"""Content of each saved table."""

T = TypeVar("T")


class TableCheck:
    """The tables of one directory. ``ends`` is behind the last message of each queue."""

    def __init__(self, disk: Disk, journal: Journal, log_end: int, ends: Mapping[Key, int]) -> None:
        self._disk, self._journal, self._log_end, self._ends = disk, journal, log_end, ends

    def problems(self) -> Iterator[Problem]:
        """Yield where tables and queues do not agree."""
        yield from self._topics()
        yield from self._read(GROUPS, SubscriptionGroupTable)
        yield from self._read(TRIMS, TrimTable)
        yield from self._read(LOCKS, LockTable)
        yield from self._offsets()
        yield from self._delays()
        table = (yield from self._read(UPTIME, UptimeTable)) or UptimeTable()
        for gap in table.gaps:
            if not gap.begin_ms < gap.end_ms <= table.seen_ms:
                reason = f"is from {gap.begin_ms} to {gap.end_ms}, and the broker was last seen at {table.seen_ms}"
                yield Problem(UPTIME, "gap", reason)

    def _topics(self) -> Iterator[Problem]:
        table = yield from self._read(TOPICS, TopicConfigTable)
        if table is None:
            return
        for topic in sorted({topic for topic, _ in self._ends} - table.topic_config_table.keys()):
            if not topic.startswith(_SYSTEM_TOPICS):
                yield Problem(TOPICS, "topic", f"{topic} is not in it, and has queues: a start adds it", certain=False)

    def _offsets(self) -> Iterator[Problem]:
        table = yield from self._read(OFFSETS, ConsumerOffsetTable)
        for name, queues in (table.offset_table if table is not None else {}).items():
            topic, _, group = name.rpartition("@")
            for queue_id, offset in queues.items():
                yield from self._ahead(OFFSETS, f"group {group}", (topic, queue_id), offset)

    def _delays(self) -> Iterator[Problem]:
        levels = yield from self._read(DELAYS, DelayOffsetTable)
        if levels is not None:
            yield from self._levels_ahead(DELAYS, levels.offset_table)
        timer = yield from self._read(TIMER, TimerOffset)
        if timer is not None:
            yield from self._ahead(TIMER, "the timer", (TIMER_TOPIC, 0), timer.low)

        progress = read_progress(self._journal)
        if progress is not None and progress.position <= self._log_end:  # else it is about lost messages, and a start forgets it
            yield from self._levels_ahead(JOURNAL, progress.levels)
            yield from self._ahead(JOURNAL, "the timer", (TIMER_TOPIC, 0), progress.low)

    def _levels_ahead(self, path: str, offsets: Mapping[int, int]) -> Iterator[Problem]:
        for level, offset in offsets.items():
            yield from self._ahead(path, f"level {level}", (SCHEDULE_TOPIC, level - 1), offset)

    def _ahead(self, path: str, who: str, key: Key, offset: int) -> Iterator[Problem]:
        end = self._ends.get(key)
        if end is not None and offset > end:
            yield Problem(path, "progress", f"of {who} in queue {key[1]} of {key[0]} is {offset}, the queue ends at {end}")

    def _read(self, path: str, cls: type[T]) -> Generator[Problem, None, T | None]:
        """Yield what is wrong with a table; return what it holds, None: nothing."""
        if self._disk.is_directory(path):
            yield Problem(path, "table", "is a directory, and no broker starts with it")
            return None
        data = self._disk.read(path)
        if data is None:
            if self._disk.exists(path + ".bak"):
                yield Problem(path, "table", f"is missing; a start uses {path}.bak, which is older")
            return None
        if not data.strip():
            yield Problem(path, "table", "is empty; a start uses the one saved before, or begins without one")
            return None
        try:
            return from_json(cls, data, bounds=None)
        except PeerError as error:
            yield Problem(path, "table", f"cannot be read: {error}")
        return None


def saved_copy(disk: Disk, path: str) -> bytes | None:
    """Return the copy of a table that the save before the last one left beside it; None: there is none that can be read."""
    kept = f"{path}.bak"
    data = None if disk.is_directory(kept) else disk.read(kept)
    if data is None or not data.strip():
        return None
    try:
        from_json(TABLES[path], data, bounds=None)
    except PeerError:
        return None
    return data
