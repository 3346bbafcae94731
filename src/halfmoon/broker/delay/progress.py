"""Progress of delayed messages: written at once to the journal, and saved as ``delayOffset.json``, as Apache does.

After a kill nothing is delivered twice: deliveries that were begun are searched for in the log. After a loss of power the saved
tables count, which cover durable records only; what was delivered since then is delivered again. Follows ScheduleMessageService
(RocketMQ 4.9.8). Differs: the original saves what may not be durable yet, and repeats up to ten seconds after any crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from halfmoon.broker.delay.delivery import Deliveries, Due
from halfmoon.broker.delay.level_queue import LevelQueue
from halfmoon.broker.delay.timer import Timer
from halfmoon.broker.names import EXPIRED_TOPIC
from halfmoon.broker.tables import Tables
from halfmoon.broker.transactions.half import real_queue
from halfmoon.broker.transactions.late_decisions import REASON
from halfmoon.errors import CorruptRecord
from halfmoon.ports import Disk
from halfmoon.store.entries import entries_at
from halfmoon.store.records import whole_record
from halfmoon.store.store import Store
from halfmoon.store.timer.marks import Mark
from halfmoon.store.timer.messages import LOOK_MS, SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.store.timer.progress import TIMER, TimerProgress, forget_progress, read_progress, write_progress
from halfmoon.wire.bodies import DelayOffsetTable, TimerOffset, from_json, to_json
from halfmoon.wire.properties import without

PATH, TIMER_PATH = "config/delayOffset.json", "config/timerOffset.json"
_RECORDS_LOOKED_AT = 20_000
_OF_THE_TIME = frozenset({LOOK_MS.encode(), REASON.encode()})


class DeliveryProgress:
    """Keeps the progress. ``start`` is that of the last process."""

    def __init__(self, disk: Disk, store: Store, tables: Tables, warn: Callable[..., None]) -> None:
        self._disk, self._store, self._warn = disk, store, warn
        saved = tables.load(PATH, lambda data: from_json(DelayOffsetTable, data, bounds=None))
        timer = tables.load(TIMER_PATH, lambda data: from_json(TimerOffset, data, bounds=None)) or TimerOffset()
        self._changed = (tables.add(PATH, self._dump, patient=True), tables.add(TIMER_PATH, self._dump_timer, patient=True))
        known = read_progress(store.journal)
        if known is not None and known.position > store.recovered.found_end:
            known = None  # it covers records that are lost
            forget_progress(store.journal)
        self._table = dict(saved.offset_table) if saved is not None else {}
        marks = [tuple(mark) for mark in timer.marks] or [(store.queue_max(TIMER_TOPIC, 0), timer.due_ms, timer.offset)]
        self.start = TimerProgress(0, self._table, tuple(map(Mark._make, marks)), timer.low)
        if known is not None:
            levels = {level: max(offset, self._table.get(level, 0)) for level, offset in known.levels.items()}
            newer = max(known.timer, self.start.timer if timer.marks else (), key=_end)
            self.start = known._replace(levels={**self._table, **levels}, timer=newer, low=max(known.low, timer.low))
        self._known = known
        self._open: dict[int, tuple[int, int]] = {}
        """Deliveries that were begun and are not complete, by level: the end of the log then, and the number of entries."""
        self._level_queues: Mapping[int, LevelQueue] = {}
        self._timer: Timer | None = None
        self._durable = self._candidate = self.start

    def offset(self, level: int) -> int:
        """Return the queue offset at which a level goes on."""
        high = self._store.queue_max(SCHEDULE_TOPIC, level - 1)
        return max(0, min(self.start.levels.get(level, 0), high))

    # ------------------------------------------------------------ going on

    def go_on(self, lanes: Mapping[int, LevelQueue], timer: Timer, deliveries: Deliveries) -> None:
        """Find out which messages of a delivery that was begun are stored, and leave the others to its level or the timer."""
        self._level_queues, self._timer = lanes, timer
        for level, count, position in self._known.begun if self._known is not None else ():
            self._go_on(level, count, position, deliveries)
        self._durable = self._candidate = self._now()
        self._write(self._begun())

    def _go_on(self, level: int, count: int, position: int, deliveries: Deliveries) -> None:
        known, timer, level_queue = self._known, self._timer, self._level_queues.get(level)
        assert known is not None
        assert timer is not None
        if level == TIMER and self.start.timer == known.timer:
            if pairs := timer.begun(count, position):
                timer.leave(self._left_of_timer(timer, pairs, position), pairs)
        elif (
            level_queue is not None
            and level_queue.offset == known.levels.get(level)  # nobody has gone on since
            and (entries := entries_at(self._store, SCHEDULE_TOPIC, level - 1, level_queue.offset, count))
        ):
            level_queue.leave(self._left_of(deliveries.read(entries), position), entries[-1].queue_offset + 1)
        if timer.left if level == TIMER else level_queue is not None and level_queue.left:
            self._open[level] = (position, count)

    def _left_of_timer(self, timer: Timer, pairs: list[tuple[int, int]], position: int) -> list[Due]:
        left = self._left_of(timer.read(pairs, pairs[0][0]), position)
        if left and left[0].topic == TIMER_TOPIC and not self._left_of(timer.read(pairs, 2**62), position):
            return []  # the last process was late, and delivered it instead of rolling it
        return left

    def _left_of(self, messages: list[Due], position: int) -> list[Due]:
        """Return the messages that are not delivered in the log behind the position at which their delivery was begun."""
        waiting: dict[tuple[object, ...], list[Due]] = {}
        for due in messages:
            waiting.setdefault(_identity(due.topic, due.draft), []).append(due)
        at, size = position, self._store.settings.commit_log_file_bytes
        for _ in range(_RECORDS_LOOKED_AT):
            if not waiting or at >= self._store.end_offset:
                break
            record = self._store.record(at)
            if record is None:  # the blank tail of a file
                at += size - at % size
                continue
            at += len(record)
            try:
                parts = whole_record(record)
            except CorruptRecord:
                continue
            draft = (parts.body, parts.properties, 0, 0, parts.born_ms, parts.born_host, parts.reconsume_times, 0, 0)
            topic = real_queue(parts.properties)[0] if parts.topic == EXPIRED_TOPIC else parts.topic
            same = waiting.get(identity := _identity(topic, draft))
            if same:
                same.pop(0)
                if not same:
                    del waiting[identity]
        left = {id(due) for same in waiting.values() for due in same}
        return [due for due in messages if id(due) in left]

    # ------------------------------------------------------------ writing

    def begin(self, level: int, count: int = 0) -> None:
        """Record that so many entries of a level (or the timer: `TIMER`) are about to be delivered; 0: the rest of those begun."""
        position, known = self._open.pop(level, (self._store.end_offset, count))
        self._open[level] = (position, count or known)
        self._write(self._begun())

    def done(self, level: int, *, settled: bool) -> None:
        """Record that a delivery is complete (``settled``), or that some of it is left."""
        if settled:
            self._open.pop(level, None)
        self._write(self._begun())
        for changed in self._changed:
            changed()

    def _begun(self) -> TimerProgress:
        """Return the progress with deliveries that are begun and not complete."""
        return self._now()._replace(begun=tuple((level, count, position) for level, (position, count) in self._open.items()))

    def _write(self, progress: TimerProgress) -> None:
        try:
            write_progress(self._store.journal, progress)
        except OSError as exc:
            self._warn("the progress of delayed messages cannot be written: %s", exc)

    def _now(self) -> TimerProgress:
        assert self._timer is not None
        levels = {level: level_queue.offset for level, level_queue in self._level_queues.items()}
        marks = self._timer.marks.at(self._store.queue_max(TIMER_TOPIC, 0))
        return TimerProgress(self._store.end_offset, levels, marks, self._timer.known_low)

    def _settle(self) -> None:
        """Advance the progress that is known to be durable."""
        assert self._timer is not None
        # What the candidate counts as delivered lies before its position.
        if self._store.durable_offset >= self._candidate.position:
            self._durable = self._candidate
            self._timer.known_low = self._timer.low
            self._candidate = self._now()
            if self._store.durable_offset >= self._candidate.position:
                self._durable = self._candidate

    def _dump(self) -> bytes:
        self._settle()
        return to_json(DelayOffsetTable(offset_table={**self._table, **self._durable.levels}))

    def _dump_timer(self) -> bytes:
        self._settle()
        marks = self._durable.timer
        return to_json(TimerOffset(due_ms=marks[-1].due, offset=marks[-1].offset, low=self._durable.low, marks=list(marks)))

    def text(self) -> bytes:
        """Return the progress of each level in the form of ``delayOffset.json`` (45)."""
        return to_json(DelayOffsetTable(offset_table={**self._table, **self._now().levels}))

    def close(self) -> None:
        """Save everything, if the log is durable. Waits for the device."""
        if self._store.failure is None and self._store.durable_offset >= self._store.end_offset:
            for path, dump in ((PATH, self._dump), (TIMER_PATH, self._dump_timer)):
                data = dump()
                try:
                    if self._disk.read(path) != data:
                        self._disk.save(path, data)
                except OSError as exc:
                    self._warn("the progress of delayed messages cannot be saved: %s", exc)


def _end(marks: Sequence[Mark]) -> int:
    """Return how far a timer's messages were known to its marks: the later ones know more."""
    return marks[-1].end if marks else -1


def _identity(topic: str, draft: tuple[object, ...]) -> tuple[object, ...]:
    """Return the identity of a delivered record: all fields that do not depend on when it is delivered."""
    body, properties, _, _, born_ms, born_host, reconsume_times, _, _ = draft
    assert isinstance(properties, bytes)
    return topic, body, without(properties, _OF_THE_TIME), born_ms, born_host, reconsume_times
