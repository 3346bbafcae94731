"""A slave's store has the bytes of its master's log at the same places, and the queues that a start would rebuild."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import CorruptRecord, StoreError, StoreNotWritable
from halfmoon.hot import FILLER_SIZE
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.layout import BLANK, BLANK_MAGIC
from halfmoon.store.log import copying
from halfmoon.store.log.copying import Copying
from halfmoon.store.log.recovery import Recovery
from halfmoon.store.queues.consume_queue import ConsumeQueue
from halfmoon.store.records import tag_hash_of
from halfmoon.store.timer.messages import SCHEDULE_TOPIC
from halfmoon.testing.disk import SimDisk
from tests.columns.conftest import PYTHON, native
from tests.store.driving import HOST, NOW, carry_out, close, draft, open_store, read_all, small

QUEUES = [("orders", 0), ("orders", 1), ("paid", 0), (SCHEDULE_TOPIC, 2)]
FILE_BYTES = 16 * 1024


@pytest.fixture(params=["python", "native"], autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both twins of what touches each record."""
    twin = PYTHON if request.param == "python" else native()
    monkeypatch.setattr(copying, "copied_records", twin.copied_records)


def tag_code(topic: str, properties: bytes, store_ms: int) -> int:
    """Return the number in a queue entry: for a delayed message when it is due."""
    return store_ms + 5000 if topic == SCHEDULE_TOPIC else tag_hash_of(properties)


def open_slave(disk: SimDisk, flush: str = "ASYNC_FLUSH") -> Store:
    settings = small(commit_log_file_bytes=FILE_BYTES, flush_disk_type=flush)
    store = Store.open(disk, settings, HOST, instant(NOW), tag_code=tag_code, is_slave=True)
    store.copying()
    return store


def open_master(disk: SimDisk) -> Store:
    return Store.open(disk, small(commit_log_file_bytes=FILE_BYTES), HOST, instant(NOW), tag_code=tag_code)


def bytes_of(store: Store, start: int, end: int) -> bytes:
    """Return the bytes of a log between two offsets."""
    segments, found = store.log.segments, b""
    while start < end:
        found += bytes(segments.view(start, min(end, segments.base(start) + FILE_BYTES) - start))
        start = segments.base(start) + FILE_BYTES if len(found) else end
    return found


def entries_of(store: Store) -> list[list[tuple[int, int, int]]]:
    """Return the entries of each queue that point at messages."""
    found = []
    for queue in (store.queues.get(each) for each in QUEUES):
        entries = [] if queue is None else [queue.entry(offset) for offset in range(queue.min_offset, queue.max_offset)]
        found.append([entry for entry in entries if entry[1] != FILLER_SIZE])
    return found


