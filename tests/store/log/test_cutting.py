"""A log that was cut ends there, everything that is derived from it agrees, and a stop in between changes nothing of that."""

from __future__ import annotations

import logging
from contextlib import suppress
from random import Random

import pytest

from halfmoon.errors import StoreError, StoreLocked
from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.checkpoint import CheckpointFile
from halfmoon.store.layout import LOCK
from halfmoon.store.log import cutting
from halfmoon.store.log.cutting import Cut, cut_log
from halfmoon.store.queues.inventory import Inventory
from halfmoon.store.queues.reservations import Reservations
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import HOST, NOW, carry_out, close, draft, open_store, read_all
from tests.store.transacting import (
    add_halves,
    add_op,
    add_visible,
    assert_agrees,
    close_both,
    decided,
    open_both,
    roll_back,
    save_all,
    settings,
    truth_of,
)

QUEUES = [("orders", 0), ("orders", 1), ("paid", 0)]
FILE_BYTES = 16 * 1024


class Stopping(SimDisk):
    """A disk on which a process stops before an operation: a write, a sync, a new, a removed or another name of a file."""

    operations: int | None = None
    """So many operations come before that one; None: it does not stop."""

    def _count(self, path: str) -> None:
        if self.operations is not None:
            self.operations -= 1
            if self.operations < 0:
                raise Stopped(path)

    def open_one(self, path: str) -> None:
        self._count(path)
        super().open_one(path)

    def remove(self, path: str) -> None:
        self._count(path)
        super().remove(path)

    def rename(self, path: str, to: str) -> None:
        self._count(path)
        super().rename(path, to)

    def count_write(self, path: str) -> bool:
        self._count(path)
        return super().count_write(path)

    def crash(self, *, power: bool) -> None:
        self.operations = None
        super().crash(power=power)


