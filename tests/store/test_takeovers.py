"""Two directories take over from each other, in any way of stopping: whoever follows gets the log and the queues of the master."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.instant import instant
from halfmoon.store import Store, epochs
from halfmoon.store.check.fsck import fsck
from halfmoon.store.epochs import Epochs, common_end, parse
from halfmoon.store.log.cutting import cut_log
from halfmoon.testing.disk import SimDisk
from tests.store.driving import HOST, NOW, carry_out, close, draft, read_all, small

QUEUES = [("orders", 0), ("orders", 1), ("paid", 0)]
FILE_BYTES = 16 * 1024
SETTINGS = small(commit_log_file_bytes=FILE_BYTES, queue_file_bytes=100_000)


class Member:
    """One directory. ``store`` is None while nobody has it open."""

    def __init__(self, random: Random, seed: int) -> None:
        self.random, self.disk = random, SimDisk(Random(seed), write_back=random.choice([0.0, 0.1, 0.5]))
        self.store: Store | None = None

    def lead(self, epoch: int) -> Store:
        """Start as a master."""
        self.store = Store.open(self.disk, SETTINGS, HOST, instant(NOW))
        self.epochs = Epochs.load(self.disk, self.random)
        self.epochs.begin(epoch, self.store.recovered.found_end)
        return self.store

    def follow(self, master: Member) -> Store:
        """Start as a slave: cut what the master does not have, and take its epochs."""
        self.store = Store.open(self.disk, SETTINGS, HOST, instant(NOW), is_slave=True)
        self.epochs, end = Epochs.load(self.disk, self.random), self.store.end_offset
        assert master.store is not None
        common = common_end(self.epochs.rows, end, parse(master.epochs.text()), master.store.end_offset)
        if common.end < end:
            self.stop(power=False)
            cut_log(self.disk, SETTINGS, common.end)
            self.store = Store.open(self.disk, SETTINGS, HOST, instant(NOW), is_slave=True)
        assert self.store.end_offset == common.end
        self.epochs.adopt(parse(master.epochs.text()))
        return self.store

    def stop(self, *, power: bool = True) -> None:
        """Stop cleanly, by a kill, or by a power loss."""
        how = self.random.choice(["stop", "kill", "power"] if power else ["stop", "kill"])
        if how == "stop" and self.store is not None:
            close(self.store)
        else:
            self.disk.crash(power=how == "power")
        self.store = None


class History:
    """Takeovers between two members."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master, self.slave = (Member(self.random, 2 * seed + number) for number in range(2))
        self.epoch = self.count = 0

    def run(self) -> None:
        for _ in range(8):
            self.epoch += 1
            store = self.master.lead(self.epoch)
            for _ in range(self.random.choice([0, 1, 3])):
                self.append(store)
                self.copy(whole=self.random.random() < 0.5)
            self.append(store)
            self.master.stop()
            self.slave.stop()
            if self.random.random() < 0.6:
                self.master, self.slave = self.slave, self.master
        self.epoch += 1
        store = self.master.lead(self.epoch)
        self.append(store)
        self.copy(whole=True)
        for member in (self.master, self.slave):
            member.stop(power=False)
            store = Store.open(member.disk, SETTINGS, HOST, instant(NOW))
            close(store)
            assert list(fsck(member.disk, SETTINGS)) == []

    def append(self, store: Store) -> None:
        for _ in range(self.random.choice([0, 1, 10, 30])):
            self.count += 1
            body = b"%d:" % self.count + bytes(self.random.choice([0, 50, 700, 3000]))
            store.append(*self.random.choice(QUEUES), [draft(body)], NOW)
        if self.random.random() < 0.7:
            store.flush(1, NOW)
            carry_out(store)

    def copy(self, *, whole: bool) -> None:
        """Start the slave anew, and let it copy the master's log, perhaps not all of it."""
        if self.slave.store is not None:
            self.slave.stop()
        target, source = self.slave.follow(self.master), self.master.store
        assert source is not None
        copying = target.copying()
        while (start := copying.received) < source.end_offset and (whole or self.random.random() < 0.9):
            size = min(self.random.choice([100, 5000]), source.end_offset - start, FILE_BYTES - start % FILE_BYTES)
            copying.take(bytes(source.log.segments.view(start, size)))
        carry_out(target)
        end = target.end_offset
        assert records_of(target, end) == records_of(source, end), "the logs differ"
        if whole:
            carry_out(source)
            assert end == source.end_offset
            for queue in QUEUES:
                assert read_all(target, *queue) == read_all(source, *queue)


def records_of(store: Store, end: int) -> list[tuple[int, bytes]]:
    """Return the records of a log below an offset, and where they lie. What a blank tail covers is no matter."""
    scanned = store.log.scan(0, end, known_to=end)
    return [(place, bytes(store.log.segments.view(place, found.size_bytes))) for place, found in scanned]


def histories(count: int) -> None:
    for seed in range(count):
        History(seed).run()


def test_a_member_that_follows_has_what_its_master_has_whoever_was_master_before() -> None:
    histories(20)


FAULTS = {
    "the_longer_end": lambda patch: patch(epochs, "min", max),
    "behind_the_blank_tail": lambda patch: patch(Member, "lead", _behind_the_blank_tail),
    "no_new_epoch": lambda patch: patch(Epochs, "begin", _once),
}


def _behind_the_blank_tail(self: Member, epoch: int) -> Store:
    self.store = Store.open(self.disk, SETTINGS, HOST, instant(NOW))
    self.epochs = Epochs.load(self.disk, self.random)
    self.epochs.begin(epoch, self.store.end_offset)
    return self.store


_begin = Epochs.begin


def _once(self: Epochs, epoch: int, start: int) -> None:
    if not self.rows or self.rows[-1].member != self.member:
        _begin(self, epoch, start)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    FAULTS[fault](lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
    with pytest.raises((AssertionError, StoreError)):
        histories(20)
