"""After a cut no delayed message is missing, and no table speaks of what is not there."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from halfmoon.store.check.tables import DELAYS, OFFSETS, TIMER, TOPICS, TRIMS
from halfmoon.store.journal import Kind
from halfmoon.store.legacy import read_journal
from halfmoon.store.log import rollback
from halfmoon.store.log.cutting import cut_log
from halfmoon.store.log.rollback import roll_back_tables
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.records import RecordFacts
from halfmoon.store.timer.messages import SCHEDULE_TOPIC, TIMER_TOPIC
from halfmoon.testing.disk import SimDisk
from halfmoon.wire.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    TimerOffset,
    TopicConfig,
    TopicConfigTable,
    TrimTable,
    from_json,
    to_json,
)
from tests.broker.half import stored
from tests.broker.talk import Talk
from tests.store.driving import entries_of

TOPIC = "orders"


def queue_of(topic: str, queue_id: int, codes: list[int]) -> ConsumeQueue:
    """Return a queue of entries with these tag codes, on a disk of its own."""
    queue = ConsumeQueue(SimDisk(Random(1)), topic, queue_id, 20_000)
    queue.publish(0, entries_of([number for at, code in enumerate(codes) for number in (at * 200, 200, code)]), 64 * 1024)
    queue.write_out()
    return queue


def rolled_back(table: object, path: str, queue: ConsumeQueue, end: int, delayed: int = 0) -> object:
    """Return a table as it is after a cut at offset 5000 that leaves so many entries in a queue."""
    disk, key = SimDisk(Random(1)), (queue.topic, queue.queue_id)
    disk.save(path, to_json(table))
    roll_back_tables(disk, {key: queue}, {key: end}, 5000, delayed)
    if disk.exists(f"{path}.bak"):
        assert disk.read(f"{path}.bak") == disk.read(path)
    return from_json(type(table), disk.read(path) or b"", bounds=None)


def test_progress_and_trims_end_where_their_queues_do() -> None:
    queue = queue_of(TOPIC, 0, [0] * 10)
    offsets = ConsumerOffsetTable({"orders@g": {0: 9, 1: 9}, "orders@h": {0: 3}, "other@g": {0: 9}})
    after = ConsumerOffsetTable({"orders@g": {0: 4, 1: 9}, "orders@h": {0: 3}, "other@g": {0: 9}})
    assert rolled_back(offsets, OFFSETS, queue, 4) == after
    assert rolled_back(TrimTable({TOPIC: {0: 9, 1: 9}}), TRIMS, queue, 4) == TrimTable({TOPIC: {0: 4, 1: 9}})


def test_births_behind_the_cut_are_taken_back() -> None:
    topics = {name: TopicConfig(name, birth_offset=birth) for name, birth in (("a", None), ("b", 4999), ("c", 7000))}
    table = rolled_back(TopicConfigTable(topic_config_table=topics), TOPICS, queue_of(TOPIC, 0, [0]), 1)
    assert isinstance(table, TopicConfigTable)
    assert [config.birth_offset for config in table.topic_config_table.values()] == [None, 4999, 5000]


def test_without_a_delivery_behind_the_cut_delays_go_on_where_they_were() -> None:
    levels = DelayOffsetTable(offset_table={3: 700, 5: 8})
    assert rolled_back(levels, DELAYS, queue_of(SCHEDULE_TOPIC, 2, [0] * 800), 750) == levels
    timer = TimerOffset(due_ms=500, offset=499, low=400, marks=[(800, 500, 499)])
    assert rolled_back(timer, TIMER, queue_of(TIMER_TOPIC, 0, list(range(800))), 800) == timer


def test_the_last_messages_of_a_level_wait_again() -> None:
    levels = DelayOffsetTable(offset_table={3: 700})
    found = rolled_back(levels, DELAYS, queue_of(SCHEDULE_TOPIC, 2, [0] * 800), 600, delayed=10)
    assert found == DelayOffsetTable(offset_table={3: 600 - 10 - rollback.DELIVERED_AT_ONCE})
    assert rolled_back(levels, DELAYS, queue_of(SCHEDULE_TOPIC, 2, [0] * 800), 100, delayed=10) == DelayOffsetTable(
        offset_table={3: 0}
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_last_messages_of_the_timer_wait_again_and_no_others(seed: int) -> None:
    random = Random(seed)
    dues = [random.randrange(300) for _ in range(900)]
    mark = (250, 450)
    table = TimerOffset(due_ms=mark[0], offset=mark[1], low=100, marks=[(900, *mark)])
    found = rolled_back(table, TIMER, queue_of(TIMER_TOPIC, 0, dues), 800, delayed=7)
    assert isinstance(found, TimerOffset)
    pairs = sorted((due, offset) for offset, due in enumerate(dues[:800]))
    delivered = [pair for pair in pairs if pair <= mark]
    waits = [pair for pair in delivered if pair > (found.due_ms, found.offset)]
    assert waits == delivered[-7 - rollback.DELIVERED_AT_ONCE :]
    assert found.marks == [(800, found.due_ms, found.offset)]
    assert found.low == min(100, *(offset for _, offset in waits))


def test_a_message_waits_again_whose_cancel_is_cut() -> None:
    table = TimerOffset(due_ms=-1, offset=-1, low=5, marks=[(6, -1, -1)])
    found = rolled_back(table, TIMER, queue_of(TIMER_TOPIC, 0, [90, 91, 92, 93, 94, -1 - 2]), 5)
    assert found == TimerOffset(due_ms=-1, offset=-1, low=2, marks=[(5, -1, -1)])


@pytest.mark.parametrize("data", [b"", b"{", b"[]"])
def test_a_table_that_cannot_be_read_is_left_to_the_next_start(data: bytes) -> None:
    disk = SimDisk(Random(1))
    disk.save(OFFSETS, data)
    roll_back_tables(disk, {}, {}, 0, 9)
    assert disk.read(OFFSETS) == data


# ---------------------------------------------------------------- histories


class History:
    """A broker with delayed messages, whose log is cut."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(Random(seed + 1))
        self.talk = Talk("", disk=self.disk, delay_levels="1s 5s 10s", store={"commit_log_file_bytes": 16 * 1024})
        self.count = 0

    def run(self) -> None:
        for _ in range(self.random.choice([5, 20, 60])):
            self.random.choice([self.delay, self.delay, self.wait])()
        self.talk.wait(self.random.choice([0, 1000, 12_000]))
        self.talk.restart()
        self.stop()
        self.cut()
        self.talk.open()
        assert self.talk.broker.store.recovered.found_end == self.offset
        for _ in range(4):
            self.talk.wait(20_000)
        found = Counter(message.body for queue_id in range(2) for message in stored(self.talk, TOPIC, queue_id))
        assert found.keys() == self.accepted, "a delayed message is missing, or one was not accepted"
        assert max(found.values(), default=1) <= 2

    def delay(self) -> None:
        for _ in range(self.random.choice([1, 3, 10])):
            self.count += 1
            timed = f"TIMER_DELIVER_MS\x01{self.talk.now + self.random.choice([1, 700, 9000])}\x02"
            properties = self.random.choice([f"DELAY\x01{self.random.randrange(1, 4)}\x02", timed])
            reply = self.talk.send(TOPIC, b"%d" % self.count, queue_id=self.random.randrange(2), properties=properties)
            assert reply.code == 0, reply.remark

    def wait(self) -> None:
        self.talk.wait(self.random.choice([1, 300, 2000]))

    def stop(self) -> None:
        """Stop cleanly, or be killed with tables that were just saved."""
        if self.random.random() < 0.5:
            self.talk.stop()
            self.talk.broker.close(self.talk.instant)
        else:
            self.disk.crash(power=False)

    def cut(self) -> None:
        self.talk.open()
        log = self.talk.broker.store.log
        records = [(position, record) for position, record in log.scan(log.first) if isinstance(record, RecordFacts)]
        self.offset = self.random.choice([log.first, *(position + record.size_bytes for position, record in records[-60:])])
        self.accepted = {
            bytes(log.segments.view(position + record.body_at, record.body_bytes))
            for position, record in records
            if record.topic in (SCHEDULE_TOPIC, TIMER_TOPIC) and position < self.offset
        }
        self.stop()
        cut_log(self.disk, self.talk.store_settings, self.offset)
        assert read_journal(self.disk).value(Kind.DELAYS) is None


def histories(count: int) -> None:
    for seed in range(count):
        History(seed).run()


def test_every_delayed_message_below_a_cut_is_delivered_and_none_more_than_twice() -> None:
    histories(100)


FAULTS = {
    "the_levels_stay": lambda patch: patch(rollback, "_take_back_levels", lambda table, queues, ends, back: None),
    "the_timer_stays": lambda patch: patch(rollback, "_take_back_timer", lambda table, queues, ends, back: None),
    "the_lowest_stays": lambda patch: patch(rollback, "min", lambda *numbers: numbers[0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    with pytest.raises((AssertionError, IndexError)):
        histories(60)
