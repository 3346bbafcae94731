"""A slave's index has at any moment what a rebuild from its log gives, and a broker that starts on its directory believes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import pytest

from halfmoon.errors import HalfmoonError, StoreError, StoreNotWritable
from halfmoon.hot import COMMIT_KIND
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.log import copying, cutting
from halfmoon.store.log.cutting import cut_log
from halfmoon.store.transactions import recovery
from halfmoon.store.transactions.copied import CopiedTransactions
from halfmoon.store.transactions.files import TransactionFiles
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.store.transactions.redispatch import Redispatch
from halfmoon.store.transactions.redo_log import RedoLog
from halfmoon.store.transactions.slave_index import SlaveIndex
from halfmoon.store.transactions.state_table import StateTable
from halfmoon.store.transactions.walk import transaction_records
from halfmoon.store.transactions.watermark import Watermark
from halfmoon.testing.disk import SimDisk, Stopped
from tests.columns.conftest import PYTHON, native
from tests.store.driving import HOST, NOW, close, draft
from tests.store.transacting import OP_TAG, carry_out_both, close_both, disk_of, settings

FILE_BYTES = 16 * 1024
DELAYED = ("SCHEDULE_TOPIC_XXXX", 2)
OPTIONS = {"commit_log_file_bytes": FILE_BYTES, "transaction_file_records": 100}


@pytest.fixture(params=["python", "native"], autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both twins of what touches each record."""
    twin = PYTHON if request.param == "python" else native()
    monkeypatch.setattr(copying, "copied_records", twin.copied_records)


def rebuilt(store: Store, none_below: int) -> tuple[dict[int, Half], dict[int, int], dict[int, int]]:
    """Rebuild the index of a log elsewhere; return half messages, unfinished commits, and how many of each group are pending."""
    files = TransactionFiles(SimDisk(Random(0)), settings(**OPTIONS), store.journal)
    made = Redispatch(files.table, files.redo, store, again=False)
    made.take(transaction_records(store, 0))
    files.table.settle_below(none_below)
    table = files.table
    halves = {at: half for at in range(table.first, table.end) if (half := table.half(at)) is not None and half.size}
    return halves, made.unfinished, table.by_group


def settled(halves: dict[int, Half], none_below: int) -> dict[int, Half]:
    """Leave out what became of those that another broker settled: a rebuild sees decisions that came too late."""
    return {at: half if at >= none_below else half._replace(state=State.NONE) for at, half in halves.items()}


class Slave:
    """A slave's store with the index of its transactions."""

    def __init__(self, disk: SimDisk, *, begin: int = 0, **more: Any) -> None:
        self.disk, self.options, self.now = disk, {**OPTIONS, **more}, NOW
        self.open()
        if begin:
            self.store.copying().begin(begin)

    def open(self) -> None:
        chosen = settings(**self.options)
        self.store = Store.open(self.disk, chosen, HOST, instant(self.now), is_slave=True)
        self.transactions = SlaveIndex(self.disk, self.store, chosen, lambda: 0, instant(self.now).steady)
        self.know_index()

    def know_index(self) -> None:
        if self.transactions.index is not None:
            self.index = self.transactions.index

    def take(self, data: bytes) -> None:
        self.store.copying().take(data)

    def save(self) -> None:
        """Let time pass until everything is saved."""
        for _ in range(3):
            self.now += 2000
            self.tick()

    def tick(self) -> None:
        self.store.tick(instant(self.now))
        self.transactions.tick(instant(self.now).steady)
        self.know_index()
        carry_out_both(self.store, self.index, self.now)

    def recover(self) -> None:
        """Let time pass until an index that failed is there again."""
        while self.transactions.fault is not None:
            steady = instant(self.now).steady
            self.now += (self.transactions.due(steady) or steady) - steady
            self.tick()

    def check(self) -> None:
        """Compare the index with one that is made from the log now."""
        index, files = self.index, self.index.files
        assert index.fault is None, index.fault
        none_below = files.watermark.durable.none_below
        files.table.settle_below(none_below)  # as the next tick does
        halves, unfinished, groups = rebuilt(self.store, none_below)
        first = min(halves, default=0)
        known = {at: half for at in range(max(first, index.first), index.end) if (half := index.half(at)) is not None and half.size}
        assert settled(known, none_below) == settled(halves, none_below)
        assert dict(index.pending_by_group) == groups
        assert index.pending_count == sum(groups.values())
        theirs, ours = ({at: place for at, place in each.items() if at >= none_below} for each in (unfinished, index.unfinished))
        assert ours == theirs

    def promoted(self) -> TransactionIndex:
        """Close it, start a broker on the directory, close that too, and return its index."""
        close_both(self.store, self.index, self.now)
        return self.begin_as_master()

    def begin_as_master(self) -> TransactionIndex:
        chosen = settings(**self.options)
        self.store = Store.open(self.disk, chosen, HOST, instant(self.now))
        self.index = TransactionIndex.open(self.disk, self.store, chosen, settled_below=0, now=instant(self.now).steady)
        self.check()
        return self.index