class History:
    """A broker with transactions, whose log is cut somewhere after it stopped."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = Stopping(Random(seed + 1), write_back=self.random.choice([0.0, 0.1, 0.5]))
        self.options = {
            "commit_log_file_bytes": FILE_BYTES,
            "queue_file_bytes": self.random.choice([400, 6000]),
            "transaction_file_records": self.random.choice([16, 5000]),
        }
        self.now, self.count, self.keys = NOW, 0, dict[bytes, str]()
        self.store, self.index = open_both(self.disk, self.now, **self.options)

    def run(self) -> None:
        for _ in range(self.random.choice([1, 1, 2])):
            self.live()
            self.stop()
            self.cut()
            self.compare()
        close_both(self.store, self.index, self.now)
        assert list(fsck(self.disk, settings(**self.options))) == []

    # ------------------------------------------------------------ before

    def live(self) -> None:
        for _ in range(self.random.choice([3, 30, 80])):
            self.random.choice([self.append, self.append, self.append, self.transact, self.save])()

    def append(self, queue: tuple[str, int] | None = None) -> None:
        drafts = []
        for _ in range(self.random.choice([1, 1, 3, 20])):
            self.count += 1
            body = b"%d:" % self.count + bytes(self.random.choice([0, 30, 700, 3000]))
            self.keys[body] = f"k{self.count}"
            drafts.append(draft(body, f"KEYS\x01k{self.count}\x02".encode()))
        self.store.append(*(queue or self.random.choice(QUEUES)), drafts, self.now)
        carry_out(self.store)

    def transact(self) -> None:
        add_halves(self.store, self.index, [f"g{self.random.randrange(4)}" for _ in range(self.random.choice([1, 3]))])
        for half in self.index.pending(0, self.random.choice([0, 1, 5]))[0]:
            if self.random.random() < 0.5:
                roll_back(self.store, self.index, half.index, self.now)
            else:
                place, size = add_visible(self.store, self.index, half.index, self.now)
                add_op(self.store, half.index, self.now)
                decided(self.index, [(half.index, place, size, True)])

    def save(self) -> None:
        self.now = save_all(self.store, self.index, self.now)

    def stop(self) -> None:
        """Stop in some way, start, and stop in another, so that all there is is known."""
        self.save()
        if self.random.random() < 0.5:
            self.disk.crash(power=self.random.random() < 0.5)
            self.open()
            self.save()
        self.truth = {queue: read_all(self.store, *queue) for queue in [*QUEUES]}
        self.places = places_of(self.store)
        if self.random.random() < 0.5:
            close_both(self.store, self.index, self.now)
        else:
            self.disk.crash(power=False)

    def open(self) -> None:
        self.store, self.index = open_both(self.disk, self.now, **self.options)

    # ------------------------------------------------------------ the cut

    def cut(self) -> None:
        """Cut the log, stopped a few times by a kill or a power loss, after each of which a broker may start."""
        last = self.random.choice([1, 5, 40, len(self.places)])
        self.offset, self.lost = self.random.choice(self.places[-last:]), False
        for _ in range(self.random.choice([0, 0, 1, 3])):
            self.disk.operations = self.random.randrange(60)
            with suppress(Stopped):
                cut_log(self.disk, settings(**self.options), self.offset)
            power = self.random.random() < 0.4
            self.lost |= power
            self.disk.crash(power=power)
            if self.random.random() < 0.3:
                store = Store.open(
                    self.disk, settings(**self.options), HOST, instant(self.now), is_slave=self.random.random() < 0.5
                )
                assert store.end_offset >= self.offset
                assert self.lost or store.recovered.damaged == [], "a hole is left"
                self.disk.crash(power=False)
        cut_log(self.disk, settings(**self.options), self.offset)
        assert LOCK not in self.disk.locks

    def compare(self) -> None:
        if self.random.random() < 0.5:
            store = Store.open(self.disk, settings(**self.options), HOST, instant(self.now), is_slave=True)
            assert store.end_offset == self.offset
            close(store)
        self.open()
        assert self.store.recovered.found_end == self.offset, "the log ends elsewhere"
        assert self.store.recovered.damaged == []
        for queue, messages in self.truth.items():
            left = {offset: message for offset, message in messages.items() if message[1] <= self.offset}
            assert read_all(self.store, *queue) == left, f"{queue} has other messages"
            end = max(left, default=min(messages, default=0) - 1) + 1
            self.append(queue)
            first = next(iter(sorted(read_all(self.store, *queue).keys() - left)), None)
            assert first == end or (self.lost and first is not None and first > end), f"{queue} goes on at {first}, not {end}"
        self.compare_keys()
        assert_agrees(self.index, truth_of(self.store))

    def compare_keys(self) -> None:
        found = {message[0] for queue in QUEUES for message in read_all(self.store, *queue).values()}
        for body, key in self.keys.items():
            topics = {topic for topic, _ in QUEUES}
            records = [record for topic in topics for record in self.store.query(topic, key, 9, 0, 2**62).records]
            assert len(records) == (body in found), f"{len(records)} records with key {key}"


def places_of(store: Store) -> list[int]:
    """Return where records begin and end."""
    places = {store.log.first}
    for position, found in store.log.scan(store.log.first):
        places |= {position, position + found.size_bytes}
    return sorted(places)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_CHUNK_BYTES", 1024)


def histories(count: int) -> None:
    for seed in range(count):
        History(seed).run()


def test_a_directory_agrees_with_its_log_wherever_that_was_cut_and_whenever_the_cut_was_stopped() -> None:
    histories(100)


class NotesNothing(CheckpointFile):
    """Says that the log ends where it did."""

    def note_end(self, log_end: int) -> None:
        if self.noted_end is not None:
            super().note_end(self.noted_end)
        else:
            super().note_end(0)


def _forwards(self: cutting._Cutting) -> None:
    segments = self._log.segments
    for start in range(self._offset, segments.last + FILE_BYTES, 1024):
        for base in range(segments.base(start), start + 1, FILE_BYTES):
            segments.write(start, bytes(min(1024, base + FILE_BYTES - start)))
    segments.remove_after(self._offset)
    segments.sync_now()
    self._disk.sync_directory("commitlog")


FAULTS = {
    "the_checkpoint_stays": lambda patch: patch(cutting._Cutting, "_earlier", lambda self, was: was._replace(clean=False)),
    "the_end_stays_noted": lambda patch: patch(cutting, "CheckpointFile", NotesNothing),
    "the_watermark_stays": lambda patch: patch(cutting._Cutting, "_earlier_watermark", lambda self, was, tail, ends: was),
    "the_queues_stay": lambda patch: patch(cutting._Cutting, "_cut_queues", lambda self, ends: None),
    "the_rows_of_queues_stay": lambda patch: patch(Inventory, "cut", lambda self, ends, log_end: None),
    "the_floors_stay": lambda patch: patch(Reservations, "cut", lambda self, ends, emptied: None),
    "the_log_is_cut_first": lambda patch: patch(cutting._Cutting, "_keep", lambda self, tail: self._cut_log()),
    "the_log_is_cleared_forwards": lambda patch: patch(cutting._Cutting, "_cut_log", _forwards),
}


def everything(count: int) -> None:
    stops_between_any_two_operations()
    histories(count)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](monkeypatch.setattr)
    with pytest.raises((AssertionError, StoreError)):
        everything(60)


def stops_between_any_two_operations() -> None:
    for power in (False, True):
        for operations in range(1000):
            disk, offset, truth = stopped_store()
            disk.operations = operations
            with suppress(Stopped):
                cut_log(disk, settings(**SMALL), offset)
                assert operations > 30, "the disk counts nothing"
                break
            disk.crash(power=power)
            if not power:  # a start in between finds no hole
                assert open_store(disk, **SMALL).recovered.damaged == []
                disk.crash(power=False)
            cut_log(disk, settings(**SMALL), offset)
            store = open_store(disk, **SMALL)
            assert (store.recovered.found_end, store.recovered.damaged) == (offset, [])
            assert read_all(store, "orders", 0) == truth
            if not power:
                assert store.append("orders", 0, [draft()], NOW).queue_offset == len(truth)


def test_a_cut_is_the_same_after_a_kill_or_a_power_loss_between_any_two_operations() -> None:
    stops_between_any_two_operations()


SMALL = {"commit_log_file_bytes": FILE_BYTES, "queue_file_bytes": 400}


def stopped_store() -> tuple[Stopping, int, dict[int, tuple[bytes, int]]]:
    """Return a stopped store whose log is to be cut in its second file of four, where, and the messages below."""
    disk = Stopping(Random(1), write_back=0.3)
    store = open_store(disk, **SMALL)
    for number in range(50):
        store.append("orders", 0, [draft(bytes(1000), b"KEYS\x01k%d\x02" % number)], NOW)
    truth = {offset: message for offset, message in read_all(store, "orders", 0).items() if offset < 20}
    close(store)
    return disk, truth[19][1], truth


def test_what_is_cut_is_kept_and_no_more_than_the_bound_the_oldest_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk, offset, _ = stopped_store()
    data = b"".join(disk.read(f"commitlog/{number * FILE_BYTES:020d}") or b"" for number in range(4))
    kept = f"quarantine/commitlog-{FILE_BYTES:020d}-{offset}"
    cut = cut_log(disk, settings(**SMALL), offset)
    assert cut == Cut(offset, 30, cut.size_bytes, kept)
    assert disk.read(kept) == data[offset : offset + cut.size_bytes]
    assert not any(data[offset + cut.size_bytes :])
    disk, offset, _ = stopped_store()
    monkeypatch.setattr(cutting, "KEPT_BYTES_MAX", 3000)
    with caplog.at_level(logging.WARNING, "halfmoon.store"):
        cut = cut_log(disk, settings(**SMALL), offset)
    data = disk.read(kept) or b""
    assert 1000 < len(data) <= 3000
    assert f"the last {cut.size_bytes - len(data)} bytes of the log that are cut are not kept" in caplog.text


def test_a_slave_goes_on_at_the_cut_with_other_messages_of_the_same_offsets() -> None:
    disk, offset, _ = stopped_store()
    other, _, _ = stopped_store()
    cut_log(disk, settings(**SMALL), offset)
    cut_log(other, settings(**SMALL), offset)
    master = open_store(other, **SMALL)
    for number in range(40):
        master.append("orders", number % 2, [draft(b"%d" % number + bytes(1500))], NOW)
    slave = Store.open(disk, settings(**SMALL), HOST, instant(NOW), is_slave=True)
    target = slave.copying()
    while (start := target.received) < master.end_offset:
        size = min(5000, master.end_offset - start, FILE_BYTES - start % FILE_BYTES)
        target.take(bytes(master.log.segments.view(start, size)))
    close(slave)
    successor = open_store(disk, **SMALL)
    for queue in (("orders", 0), ("orders", 1)):
        assert read_all(successor, *queue) == read_all(master, *queue)
        assert successor.append(*queue, [draft()], NOW).queue_offset == master.queue_max(*queue)
    close(successor)
    assert list(fsck(disk, settings(**SMALL))) == []


def test_a_second_cut_at_the_end_of_the_log_cuts_nothing() -> None:
    disk, offset, truth = stopped_store()
    cut_log(disk, settings(**SMALL), offset)
    assert cut_log(disk, settings(**SMALL), offset) == Cut(offset, 0, 0, None)
    assert read_all(open_store(disk, **SMALL), "orders", 0) == truth


@pytest.mark.parametrize("away", [-1, 1, 5, -100_000, 100_000])
def test_an_offset_at_which_no_record_begins_is_refused_and_nothing_changes(away: int) -> None:
    disk, offset, _ = stopped_store()
    before = {path: disk.read(path) for path in disk.paths()}
    with pytest.raises(StoreError, match=f"cannot be cut at {offset + away}"):
        cut_log(disk, settings(**SMALL), offset + away)
    assert {path: disk.read(path) for path in disk.paths()} == before


def test_a_directory_that_is_open_or_that_halfmoon_has_not_opened_is_refused() -> None:
    disk, offset, _ = stopped_store()
    store = open_store(disk, **SMALL)
    with pytest.raises(StoreLocked):
        cut_log(disk, settings(**SMALL), offset)
    close(store)
    disk.vanish("journal")
    with pytest.raises(StoreError, match="another broker"):
        cut_log(disk, settings(**SMALL), offset)


def test_nothing_is_cut_that_cannot_be_kept() -> None:
    disk, offset, _ = stopped_store()
    disk.full = True
    with pytest.raises(OSError, match="no space"):
        cut_log(disk, settings(**SMALL), offset)
    disk.full = False
    assert len(read_all(open_store(disk, **SMALL), "orders", 0)) == 50
