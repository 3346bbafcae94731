"""Timer messages: parked in ``rmq_sys_wheel_timer``, delivered to the millisecond, and cancelled while they wait.

Follows TimerMessageStore and RecallMessageProcessor (RocketMQ 5.3.3) in properties, names and refusals.
Differs: precision is a millisecond, not a second, and nothing is early; up to 40 days instead of 3; a downtime of any length loses
nothing that the log still has; the reply to a cancel says whether there was a message to cancel. A record is *rolled* (stored
again) once a *window*, so that the log keeps it; 5.x does so every two days.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice

from halfmoon.broker.delay.delivery import Deliveries, Due, in_order
from halfmoon.broker.delay.level_queue import BYTES_AT_ONCE, RETRY_MS, SOON_MS
from halfmoon.broker.delay.properties import with_place
from halfmoon.broker.delay.read_ahead import Prefetched, ReadAhead
from halfmoon.broker.names import TIMER_TOPIC
from halfmoon.broker.send.sends import Sends
from halfmoon.broker.settings import BrokerSettings
from halfmoon.broker.transactions.half import real_queue
from halfmoon.errors import BrokerError, CorruptRecord, MessageRefused
from halfmoon.hot import Draft, Parts, property_of
from halfmoon.store.entries import QueueEntry, entries_at
from halfmoon.store.records import whole_record
from halfmoon.store.store import Appended, Store
from halfmoon.store.timer.index import TimerIndex
from halfmoon.store.timer.marks import Mark, Marks
from halfmoon.store.timer.messages import CANCELS, LOOK_MS, OUT_MS
from halfmoon.wire.codes import TRANSACTION_MASK

ROLLS, CANCEL_KEY = "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY"
READY_AT_ONCE = 256
"""Messages that were read ahead and are delivered before others have their turn: storing them costs 2 ms."""
WINDOW_MS_MAX = 2 * 86_400_000
"""A parked record is rolled after two days at the latest. Follows timerRollWindowSlot."""
_WINDOW_MS_MIN = 60_000
_SAME_KEY_MAX, _KEY_LENGTH_MAX = 64, 255
_LOOK = LOOK_MS.encode()
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_ASKING = {
    "TIMER_DELAY_SEC": (1000, True), "TIMER_DELAY_MS": (1, True), "TIMER_DELIVER_MS": (1, False), "__STARTDELIVERTIME": (1, False),
}  # fmt: skip
"""Properties that ask for a point in time: their unit in ms, and whether they count from now. The last one is Aliyun's."""