class Master:
    """A master's store, and what its broker knows of its half messages. Its log may be any broker's: odd records come, too."""

    def __init__(self, random: Random, disk: SimDisk) -> None:
        self.random, self.disk = random, disk
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.disk, settings(**OPTIONS), HOST, instant(NOW))
        self.halves: list[tuple[int, int]] = []
        self.owed: list[int] = []
        self.now = NOW
        queue = self.store.queues.get((HALF_TOPIC, 0))
        for at in range(0 if queue is None else queue.first, 0 if queue is None else queue.written):
            assert queue is not None
            self.halves.append((at, queue.entry(at)[0]))

    def cut(self, offset: int) -> None:
        close(self.store)
        cut_log(self.disk, settings(**OPTIONS), offset)
        self.open()

    def append(self, topic: str, queue_id: int, *drafts: Any) -> None:
        self.now += self.random.choice([0, 0, 400])
        appended = self.store.append(topic, queue_id, drafts, self.now)
        if (topic, queue_id) == (HALF_TOPIC, 0):
            self.halves += [(appended.queue_offset + number, place) for number, place in enumerate(appended.physical_offsets)]
        carry_out(self.store)

    def step(self) -> None:
        self.random.choice([self.plain, self.half, self.half, self.decide, self.decide, self.decide, self.pay, self.odd])()

    def plain(self) -> None:
        drafts = [draft(self.random.randbytes(self.random.choice([0, 30, 700]))) for _ in range(self.random.choice([1, 5]))]
        self.append(*self.random.choice([("orders", 0), ("paid", 1), DELAYED]), *drafts)

    def half(self) -> None:
        groups = [f"g{self.random.randrange(3)}"] * self.random.choice([1, 4, 30])
        if self.random.random() < 0.5:
            self.random.shuffle(groups := [f"g{self.random.randrange(3)}" for _ in groups])
        self.append(HALF_TOPIC, 0, *[draft(b"half", b"PGROUP\x01" + group.encode() + b"\x02") for group in groups])

    def decide(self) -> None:
        """Decide some, most often for the first time: commits, then what ends them and rolls others back."""
        some = self.random.sample(self.halves, min(len(self.halves), self.random.choice([1, 3, 20])))
        committed = some[: self.random.randrange(len(some) + 1)]
        if committed:
            topic = self.random.choice([("orders", 0), ("orders", 0), DELAYED])
            self.append(*topic, *[draft(b"visible", sys_flag=8, prepared=place) for _, place in committed])
        if self.random.random() < 0.3:  # nothing more for the moment
            self.owed += [at for at, _ in committed]
            return
        self.ops([at for at, _ in some])

    def ops(self, indexes: list[int]) -> None:
        if indexes and self.random.random() < 0.2:  # as RocketMQ 5 writes them
            self.append(OP_TOPIC, 0, draft("".join(f"{at}," for at in indexes).encode(), OP_TAG, tag=100))
        elif indexes:
            self.append(OP_TOPIC, 0, *[draft(b"%d" % at, OP_TAG, tag=100) for at in indexes])

    def pay(self) -> None:
        owed, self.owed = self.owed, []
        self.ops(owed)

    def odd(self) -> None:
        """Records that change nothing, or that name what is not there."""
        bodies = [b"", b"x", b"-1", b"1" * 19, b"9" * 19, b"9" * 20, b"1_0", "١".encode(), b"00", b" 1", b"7,x,9"]
        choice = self.random.randrange(6)
        if choice == 0:
            self.append(OP_TOPIC, 0, draft(self.random.choice(bodies), OP_TAG, tag=100))
        elif choice == 1:
            self.append(OP_TOPIC, 0, draft(b"0", self.random.choice([b"", b"TAGS\x01dd\x02", b"XTAGS\x01d\x02"])))
        elif choice == 2:
            self.append("orders", 0, draft(sys_flag=8, prepared=self.random.choice([-1, 0, 7, 1 << 40])))
        elif choice == 3:
            self.append(HALF_TOPIC, 0, draft(b"no half", b"PGROUP\x01g1\x02", sys_flag=self.random.choice([4, 12])))
        elif choice == 4:
            self.append(HALF_TOPIC, 1, draft(b"half elsewhere", b"PGROUP\x01g1\x02"))
        else:
            self.append(OP_TOPIC, 1, draft(b"0", OP_TAG, tag=100))


