"""Queries for delayed messages that wait, over all levels and the timer, the next first. Changes nothing."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from heapq import merge

from halfmoon.broker.delay.level_queue import LevelQueue
from halfmoon.broker.delay.timer import Timer
from halfmoon.broker.names import SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.broker.request import Reply, Request
from halfmoon.broker.settings import BrokerSettings
from halfmoon.errors import CorruptRecord, InvalidParameter
from halfmoon.hot import Parts
from halfmoon.store.entries import entries_at
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.store.timer.messages import OUT_MS
from halfmoon.wire import properties as wire_properties
from halfmoon.wire.bodies import DelayedMessage, DelayedMessages, to_json
from halfmoon.wire.bodies.delays import recall_handle
from halfmoon.wire.headers.delay import ListDelayedMessages
from halfmoon.wire.ids import offset_msg_id, pack_host

COUNT_MAX = 1000
_LOOKED_AT, _READ_BYTES = 2000, 4 << 20
"""About how many entries and bytes of records one request reads; beyond them the reply ends and says that there is more."""
_PAGE = 128
WITHIN_S = (60, 3600, 86_400)
"""Spans for which a list says how many are due: the next minute, hour and day."""

Place = tuple[int, int, int]
"""Due time, level (0: the timer), queue offset."""


class DelayListing:
    """The service that answers 31020."""

    def __init__(self, settings: BrokerSettings, store: Store, lanes: Mapping[int, LevelQueue], timer: Timer) -> None:
        self._settings, self._store, self._level_queues, self._timer = settings, store, lanes, timer
        self._host = pack_host(f"{settings.address}:{settings.port}")

    def list(self, request: Request) -> Reply:
        """Return messages that wait, the next first."""
        header = request.header(ListDelayedMessages)
        if not 1 <= header.count <= COUNT_MAX:
            raise InvalidParameter(f"count is 1 to {COUNT_MAX}, not {header.count}")
        after = (header.after_ms, header.after_level, header.after_offset)
        messages: list[DelayedMessage] = []
        more, last, read = False, after, 0
        for looked, place in enumerate(
            merge(self._timed(after), *(self._levelled(level_queue, after) for level_queue in self._level_queues.values()))
        ):
            if len(messages) == header.count or looked >= _LOOKED_AT or read >= _READ_BYTES:
                more = True
                break
            message, last = self._message(place), place
            read += 0 if message is None else message.size_bytes
            if message is not None and header.topic in (None, "", message.topic):
                messages.append(message)
        due_within = {seconds: self.due_count(request.now.date + 1000 * seconds) for seconds in WITHIN_S if after[0] < 0}
        body = DelayedMessages(
            now_ms=request.now.date, by_level=self.counts(), due_within=due_within, more=more, last_ms=last[0], last_level=last[1],
            last_offset=last[2], messages=messages,
        )  # fmt: skip
        return Reply(body=to_json(body))

    def counts(self) -> dict[int, int]:
        """Return how many messages wait by level, 0 for the timer; empty levels are left out."""
        counts = {
            level: self._store.queue_max(SCHEDULE_TOPIC, level - 1) - level_queue.offset
            for level, level_queue in self._level_queues.items()
        }
        counts[0] = self._timer.index.count
        return {level: count for level, count in sorted(counts.items()) if count > 0}

    def due_count(self, until_ms: int) -> int:
        """Return how many are due by then. One that the timer stores anew before it is due counts from that time on."""
        levels = [
            self._first(queue, (until_ms, 2**31, 0)) - max(queue.offset, self._store.queue_min(SCHEDULE_TOPIC, queue.level - 1))
            for queue in self._level_queues.values()
        ]
        return self._timer.index.due_count(until_ms) + sum(levels)

    def _timed(self, after: Place) -> Iterator[Place]:
        behind = (after[0], after[2] if after[1] == 0 else -1 if after[1] < 0 else 2**62)
        for due, offset in self._timer.index.walk(behind):
            yield due, 0, offset

    def _levelled(self, level_queue: LevelQueue, after: Place) -> Iterator[Place]:
        at = self._first(level_queue, after)
        while entries := entries_at(self._store, SCHEDULE_TOPIC, level_queue.level - 1, at, _PAGE):
            for entry in entries:
                place = (entry.tag_code, level_queue.level, entry.queue_offset)
                if entry.size and (place > after or level_queue.level == after[1]):
                    yield place
            at = entries[-1].queue_offset + 1

    def _first(self, level_queue: LevelQueue, after: Place) -> int:
        """Return the first offset of a level that is listed behind a place; a binary search, which reads few entries."""
        queue_id = level_queue.level - 1
        first = max(level_queue.offset, self._store.queue_min(SCHEDULE_TOPIC, queue_id))
        if level_queue.level == after[1]:
            return max(first, after[2] + 1)

        def listed(queue_offset: int) -> bool:
            entries = entries_at(self._store, SCHEDULE_TOPIC, queue_id, queue_offset, 1)
            return not entries or not entries[0].size or (entries[0].tag_code, level_queue.level, queue_offset) > after

        return first + bisect_left(range(first, self._store.queue_max(SCHEDULE_TOPIC, queue_id)), True, key=listed)

    def _message(self, place: Place) -> DelayedMessage | None:
        _, level, queue_offset = place
        topic, queue_id = (SCHEDULE_TOPIC, level - 1) if level else (TIMER_TOPIC, 0)
        for entry in entries_at(self._store, topic, queue_id, queue_offset, 1):
            record = self._store.record(entry.physical_offset, entry.size)
            try:
                return None if record is None else self._described(place, whole_record(record), entry.size)
            except CorruptRecord:
                return None
        return None

    def _described(self, place: Place, parts: Parts, size: int) -> DelayedMessage:
        due_ms, level, queue_offset = place
        properties = wire_properties.decode(parts.properties)
        out, key, queue = properties.get(OUT_MS, ""), properties.get("UNIQ_KEY", ""), properties.get("REAL_QID", "")
        if not level and out.isdecimal():
            due_ms = int(out)
        topic = properties.get("REAL_TOPIC", "")
        handle = recall_handle(topic, self._settings.name, due_ms, key) if key and topic and not level else ""
        return DelayedMessage(
            due_ms=due_ms, look_ms=place[0], level=level, queue_offset=queue_offset, topic=topic,
            queue_id=int(queue) if queue.isdecimal() and len(queue) < 10 else -1, msg_id=key,
            offset_msg_id=offset_msg_id(self._host, parts.physical_offset), tag=properties.get("TAGS", ""),
            keys=properties.get("KEYS", ""),
            size_bytes=size, born_ms=parts.born_ms, parked_ms=parts.store_ms, handle=handle,
        )  # fmt: skip