class Timer:
    """Messages that wait for a point in time. ``marks`` say which were delivered."""

    def __init__(
        self, settings: BrokerSettings, store: Store, sends: Sends, deliveries: Deliveries, marks: Sequence[Mark], low: int
    ) -> None:  # fmt: skip
        self._settings, self._store, self._sends, self._deliveries = settings, store, sends, deliveries
        self.marks, self.index = Marks(marks), TimerIndex()
        self.known_low = low
        """`low` as it was last seen."""
        self.index.rebuild(store, low, marks)
        self.marks.delivered((), self.index.first_due())
        self._entries: dict[int, QueueEntry] = {}
        """The messages that `next` looked at last, by queue offset."""
        self.left: list[Due] = []
        self._behind: list[tuple[int, int]] = []
        self._not_before = 0
        self.read_ahead = ReadAhead(self.index, self._ready, lambda: store.queue_max(TIMER_TOPIC, 0))

    @property
    def _window_ms(self) -> int:
        """How long a record waits at most until it is rolled. One that was parked with a longer window keeps its file."""
        reserved_ms = self._store.settings.file_reserved_hours * 3_600_000
        return max(_WINDOW_MS_MIN, min(WINDOW_MS_MAX, reserved_ms * 2 // 3))

    @property
    def low(self) -> int:
        """No message below this queue offset waits."""
        return self.index.lowest(self._store.queue_max(TIMER_TOPIC, 0))

    # ------------------------------------------------------------ parking

    def asked(self, properties: Mapping[str, str], now: int) -> int | None:
        """Return when a message with these properties is to be delivered, ms since the epoch; None: it asks for no point in time.

        Raises MessageRefused (13): no number, or further away than `timer_delay_max_s`; BrokerError 1: timers are switched off.
        """
        for name, (unit_ms, since_now) in _ASKING.items():
            text = properties.get(name)
            if text is None:
                continue
            if not _NUMBER.fullmatch(text):
                raise MessageRefused(f"the message is illegal: {name} is not a number: {text[:50]!r}")
            if not self._settings.timer_enable:
                raise BrokerError("the broker takes no timer messages: timer_enable is off")
            deliver_ms = int(text) * unit_ms + (now if since_now else 0)
            if deliver_ms > now + self._settings.timer_delay_max_s * 1000:
                raise MessageRefused(
                    f"the message is illegal: timer message illegal, the delay time should not be bigger than the max delay "
                    f"{self._settings.timer_delay_max_s}s"
                )
            return deliver_ms
        return None

    def check_room(self, count: int) -> None:
        """Raise BrokerError 1 if so many more messages would be too many."""
        if count and self.index.count + count > self._settings.timer_messages_max:
            raise BrokerError(f"timer message flow control: {self.index.count} messages wait (timer_messages_max)")

    def park(
        self, topic: str, queue_id: int, deliver_ms: int, draft: Draft, now: int, *, identity: int = 0
    ) -> tuple[Appended, int]:
        """Store a message so that it is delivered at a time; return where it lies and that time.

        Raises what `Sends.append` does, MessageRefused (13) without room for properties, and BrokerError 1 when too many wait; the
        latter not for a message of a decided batch (``identity``), which was checked when it came.
        """
        if not identity:
            self.check_room(1)
        look_ms = min(deliver_ms, now + self._window_ms)
        more = b"%s\x01%d\x02" % (OUT_MS.encode(), deliver_ms)
        if look_ms != deliver_ms:
            more += b"%s\x01%d\x02" % (LOOK_MS.encode(), look_ms)
        body, properties, flag, sys_flag, born_ms, born_host, reconsume_times, _, _ = draft
        properties = with_place(properties, topic, queue_id, more, keep_asked=True)
        stored = (body, properties, flag, sys_flag & ~TRANSACTION_MASK, born_ms, born_host, reconsume_times, identity, look_ms)
        appended = self._sends.append(TIMER_TOPIC, 0, [stored], now)
        self._insert((look_ms, appended.queue_offset))
        return appended, deliver_ms

    def _insert(self, pair: tuple[int, int]) -> None:
        self.index.insert(*pair)
        self.marks.parked(*pair, self._behind if self.left else ())
        self.read_ahead.parked(pair)

    # ------------------------------------------------------------ cancelling

    def find(self, topic: str, key: str, now: int) -> tuple[QueueEntry, Parts] | None:
        """Return the waiting message of a topic with a unique key; None: none waits (any more), or its delivery has begun."""
        if not key or len(key) > _KEY_LENGTH_MAX or not key.isprintable():
            return None
        for record in self._store.query(TIMER_TOPIC, key, _SAME_KEY_MAX, 0, max(now, 2**62)).records:
            try:
                parts = whole_record(record)
            except CorruptRecord:
                continue
            if property_of(parts.properties, b"UNIQ_KEY") != key.encode():
                continue
            if property_of(parts.properties, b"REAL_TOPIC") != topic.encode():
                continue
            if self._deliveries.is_void(topic, parts.physical_offset):
                continue
            for entry in entries_at(self._store, TIMER_TOPIC, 0, parts.queue_offset, 1):
                if entry.physical_offset == parts.physical_offset and self._waits(entry):
                    return entry, parts
        return None

    def _waits(self, entry: QueueEntry) -> bool:
        pair = (entry.tag_code, entry.queue_offset)
        return self.index.has(*pair) and not (self.left and pair in self._behind)

    def cancel(self, topic: str, key: str, entry: QueueEntry, parts: Parts, born_host: bytes, now: int) -> Appended:
        """Cancel a waiting message. A record says so for the next start; raises what `Sends.append` does."""
        properties = b"".join(
            b"%s\x01%s\x02" % (name.encode(), value)
            for name, value in (
                (CANCEL_KEY, f"{topic}+{key}".encode()), (CANCELS, b"%d" % entry.queue_offset), ("REAL_TOPIC", topic.encode()),
                ("REAL_QID", b"0"), (OUT_MS, property_of(parts.properties, OUT_MS.encode()) or b"0"),
            )
        )  # fmt: skip
        draft = (b"", properties, 0, 0, now, born_host, 0, 0, -1 - entry.queue_offset)
        appended = self._sends.append(TIMER_TOPIC, 0, [draft], now)
        self.index.remove(entry.tag_code, entry.queue_offset)
        self.read_ahead.gone([(entry.tag_code, entry.queue_offset)])
        return appended

    # ------------------------------------------------------------ delivering

    @property
    def due(self) -> int | None:
        """When it wants to be called; None: nothing waits."""
        if self.left:
            return self._not_before
        first, ahead = self.index.first_due(), self.read_ahead.due
        if first is None:
            return None
        wanted = max(first, self._not_before)
        return wanted if ahead is None else min(wanted, ahead)

    def wait(self, until: int) -> None:
        """Do nothing before a time."""
        self._not_before = until
        self.read_ahead.wait(until)

    def next(self, now: int, count_max: int) -> list[tuple[int, int]]:
        """Return what is due, as (due, queue offset): messages to deliver, or one to roll.

        At most so many, or `READY_AT_ONCE` that were read ahead, and not more than `BYTES_AT_ONCE`, but for one message.
        """
        pairs: list[tuple[int, int]] = []
        end = self._store.queue_max(TIMER_TOPIC, 0)
        self._entries = {}
        size_bytes = 0
        for pair in self.index.ripe(now, max(count_max, READY_AT_ONCE)):
            ready = self.read_ahead.get(pair)
            if ready is None and len(pairs) >= count_max:
                break
            if pair[1] >= end:  # not durable yet, with sync flush
                self._not_before = now + SOON_MS
                break
            if ready is None and self._rolls(pair, now):
                # It goes alone, as `settle` stores it in another way and gives it a new place in the index.
                return pairs or [pair]
            entry = self._entry(pair) if ready is None else ready.entry
            size_bytes += 0 if entry is None else entry.size
            if pairs and size_bytes > BYTES_AT_ONCE:
                break
            pairs.append(pair)
        return pairs

    def _entry(self, pair: tuple[int, int]) -> QueueEntry | None:
        entry = self._entries.get(pair[1])
        if entry is None:
            for entry in entries_at(self._store, TIMER_TOPIC, 0, pair[1], 1):
                self._entries[pair[1]] = entry
        return entry

    def _rolls(self, pair: tuple[int, int], now: int) -> bool:
        """Whether a message is to be rolled: its real time is still to come."""
        entry = self._entry(pair)
        record = None if entry is None or not entry.size else self._store.record(entry.physical_offset, entry.size)
        if record is None or _LOOK not in bytes(record):
            return False
        try:
            parts = whole_record(record)
        except CorruptRecord:
            return False
        out = property_of(parts.properties, OUT_MS.encode())
        is_later = out is not None and out.isdigit() and len(out) <= 18 and int(out) > max(now, pair[0])
        # Rolled, it would be younger than its topic; so it is settled now.
        return is_later and not self._deliveries.is_void(real_queue(parts.properties)[0], parts.physical_offset)

    def read(self, pairs: Sequence[tuple[int, int]], now: int) -> list[Due]:
        """Return the messages of what `next` returned; one that is rolled is a message to the timer topic."""
        if len(pairs) == 1 and self.read_ahead.get(pairs[0]) is None and self._rolls(pairs[0], now):
            return [self._rolled(pairs[0], now)]
        return in_order(map(self._message, pairs))

    def _message(self, pair: tuple[int, int]) -> Due | None:
        if (ready := self.read_ahead.get(pair)) is not None:
            return ready.message
        entry = self._entry(pair)
        return None if entry is None else self._deliveries.read_one(entry)

    def _ready(self, pair: tuple[int, int], now: int) -> Prefetched | None:
        """Read a message ahead, unless it is to be rolled."""
        self._entries = {}
        entry = None if self._rolls(pair, now) else self._entry(pair)
        return None if entry is None else Prefetched(entry, self._deliveries.read_one(entry))

    def _rolled(self, pair: tuple[int, int], now: int) -> Due:
        entry = self._entry(pair)
        record = None if entry is None else self._store.record(entry.physical_offset, entry.size)
        assert entry is not None  # `_rolls` has read both
        assert record is not None
        parts = whole_record(record)
        properties = parts.properties
        times = property_of(properties, ROLLS.encode()) or b"0"
        rolls = b"%s\x01%d\x02" % (ROLLS.encode(), int(times) + 1 if times.isdigit() and len(times) < 6 else 1)
        deliver_ms = int(property_of(properties, OUT_MS.encode()) or b"0")
        look_ms = min(deliver_ms, max(now, pair[0]) + self._window_ms)
        topic, queue = (property_of(properties, name) or b"" for name in (b"REAL_TOPIC", b"REAL_QID"))
        more = b"%s%s\x01%d\x02%s\x01%d\x02" % (rolls, OUT_MS.encode(), deliver_ms, LOOK_MS.encode(), look_ms)
        queue_id = int(queue) if queue.isdigit() and len(queue) < 10 else 0
        properties = with_place(properties, topic.decode("utf-8", "replace"), queue_id, more, keep_asked=True)
        draft = (
            parts.body, properties, parts.flag, parts.sys_flag & ~TRANSACTION_MASK, parts.born_ms, parts.born_host,
            parts.reconsume_times, 0, look_ms,
        )  # fmt: skip
        return Due(entry, TIMER_TOPIC, 0, draft)

    def settle(self, messages: Sequence[Due], pairs: Sequence[tuple[int, int]], now: int) -> None:
        """Store messages, and forget their pairs once all are stored."""
        if len(messages) == 1 and messages[0].topic == TIMER_TOPIC:
            self._roll(messages[0], pairs, now)
            return
        self.left, self._behind = self._deliveries.store(messages, now), list(pairs)
        if self.left:
            self._not_before = now + (SOON_MS if self._store.refusal is None else RETRY_MS)
        else:
            self.forget(pairs)

    def _roll(self, message: Due, pairs: Sequence[tuple[int, int]], now: int) -> None:
        try:
            appended = self._sends.append(TIMER_TOPIC, 0, [message.draft], now)
        except BrokerError:
            self._not_before = now + RETRY_MS
            return
        self.forget(pairs)
        self._insert((message.draft[8], appended.queue_offset))

    def forget(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Forget pairs that are delivered."""
        self.index.remove_first(pairs)
        self.read_ahead.gone(pairs)
        self.marks.delivered(pairs, self.index.first_due())

    def hurry(self) -> None:
        """Retry at once what is left."""
        if self.left:
            self._not_before = 0

    def begun(self, count: int, position: int) -> list[tuple[int, int]]:
        """Return the messages of a delivery that the last process began, where the log ended at ``position`` then."""
        self._entries = {}
        waiting = ((pair, self._entry(pair)) for pair in self.index.walk((-1, -1)))
        return list(islice((pair for pair, entry in waiting if entry is not None and entry.physical_offset < position), count))

    def leave(self, messages: Sequence[Due], pairs: Sequence[tuple[int, int]]) -> None:
        """Begin with messages that the last process left, and forget their pairs once they are stored."""
        self.left, self._behind = list(messages), list(pairs)
        if not messages:
            self.forget(pairs)

    def again(self, now: int) -> None:
        """Retry what is left."""
        self.settle(self.left, self._behind, now)