def carry_out(store: Store) -> None:
    while works := store.work():
        for work in works:
            work.done(work.run(), instant(NOW))


def bytes_of(store: Store, start: int, end: int) -> bytes:
    return bytes(store.log.segments.view(start, end - start))


WRITES = [(StateTable, "enter"), (StateTable, "settle_pending"), (RedoLog, "take"), (Redispatch, "take")]


class History:
    """A master and its slave, which is stopped, killed, cut and promoted at any moment."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master = Master(self.random, SimDisk(Random(seed + 1), write_back=0.1))
        self.disk = SimDisk(Random(seed + 2), write_back=self.random.choice([0.0, 0.1, 0.5]))
        self.slave = Slave(self.disk, transaction_file_records=self.random.choice([16, 100, 5000]))
        self.seed = seed
        self.rebuilds = self.failures = 0

    def run(self) -> None:
        steps = [self.master.step] * 3 + [self.copy] * 4 + [self.save, self.restart, self.cut, self.settle, self.fail]
        for _ in range(60):
            self.random.choice(steps)()
        while self.slave.store.end_offset < self.master.store.end_offset:
            self.copy()
        self.slave.check()
        self.slave.save()
        self.slave.promoted()
        assert self.slave.index.rebuilt is None
        close_both(self.slave.store, self.slave.index, self.slave.now)
        assert [each for each in fsck(self.disk, settings(**self.slave.options)) if each.what != "record"] == []

    def copy(self) -> None:
        self.take()
        if self.slave.transactions.fault is None:
            self.slave.check()

    def take(self) -> None:
        target, end = self.slave.store.copying(), self.master.store.end_offset
        for _ in range(self.random.choice([1, 8])):
            if (start := target.received) >= end:
                break
            size = self.random.choice([7, 100, 5000])
            target.take(bytes_of(self.master.store, start, min(end, start - start % FILE_BYTES + FILE_BYTES, start + size)))

    def save(self) -> None:
        self.slave.now += self.random.choice([1, 400, 2000])
        self.slave.tick()

    def settle(self) -> None:
        """A master of RocketMQ's tells how far it is."""
        if self.random.random() < 0.3:
            self.slave.transactions.settle_below(self.random.randrange(self.slave.index.end + 3))

    def fail(self) -> None:
        """The index fails, and is opened again here, or by whoever starts on the directory next."""
        owner, name = self.random.choice(WRITES)
        real, error, good = getattr(owner, name), self.random.choice([OSError, StoreError, KeyError]), self.random.randrange(5)
        calls = count()

        def failing(*arguments: Any, **more: Any) -> Any:
            if next(calls) >= good:
                raise error("planted")
            return real(*arguments, **more)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, failing)
            for _ in range(self.random.choice([1, 6])):
                self.master.step()
                self.take()
            self.settle()
        self.failures += self.slave.transactions.fault is not None
        self.random.choice([self.slave.recover, self.restart])()
        self.slave.check()

    def restart(self) -> None:
        """Stop the slave, kill it, or take its power; now and then a broker starts on its directory before it goes on."""
        how = self.random.choice(["stop", "kill", "torn", "power"])
        if how == "stop":
            close_both(self.slave.store, self.slave.index, self.slave.now)
        else:
            if how == "torn":
                self.disk.stop_after_writes = self.random.randrange(30)
                with suppress(Stopped):
                    self.master.step()
                    self.copy()
                    self.save()
                self.disk.stop_after_writes = None
            self.disk.crash(power=how == "power")
        if self.random.random() < 0.4 and how != "power":
            self.slave.begin_as_master()
            assert self.slave.index.rebuilt is None
            found = self.slave.store.recovered
            if found.rolled or self.random.random() < 0.5:
                close_both(self.slave.store, self.slave.index, self.slave.now)
            else:
                self.disk.crash(power=False)
            if found.rolled:  # it would go on in another file than the master
                cut_log(self.disk, settings(**self.slave.options), found.found_end)
        self.slave.open()
        self.rebuilds += self.slave.index.rebuilt is not None
        self.slave.check()

    def cut(self) -> None:
        """Another master goes on from a place before the ends of both."""
        if self.random.random() < 0.5:
            return
        end = min(self.slave.store.end_offset, self.master.store.end_offset)
        places = [place for place, _ in self.master.store.log.scan(self.master.store.log.first, end, known_to=end) if place < end]
        close_both(self.slave.store, self.slave.index, self.slave.now)
        if places:
            offset = self.random.choice(places[-30:])
            self.master.cut(offset)
            cut_log(self.disk, settings(**self.slave.options), offset)
        self.slave.open()
        assert self.slave.store.end_offset <= self.master.store.end_offset
        self.slave.check()


