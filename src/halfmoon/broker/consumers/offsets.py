"""How far each group has consumed each queue: one table, saved as ``config/consumerOffset.json``.

Holds numbers; whether a group or queue exists is asked elsewhere. Follows ConsumerOffsetManager (RocketMQ 4.9.8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Mapping

from halfmoon.broker.names import is_system_topic
from halfmoon.broker.tables import Tables
from halfmoon.errors import SystemBusy
from halfmoon.instant import LONG_AGO, Steady
from halfmoon.logs import listed
from halfmoon.wire.bodies import ConsumerOffsetTable, DataVersion, from_json, to_json

log = logging.getLogger("halfmoon.broker")

PATH = "config/consumerOffset.json"

ENTRIES_MAX = 1_000_000
"""Queues of topics by groups. Each takes some 100 bytes, and all are written in each round of saves."""


class Offsets:
    """Progress by ``topic@group`` and queue. An update overwrites, also backwards, as the original does."""

    entries_max = ENTRIES_MAX

    def __init__(self, tables: Tables, groups: Iterable[str] = ()) -> None:
        """Load the saved offsets. ``groups``: the saved groups; some without a file of offsets are logged."""
        self.now: Steady = LONG_AGO
        """Steady time of the present turn; set by the broker."""
        self._moved: dict[str, dict[int, Steady]] = {}
        saved = tables.load(PATH, lambda data: from_json(ConsumerOffsetTable, data, bounds=None))
        self._table: dict[str, dict[int, int]] = dict(saved.offset_table) if saved is not None else {}
        self._count = sum(map(len, self._table.values()))
        self._tables = tables
        self._changed: Callable[[], None] = tables.add(PATH, self._dump, patient=True)
        if saved is None:
            self._changed()  # saved at once, so that a later start notices when the file is missing
            if names := sorted(groups):
                text = "%s is missing: the progress of these groups is unknown, they begin like new ones: %s"
                log.warning(text, PATH, listed(names))

    def _dump(self) -> bytes:
        return to_json(ConsumerOffsetTable(offset_table=self._table))

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the queue offset that the group consumes next, or None if it has none."""
        queues = self._table.get(f"{topic}@{group}")
        return None if queues is None else queues.get(queue_id)

    def check(self) -> None:
        """Call it before progress is acknowledged. Raises ServiceNotAvailable while it cannot be saved."""
        self._tables.check(PATH)

    @property
    def can_be_saved(self) -> bool:
        """Whether the last save did not fail."""
        return PATH not in self._tables.failed

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store progress; negative offsets are ignored. Raises SystemBusy when the table is at its bound."""
        if offset < 0:
            return
        known = self.get(group, topic, queue_id)
        if known != offset:
            if known is None:
                if self._count >= self.entries_max:
                    raise SystemBusy(f"the broker keeps the progress of {self.entries_max} queues and groups, its bound")
                self._count += 1
            key = f"{topic}@{group}"
            self._table.setdefault(key, {})[queue_id] = offset
            self._moved.setdefault(key, {})[queue_id] = self.now
            self._changed()

    def moved_at(self, group: str, topic: str, queue_id: int) -> Steady | None:
        """Return when the group's progress in a queue last changed; None: not since this broker started."""
        return self._moved.get(f"{topic}@{group}", {}).get(queue_id)

    def keys(self) -> list[str]:
        """Return ``topic@group`` of all progress."""
        return list(self._table)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's progress in every queue of a topic."""
        return dict(self._table.get(f"{topic}@{group}", {}))

    def replace(self, group: str, topic: str, queues: Mapping[int, int]) -> None:
        """Give a group this progress in a topic instead of what it has. Raises SystemBusy when the table is at its bound."""
        key = f"{topic}@{group}"
        count = self._count - len(self._table.get(key, ())) + len(queues)
        if count > max(self._count, self.entries_max):
            raise SystemBusy(f"the broker keeps the progress of {self.entries_max} queues and groups, its bound")
        self._table[key] = dict(queues)
        self._moved[key] = dict.fromkeys(queues, self.now)
        self._count = count
        self._changed()

    def copy(self, table: ConsumerOffsetTable) -> None:
        """Have a slave show its master's table instead of its own."""
        self._table = {key: dict(queues) for key, queues in table.offset_table.items()}
        self._count = sum(map(len, self._table.values()))
        self._moved.clear()

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has progress."""
        return sorted(key[: -len(group) - 1] for key in self._table if key.endswith("@" + group))

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics in which each group has progress, in one pass."""
        topics: dict[str, list[str]] = {}
        for key in self._table:
            topic, _, group = key.rpartition("@")
            topics.setdefault(group, []).append(topic)
        return topics

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have progress in a topic."""
        return sorted(key[len(topic) + 1 :] for key in self._table if key.startswith(topic + "@"))

    def remove(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Forget the progress of a group, of a topic, or of one in the other.

        Differs: the original 4.x keeps them when a topic is deleted, so that a new topic of the name resumes at stale offsets.
        """
        for key in [key for key in self._table if _matches(key, topic, group)]:
            self._count -= len(self._table.pop(key))
            self._moved.pop(key, None)
            self._changed()

    def everything(self) -> bytes:
        """Return the table as JSON, numbers as raw keys, as slaves and tools read it.

        A slave of RocketMQ 5 does not save a table without a version. It compares none.
        """
        return to_json(ConsumerOffsetTable(offset_table=self._table, data_version=DataVersion()))

    def drop_unknown(self, topics: Container[str]) -> None:
        """Forget progress in topics that do not exist: they were deleted, and a kill came before this table was saved."""
        gone = sorted({topic for topic in map(_topic_of, self._table) if topic not in topics})
        for topic in gone:
            self.remove(topic=topic)
        if gone:
            log.warning("progress is dropped for topics that do not exist: %s", listed(gone))

    def clamp(self, bounds: Iterable[tuple[str, int, int]]) -> None:
        """Bring progress back to the end of its queue: ``bounds`` gives (topic, queue id, end). For a start after lost writes.

        A queue of a user's topic that is not there ends at 0: it has no message yet, or was deleted.
        """
        ends = {(topic, queue_id): end for topic, queue_id, end in bounds}
        for key, queues in self._table.items():
            topic = _topic_of(key)
            for queue_id, offset in queues.items():
                end = ends.get((topic, queue_id), None if is_system_topic(topic) else 0)
                if end is not None and offset > end:
                    queues[queue_id] = end
                    self._changed()


def _topic_of(key: str) -> str:
    return key.rpartition("@")[0]


def _matches(key: str, topic: str | None, group: str | None) -> bool:
    key_topic, _, key_group = key.rpartition("@")
    return (topic is None or key_topic == topic) and (group is None or key_group == group)