class History:
    """A master and its slave, which stop, are killed and lose power."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.flush = self.random.choice(["ASYNC_FLUSH", "SYNC_FLUSH"])
        self.disks = [SimDisk(Random(seed + number), write_back=self.random.choice([0.0, 0.1, 0.5])) for number in range(2)]
        self.master = open_master(self.disks[0])
        self.slave = open_slave(self.disks[1], self.flush)
        self.count = 0

    def run(self) -> None:
        """Do something forty times, then let the slave copy the rest, and compare."""
        steps = (
            self.append,
            self.append,
            self.append,
            self.delete,
            self.copy,
            self.copy,
            self.copy,
            self.restart,
            self.restart_slave,
        )
        for _ in range(40):
            self.random.choice(steps)()
            self.compare()
        for _ in range(2000):
            if self.slave.copying().received >= self.master.end_offset:
                break
            self.copy()
        self.compare()
        assert self.slave.end_offset == self.master.end_offset
        if "paid" not in self.master.topics():  # a slave learns of deletions from the table of topics
            self.slave.delete_topic("paid", instant(NOW).steady)
        everything, entries = [read_all(self.master, *queue) for queue in QUEUES], entries_of(self.master)
        carry_out(self.slave)
        assert [read_all(self.slave, *queue) for queue in QUEUES] == everything
        assert entries_of(self.slave) == entries
        close(self.slave)
        successor = open_master(self.disks[1])  # it becomes a master
        assert [read_all(successor, *queue) for queue in QUEUES] == everything
        for queue in QUEUES:
            end = self.master.queue_max(*queue)
            assert successor.append(*queue, [draft(b"new")], NOW).queue_offset >= end, "an offset is given out twice"
        close(successor)

    def append(self) -> None:
        drafts, queue = [], self.random.choice(QUEUES)
        for _ in range(self.random.choice([1, 1, 3, 40])):
            self.count += 1
            tag = self.random.choice("ab")
            properties = f"KEYS\x01k{self.count % 50}\x02TAGS\x01{tag}\x02".encode()
            body = self.random.randbytes(self.random.choice([0, 30, 700, 3000]))
            prepared = self.random.random() < 0.1
            code = tag_code(queue[0], properties, NOW)
            drafts.append(draft(body, properties, tag=code, sys_flag=4 if prepared else 0))
        self.master.append(*queue, drafts, NOW)
        carry_out(self.master)

    def delete(self) -> None:
        """Delete a topic now and then; it is made again by the next append."""
        if self.random.random() < 0.2:
            self.master.delete_topic("paid", instant(NOW).steady)
            carry_out(self.master)

    def copy(self) -> None:
        """Let some bytes come to the slave, cut anywhere."""
        target = self.slave.copying()
        if self.random.random() < 0.2:
            target.again()  # another connection
        for _ in range(self.random.randint(1, 20)):
            start = target.received
            if start >= self.master.end_offset:
                break
            end = min(
                self.master.end_offset, start - start % FILE_BYTES + FILE_BYTES, start + self.random.choice([1, 7, 100, 5000])
            )
            target.take(bytes_of(self.master, start, end))
        self.slave.flush(1, instant(NOW).steady)
        carry_out(self.slave)

    def restart(self) -> None:
        """Stop the master cleanly, or kill it."""
        if self.random.random() < 0.5:
            close(self.master)
        else:
            self.disks[0].crash(power=False)
        self.master = open_master(self.disks[0])

    def restart_slave(self) -> None:
        """Stop the slave cleanly, kill it, or take its power."""
        how = self.random.choice(["stop", "kill", "power"])
        if how == "stop":
            close(self.slave)
        else:
            self.disks[1].crash(power=how == "power")
        self.slave = open_slave(self.disks[1], self.flush)

    def compare(self) -> None:
        slave = self.slave
        assert bytes_of(slave, slave.min_offset, slave.end_offset) == bytes_of(self.master, slave.min_offset, slave.end_offset)


def histories(count: int) -> None:
    for seed in range(count):
        History(seed).run()


def test_a_slave_has_the_log_and_the_queues_of_its_master() -> None:
    histories(60)


def test_bytes_that_are_no_record_end_the_copy_before_them() -> None:
    master, slave = open_store(SimDisk(Random(1)), commit_log_file_bytes=FILE_BYTES), open_slave(SimDisk(Random(2)))
    end = master.append("orders", 0, [draft(b"good")], NOW).end_offset
    master.append("orders", 0, [draft(b"bad")], NOW)
    data = bytearray(bytes_of(master, 0, master.end_offset))
    data[data.index(b"bad")] ^= 1
    with pytest.raises(CorruptRecord, match=f"record at {end}:"):
        slave.copying().take(bytes(data))
    assert (slave.end_offset, slave.queue_max("orders", 0)) == (end, 1)
    slave.copying().again()
    assert slave.copying().received == end


@pytest.mark.parametrize("data", [b"\xff" * 8, b"\0" * 8, b"\0\0\0\1" + b"\0" * 8, b"\x7f\xff\xff\xff" + b"\0" * 8])
def test_a_size_that_no_record_has_is_refused_before_its_bytes_come(data: bytes) -> None:
    slave = open_slave(SimDisk(Random(2)))
    with pytest.raises(CorruptRecord, match="a record cannot have"):
        slave.copying().take(data)
    assert slave.end_offset == 0


def test_a_blank_tail_of_another_size_is_refused() -> None:
    slave = open_slave(SimDisk(Random(2)))
    with pytest.raises(CorruptRecord, match="a blank tail of 100 bytes"):
        slave.copying().take(BLANK.pack(100, BLANK_MAGIC))


def test_an_empty_log_begins_where_a_file_of_its_master_does() -> None:
    master, slave = open_store(SimDisk(Random(1)), commit_log_file_bytes=FILE_BYTES), open_slave(SimDisk(Random(2)))
    for _ in range(12):
        master.append("orders", 0, [draft(bytes(5000))], NOW)
    start, target = 2 * FILE_BYTES, slave.copying()
    target.begin(start)
    target.take(bytes_of(master, start, start + FILE_BYTES))
    target.take(bytes_of(master, start + FILE_BYTES, master.end_offset))
    assert (slave.min_offset, slave.end_offset) == (start, master.end_offset)
    there = read_all(slave, "orders", 0)
    assert there == {offset: each for offset, each in read_all(master, "orders", 0).items() if each[1] > start}
    with pytest.raises(StoreError, match="it cannot begin at 0"):
        target.begin(0)
    for offset in (-1, 100, FILE_BYTES + 1):
        with pytest.raises(StoreError, match=f"it cannot begin at {offset}"):
            open_slave(SimDisk(Random(2))).copying().begin(offset)


def test_a_log_that_begins_later_opens_again_after_a_kill_before_its_first_sync() -> None:
    master, disk = open_store(SimDisk(Random(1)), commit_log_file_bytes=FILE_BYTES), SimDisk(Random(2))
    for _ in range(8):
        master.append("orders", 0, [draft(bytes(5000))], NOW)
    copying = (slave := open_slave(disk)).copying()
    copying.begin(FILE_BYTES)
    copying.take(bytes_of(master, FILE_BYTES, master.end_offset))
    disk.crash(power=False)
    again = open_slave(disk)
    assert (again.min_offset, again.end_offset) == (FILE_BYTES, slave.end_offset)
    assert again.durable_offset == FILE_BYTES


def test_a_slaves_store_takes_no_messages_of_its_own() -> None:
    slave = open_slave(SimDisk(Random(2)))
    with pytest.raises(StoreNotWritable, match="this broker is a slave"):
        slave.append("orders", 0, [draft()], NOW)


def test_after_a_failed_sync_nothing_more_is_appended() -> None:
    master, disk = open_store(SimDisk(Random(1)), commit_log_file_bytes=FILE_BYTES), SimDisk(Random(2))
    slave = open_slave(disk)
    master.append("orders", 0, [draft(b"one")], NOW)
    slave.health.fail("a sync failed")
    with pytest.raises(StoreNotWritable, match="a sync failed"):
        slave.copying().take(bytes_of(master, 0, master.end_offset))
    assert slave.end_offset == 0


def test_a_full_disk_refuses_bytes_and_takes_them_again_later() -> None:
    master, disk = open_store(SimDisk(Random(1)), commit_log_file_bytes=FILE_BYTES), SimDisk(Random(2))
    slave = open_slave(disk)
    master.append("orders", 0, [draft(b"one")], NOW)
    data = bytes_of(master, 0, master.end_offset)
    disk.full = True
    with pytest.raises(StoreNotWritable):
        slave.copying().take(data)
    assert (slave.end_offset, slave.queue_max("orders", 0)) == (0, 0)
    disk.full = False
    slave.copying().again()
    slave.copying().take(data)
    assert read_all(slave, "orders", 0) == read_all(master, "orders", 0)


KEEP = Copying._keep
FAULTS = {
    "no_blank": lambda patch: patch(Copying, "_close_file", lambda self: None),
    "half_messages_in_queues": lambda patch: patch(copying, "PREPARED", 0),
    "no_delays": lambda patch: patch(copying, "_APART", ()),
    "a_record_is_late": lambda patch: patch(Copying, "_keep", lambda self, rest: KEEP(self, rest[:1] + rest)),
    "no_cut": lambda patch: patch(ConsumeQueue, "cut", lambda self, offset, thorough: None),
    "a_byte_is_lost": lambda patch: patch(Copying, "again", lambda self: self._rest.extend(b"x")),
    "rolled": lambda patch: patch(Recovery, "_is_slave", property(lambda self: False, lambda self, value: None)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    with pytest.raises((AssertionError, StoreError)):
        histories(40)