def histories(seeds: int) -> None:
    failures = 0
    for seed in range(seeds):
        history = History(seed)
        history.run()
        assert history.rebuilds == 0, "a start goes on from what was saved"
        failures += history.failures
    assert failures >= seeds / 2


def test_the_index_of_a_slave_is_what_a_rebuild_from_its_log_gives() -> None:
    histories(20)


# ---------------------------------------------------------------- planted faults


def _no_commits(owner: Plant) -> None:
    real = copying.copied_records

    def fewer(*arguments: Any) -> Any:
        *others, runs = real(*arguments)
        return *others, [run for run in runs if run[0] != COMMIT_KIND]

    owner(copying, "copied_records", fewer)


def _no_single_records(owner: Plant) -> None:
    real = copying.copied_records

    def fewer(data: bytes, span: tuple[int, int], first: int, apart: Any, *more: Any) -> Any:
        found = real(data, span, first, apart, *more)
        return found if apart else (*found[:3], [])

    owner(copying, "copied_records", fewer)


def _settled_at_once(owner: Plant) -> None:
    def settle(self: TransactionIndex, index: int) -> None:
        self.files.none_below = max(self.files.none_below, index)
        self.files.table.settle_below(self.files.none_below)

    owner(TransactionIndex, "settle_below", settle)


def _not_cut(owner: Plant) -> None:
    def as_it_was(self: Any, was: Watermark, tail: Any, ends: Any) -> Watermark:
        return was._replace(position=min(was.position, self._offset), end=min(was.end, self._offset), clean=False)

    owner(cutting._Cutting, "_earlier_watermark", as_it_was)


Plant = Callable[[Any, str, Any], None]
FAULTS: dict[str, Callable[[Plant], None]] = {
    "commits are not seen": _no_commits,
    "records with something unusual are left out": lambda plant: plant(
        CopiedTransactions, "_one_by_one", lambda self, entries: None
    ),
    "the watermark passes commits without an op record": lambda plant: plant(TransactionIndex, "hold", lambda self, offset: None),
    "states are taken before the watermark says so": _settled_at_once,
    "a cut leaves the index as it is": _not_cut,
    "single records are left out": _no_single_records,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](lambda owner, name, value: monkeypatch.setattr(owner, name, value))
    with pytest.raises((AssertionError, HalfmoonError)):
        histories(60)


# ---------------------------------------------------------------- one by one


def master_of(halves: int, seed: int = 1) -> Master:
    """A master with half messages, of which a third each is committed, rolled back and left."""
    master = Master(Random(seed), disk_of())
    while len(master.halves) < halves:
        known = len(master.halves)
        master.append(HALF_TOPIC, 0, *[draft(b"half", b"PGROUP\x01g\x02")] * 30)
        new = master.halves[known:]
        master.append("orders", 0, *[draft(b"visible", sys_flag=8, prepared=place) for _, place in new[::3]])
        master.ops([at for at, _ in new[::3] + new[1::3]])
    return master


def copy_all(master: Master, slave: Slave) -> None:
    """Copy what the master has more, a file at a time."""
    while (start := slave.store.copying().received) < master.store.end_offset:
        slave.take(bytes_of(master.store, start, min(master.store.end_offset, start - start % FILE_BYTES + FILE_BYTES)))


