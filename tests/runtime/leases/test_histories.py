"""Histories of writers that add to one record, while its system hangs and is killed: what each was answered is true."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from halfmoon.errors import LeaseUnavailable
from halfmoon.ports import LeaseStore, Stored
from tests.runtime.leases import systems
from tests.runtime.leases.systems import System

WELL_MS = 30_000


class History:
    """What writers were answered: each adds ids of its own to the list that the record has."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        self.versions: dict[str, str] = {}

    def add(self, store: LeaseStore, item: str, timeout_ms: int) -> None:
        """Try once to add one id to the record."""
        try:
            found = store.read(timeout_ms)
        except LeaseUnavailable:
            return
        items = msgspec.json.decode(found.text) if found else []
        try:
            version = store.write(msgspec.json.encode([*items, item]), found.version if found else None, timeout_ms)
        except LeaseUnavailable:
            self.unknown.add(item)
            return
        (self.refused if version is None else self.written).add(item)
        if version is not None:
            self.versions[item] = version

    def faults(self, last: Stored | None) -> list[str]:
        """Return what is wrong with the record at last, or with the versions that were given."""
        items = msgspec.json.decode(last.text) if last else []
        lost, ghosts = self.written - {*items}, self.refused & {*items}
        found = [f"lost: {sorted(lost)}"] if lost else []
        found += [f"written though refused: {sorted(ghosts)}"] if ghosts else []
        return found + (["a version came again"] if len({*self.versions.values()}) < len(self.versions) else [])


@pytest.fixture(params=["postgresql", "etcd", "kubernetes"])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    started = systems.system(request.param, tmp_path_factory.mktemp(request.param))
    yield started
    started.close()


def test_answers_are_true_while_the_system_hangs_and_is_killed(system: System) -> None:
    name, history, over = systems.new_name(), History(), threading.Event()

    def write(writer: int) -> int:
        store, count, dice = system.store(name), 0, random.Random(writer)
        while not over.is_set():
            count += 1
            history.add(store, f"{writer}.{count}", dice.choice((5, 50, 500)))
        store.close()
        return count

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(write, number) for number in range(3)]
        try:
            dice, pause = random.Random(7), threading.Event()
            for _ in range(6):
                pause.wait(dice.uniform(0.05, 0.4))
                if dice.random() < 0.6:
                    system.hang()
                    pause.wait(dice.uniform(0.02, 0.3))
                    system.resume()
                else:
                    system.kill()
                    system.start()
        finally:
            over.set()
        for writer in writers:
            writer.result(60)
    last = system.store(name).read(WELL_MS)
    assert history.written
    assert history.unknown
    assert history.faults(last) == []


# ---------------------------------------------------------------- planted faults


class Memory:
    """A store in memory, of which every third write is carried out and not answered."""

    def __init__(self) -> None:
        self.stored: Stored | None = None
        self.count = 0

    def read(self, timeout_ms: int) -> Stored | None:
        return self.stored

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        if expected != (self.stored.version if self.stored else None):
            return None
        self.count += 1
        self.stored = Stored(text, str(self.count))
        if self.count % 3 == 0:
            raise LeaseUnavailable("the answer is lost")
        return self.stored.version

    def close(self) -> None:
        """Do nothing."""


class Repeating(Memory):
    """Sends a write again that may have been carried out."""

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        try:
            return super().write(text, expected, timeout_ms)
        except LeaseUnavailable:
            return super().write(text, expected, timeout_ms)


class Blind(Memory):
    """Writes whatever version there is."""

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        return super().write(text, self.stored.version if self.stored else None, timeout_ms)


class Reckless(Memory):
    """Takes an unknown outcome for a success."""

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        self.count += 1
        return str(self.count) if self.count % 3 == 0 else super().write(text, expected, timeout_ms)


class Restarting(Memory):
    """Begins its versions anew."""

    def write(self, text: bytes, expected: str | None, timeout_ms: int) -> str | None:
        return "1" if super().write(text, expected, timeout_ms) else None


def interleaved(store: LeaseStore) -> History:
    """Have two writers take turns, of which the second reads before the first writes."""
    history = History()

    class Racing:
        """Lets the other one write between a read and a write."""

        def read(self, timeout_ms: int) -> Stored | None:
            found = store.read(timeout_ms)
            if (turn := len(history.written) + len(history.refused)) % 2 == 0:
                history.add(store, f"first.{turn}", WELL_MS)
            return found

        write, close = store.write, store.close

    for number in range(9):
        history.add(Racing(), f"second.{number}", WELL_MS)
    return history


def test_a_true_store_passes() -> None:
    store = Memory()
    history = interleaved(store)
    assert (history.faults(store.read(0)), bool(history.written), bool(history.unknown)) == ([], True, True)


@pytest.mark.parametrize(
    ("made", "fault"),
    [(Repeating, "written though refused"), (Blind, "lost"), (Reckless, "lost"), (Restarting, "a version came again")],
)
def test_a_planted_fault_is_found(made: Callable[[], Memory], fault: str) -> None:
    store = made()
    found = interleaved(store).faults(store.stored)
    assert [each for each in found if each.startswith(fault)], found
