"""Seeded histories of transactions, syncs, kills, power losses and stops; after each start the index says what the log says."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.store.check.fsck import fsck
from halfmoon.store.transactions.index import State
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import NOW, draft, run
from tests.store.transacting import (
    REAL,
    add_halves,
    add_op,
    add_visible,
    assert_agrees,
    decided,
    open_both,
    roll_back,
    settings,
    truth_of,
)

HISTORIES = [
    *((seed, sync) for seed in range(2) for sync in (False, True)),
    *(pytest.param(seed, bool(seed % 2), marks=pytest.mark.slow) for seed in range(2, 16)),
]
"""Two in both flush modes, and more in one that are left out of the quick run."""
in_histories = pytest.mark.parametrize(("seed", "sync"), HISTORIES, ids=lambda value: str(value).lower())


class History:
    """A store and its transaction index, used as a broker uses them."""

    def __init__(self, seed: int, *, sync: bool) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(Random(seed + 1), write_back=self.random.choice([0.0, 0.05, 0.5]))
        self.options = {
            "flush_disk_type": "SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            "transaction_file_records": self.random.choice([16, 100, 5000]),
            "commit_log_file_bytes": self.random.choice([8 * 1024, 64 * 1024]),
        }
        self.now = NOW
        self.waiting: list = []
        self.rebuilt = 0
        self.owed: list[int] = []
        self.open()

    def open(self) -> None:
        self.waiting = []
        self.store, self.index = open_both(self.disk, self.now, **self.options)
        self.rebuilt += self.index.rebuilt is not None
        truth = truth_of(self.store)
        assert_agrees(self.index, truth)
        assert set(self.index.unfinished) == truth.unfinished
        self.owed = list(self.index.unfinished)

    def step(self) -> None:
        self.now += self.random.choice([0, 1, 5, 200])
        choice = self.random.random()
        if choice < 0.25:
            add_halves(self.store, self.index, [f"g{self.random.randrange(4)}" for _ in range(self.random.choice([1, 1, 3, 30]))])
        elif choice < 0.55:
            self.decide()
        elif choice < 0.65:
            self.store.append(*REAL, [draft(self.random.randbytes(self.random.choice([10, 2000])))], self.now)
        elif choice < 0.7:
            self.ask()
        elif choice < 0.9 and self.waiting:
            run(self.waiting.pop(self.random.randrange(len(self.waiting))), self.now)
        else:
            self.store.tick(instant(self.now))
            self.index.tick(self.now)
        self.store.flush(1, NOW)
        self.waiting += [*self.store.work(), *self.index.work()]

    def decide(self) -> None:
        found, _ = self.index.pending(self.random.randrange(self.index.end + 1), self.random.choice([1, 5]))
        for half in found:
            kind = self.random.random()
            if kind < 0.5:
                roll_back(self.store, self.index, half.index, self.now)
                continue
            place, size = add_visible(self.store, self.index, half.index, self.now)
            if kind < 0.9:
                add_op(self.store, half.index, self.now)
            else:  # as when the disk is full in between
                if not self.owed:
                    self.index.hold(place)
                self.owed.append(half.index)
            decided(self.index, [(half.index, place, size, True)])
        if self.owed and self.random.random() < 0.2:
            for at in self.owed:
                add_op(self.store, at, self.now)
            self.owed = []
            self.index.hold(None)

    def ask(self) -> None:
        found, _ = self.index.pending(0, 3)
        for half in found:
            self.index.checked(half.index, self.now // 1000, self.random.randrange(2**24))
            if self.random.random() < 0.5:
                self.index.answered(half.index, 1)

    def checks(self) -> dict[int, tuple]:
        found: dict[int, tuple] = {}
        at = 0
        while at < self.index.end:
            halves, at = self.index.pending(at, 100)
            found |= {half.index: checks for half in halves if (checks := self.index.checks(half.index))[0]}
        return found

    def crash(self, *, power: bool, torn: bool = False) -> None:
        before = self.checks()
        self.disk.crash(power=power)
        self.now += 1000
        if torn:
            self.disk.stop_after_writes = self.random.randrange(40)
            with suppress(Stopped):
                self.open()
            self.disk.crash(power=self.random.random() < 0.5)
        self.open()
        if not power and not torn:
            assert {at: self.index.checks(at) for at in before} == before
        problems = [finding for finding in fsck(self.disk, settings(**self.options)) if finding.what != "record"]
        assert problems == []

    def stop(self) -> None:
        self.store.stop(instant(self.now))
        self.index.stop(self.now)
        self.waiting += [*self.store.work(), *self.index.work()]
        while self.waiting:
            run(self.waiting.pop(0), self.now)
            self.waiting += [*self.store.work(), *self.index.work()]
        self.index.close(self.now)
        self.store.close(instant(self.now))
        assert list(fsck(self.disk, settings(**self.options))) == []
        self.now += 1000
        self.open()


@pytest.mark.slow
@pytest.mark.mission("004-37", "004-38", "004-39", "004-41")
@in_histories
def test_the_index_says_what_the_log_says_over_kills_power_losses_and_stops(seed: int, sync: bool):
    history = History(seed, sync=sync)
    for _ in range(6):
        for _ in range(history.random.randrange(120)):
            history.step()
        kind = history.random.choice(["kill", "power", "power", "stop"])
        if kind == "stop":
            history.stop()
        else:
            history.crash(power=kind == "power", torn=history.random.random() < 0.3)
    assert history.rebuilt == 1, "only the first start has nothing to go on from"


@in_histories
def test_the_index_says_what_the_log_says_when_stopped_inside_a_write(seed: int, sync: bool):
    history = History(seed, sync=sync)
    for _ in range(6):
        history.disk.stop_after_writes = history.random.randrange(250)
        with suppress(Stopped):
            for _ in range(100):
                history.step()
        history.disk.stop_after_writes = None
        history.crash(power=history.random.random() < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_the_index_says_what_the_log_says_when_syncs_fail(seed: int):
    history = History(seed, sync=False)
    for _ in range(6):
        for number in range(80):
            if number == 40:
                history.disk.fail_syncs = history.random.choice([0, 1, 3])
            try:
                history.step()
            except StoreNotWritable:
                break
        history.disk.fail_syncs = 0
        history.crash(power=history.random.random() < 0.5)


def test_the_histories_reach_every_state():
    history = History(3, sync=False)
    for _ in range(400):
        history.step()
    states = {half.state for at in range(history.index.end) if (half := history.index.half(at))}
    assert states == {State.PREPARED, State.COMMITTED, State.ROLLED_BACK}