def test_a_broker_that_starts_on_the_directory_reads_only_what_came_after_the_last_save(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave, read = master_of(900), Slave(disk_of()), list[int]()
    real = recovery.transaction_records

    def counted(store: Store, start: int) -> Any:
        found = list(real(store, start))
        read.append(len(found))
        return found

    copy_all(master, slave)
    slave.save()
    master.append(HALF_TOPIC, 0, draft(b"one more", b"PGROUP\x01g\x02"))
    copy_all(master, slave)
    slave.disk.crash(power=False)
    monkeypatch.setattr(recovery, "transaction_records", counted)
    index = slave.begin_as_master()
    assert (read, index.rebuilt, index.end, index.pending_count) == ([1], None, 901, 301)
    close_both(slave.store, slave.index, slave.now)
    slave.begin_as_master()
    assert read == [1, 0], "after a clean stop there is nothing to read"


def test_a_full_disk_refuses_records_before_they_are_appended_and_takes_them_later() -> None:
    master, slave = master_of(150), Slave(SimDisk(Random(1)), transaction_file_records=10)
    slave.disk.full = True
    with pytest.raises(StoreNotWritable, match="the transaction index cannot be written"):
        copy_all(master, slave)
    assert (slave.store.end_offset, slave.index.failure) == (0, None)
    slave.disk.full = False
    slave.store.copying().again()
    copy_all(master, slave)
    slave.check()


def test_the_index_of_a_log_that_begins_later_begins_with_it() -> None:
    master, slave = master_of(300), Slave(SimDisk(Random(1)), begin=FILE_BYTES, transaction_file_records=10)
    copy_all(master, slave)
    first = min(at for at, place in master.halves if place >= FILE_BYTES)
    assert first > 30
    assert slave.index.first == first // 10 * 10
    slave.check()
    assert slave.promoted().rebuilt is None


def test_an_index_that_cannot_be_written_stops_and_the_log_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = master_of(150), Slave(disk_of())
    with monkeypatch.context() as patch:
        patch.setattr(StateTable, "enter", lambda *arguments: (_ for _ in ()).throw(OSError("no space")))
        copy_all(master, slave)
    assert slave.store.end_offset == master.store.end_offset
    assert slave.index.failure == "the transaction index cannot be written: no space"
    copy_all(master, slave)
    assert slave.promoted().rebuilt is None


def test_an_index_that_the_log_contradicts_is_rebuilt_by_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    master, slave = master_of(150), Slave(disk_of())
    copy_all(master, slave)
    slave.save()
    master.store.delete_topic(HALF_TOPIC, instant(NOW).steady)
    carry_out(master.store)
    master.append(HALF_TOPIC, 0, *[draft(b"another", b"PGROUP\x01other\x02")] * 3)
    copy_all(master, slave)
    assert "the transaction index contradicts the log" in caplog.text
    slave.save()
    index = slave.promoted()
    assert (index.first, index.end, index.pending_count) == (0, 3, 3)


def test_what_the_log_lets_go_is_let_go_and_keeps_no_files() -> None:
    master, slave = master_of(900), Slave(SimDisk(Random(1)), transaction_file_records=100)
    copy_all(master, slave)
    slave.save()
    assert all(pin.what != "transactions" for pin in slave.store.maintenance.pins)
    first = slave.store.log.segments.last
    assert first is not None
    for path in slave.store.log.segments.drop_before(first):
        slave.disk.remove(path)
    slave.store.maintenance.correct_queues()
    slave.save()
    slave.save()
    assert slave.index.first > 500
    assert slave.disk.list("transaction/statetable")[0] > "0" * 20
    slave.check()
    slave.disk.crash(power=False)
    assert slave.begin_as_master().rebuilt is None


def test_half_messages_that_another_broker_settled_get_no_state_once_a_start_knows_it() -> None:
    master, slave = master_of(90), Slave(disk_of())
    copy_all(master, slave)
    slave.save()
    slave.index.settle_below(60)
    slave.now += 2000
    slave.tick()
    slave.disk.crash(power=False)
    slave.open()
    assert (slave.index.rebuilt, slave.index.lowest_pending()) == (None, 62)
    slave.check()
