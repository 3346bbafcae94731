"""Months of a store's life, from a seed: files go for their age or for the disk, queues and the key index follow, and what is being
read stays readable. Rules that are broken on purpose are found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from halfmoon.instant import instant
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, carry_out, close, draft, facts_of, open_store

HOUR, DAYS = 3_600_000, 60
FILE = 64 * 1024
RESERVED_HOURS = 72
QUEUES = 2


class Months:
    """One store over `DAYS` days; ``problems`` is what broke a rule."""

    def __init__(self, seed: int) -> None:
        self.random, self.disk = Random(seed), SimDisk(Random(seed + 1))
        self.now = self.disk.now_ms = NOW
        self.stored: list[dict[int, tuple[int, int, bytes]]] = [{} for _ in range(QUEUES)]
        """By queue and offset: physical offset, time and body of each message."""
        self.written_ms: dict[int, int] = {}
        """By number of the log file: when the last message in it was stored."""
        self.recovered_ms: dict[int, int] = {}
        """By number of the log file: when a start after a kill wrote its end again, from which on it ages anew."""
        self.ended_ms: dict[int, int] = {}
        """When what does not fit into it any more closed it."""
        self.held: list[tuple[memoryview, bytes]] = []
        self.problems: list[str] = []
        self.deleted = {"age": 0, "disk": 0}
        self.count = 0
        self.store = open_store(self.disk, self.now)

    def run(self) -> Months:
        for hour in range(DAYS * 24):
            self.live_an_hour()
            if hour % 6 == 0:
                self.check()
            if self.problems:
                break
        return self

    def live_an_hour(self) -> None:
        self.now += HOUR
        self.disk.now_ms = self.now
        if self.random.random() < 0.02:
            self.restart()
        if self.random.random() < 0.3:
            self.append()
        if self.random.random() < 0.1:
            self.hold()
        percent = self.random.choices((50, 80, 87), (40, 2, 1))[0]
        self.disk.used_bytes = self.disk.total_bytes * percent // 100
        before, first = self.store.min_offset, self.now
        for _ in range(4):  # so that all is durable, indexed and looked at
            self.now += 15_000
            self.store.tick(instant(self.now))
            carry_out(self.store, self.now)
        self.now = first
        self.note_deleted(before, percent)

    def append(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            queue, self.count = self.random.randrange(QUEUES), self.count + 1
            body = b"%d:" % self.count + self.random.randbytes(self.random.choice((100, 5_000, 20_000)))
            appended = self.store.append("t", queue, [draft(body, b"KEYS\x01k%d\x02" % self.count)], self.now)
            place = appended.physical_offsets[0]
            self.stored[queue][appended.queue_offset] = place, self.now, body
            self.written_ms[place // FILE] = self.now
            self.ended_ms.setdefault(place // FILE - 1, self.now)

    def hold(self) -> None:
        """Begin to read the oldest messages, and let go of others that were read for long."""
        queue = self.random.randrange(QUEUES)
        found = self.store.read("t", queue, self.store.queue_min("t", queue), 4)
        self.held += [(piece, bytes(piece)) for piece in found.pieces]
        del self.held[:-10]

    def restart(self) -> None:
        self.check_held()
        self.held.clear()  # a process takes along what it reads
        if self.random.random() < 0.5:
            close(self.store, self.now)
        else:
            self.disk.crash(power=False)
            self.recovered_ms[max(self.written_ms, default=0)] = self.now
        self.store = open_store(self.disk, self.now)

    # ------------------------------------------------------------ the rules

    def note_deleted(self, before: int, percent: int) -> None:
        for number in range(before // FILE, self.store.min_offset // FILE):
            age = (self.now - self.written_ms.get(number, 0)) / HOUR
            if percent < 85 and age < RESERVED_HOURS:
                self.problems.append(f"a log file went {age:.0f} hours after its last message, with {percent} % of the disk used")
            self.deleted["age" if age >= RESERVED_HOURS else "disk"] += 1
        oldest, last = self.store.min_offset // FILE, max(self.written_ms, default=0)
        age = (self.now - max(self.ended_ms.get(oldest, self.now), self.recovered_ms.get(oldest, 0))) // HOUR
        if oldest < last and age > RESERVED_HOURS + 25:
            self.problems.append(f"log file {oldest} is kept for {age} hours")

    def check(self) -> None:
        self.check_held()
        for queue, stored in enumerate(self.stored):
            kept = {offset: body for offset, (place, _, body) in stored.items() if place >= self.store.min_offset}
            if not stored:
                continue
            lowest, end = min(kept, default=max(stored) + 1), max(stored) + 1
            if (self.store.queue_min("t", queue), self.store.queue_max("t", queue)) != (lowest, end):
                self.problems.append(f"queue {queue} goes from {self.store.queue_min('t', queue)}, not from {lowest}")
            for offset in self.random.sample(sorted(kept), min(3, len(kept))):
                found = facts_of(self.store.read("t", queue, offset, 1))
                if [body for _, _, body in found] != [kept[offset]]:
                    self.problems.append(f"queue {queue} lacks offset {offset}")
            for offset in self.random.sample(sorted(stored), min(3, len(stored))):
                key = stored[offset][2].partition(b":")[0].decode()
                count = len(self.store.query("t", f"k{key}", 5, 0, self.now + HOUR).records)
                if count != (offset in kept):
                    self.problems.append(
                        f"key k{key} is found {count} times, its message is {'there' if offset in kept else 'gone'}"
                    )
        files = sum(len(self.disk.list(f"consumequeue/t/{queue}")) for queue in range(QUEUES) if self.stored[queue])
        if files > 2 * QUEUES or len(self.disk.list("index")) > 6:
            self.problems.append(f"{files} files of queues and {len(self.disk.list('index'))} of the index are left")

    def check_held(self) -> None:
        if any(bytes(piece) != before for piece, before in self.held):
            self.problems.append("what is being read changed")


@pytest.mark.parametrize("seed", range(3))
def test_over_months_files_go_for_their_age_or_for_the_disk_and_everything_follows(seed: int):
    months = Months(seed).run()
    assert months.problems == []
    assert months.deleted["age"] > 10
    assert months.deleted["disk"] > 0


def all_but_the_last(disk: Any, log: Any, *others: Any, keep_from: int) -> int:
    """What may go, whatever its age."""
    return min(log.segments.last or 0, keep_from // FILE * FILE)


def nothing(*arguments: Any, **options: Any) -> None:
    """Do nothing."""


def wiping(disk: SimDisk, path: str, remove: Any = SimDisk.remove) -> None:
    """Remove a file as a system does that keeps nothing for those who read it."""
    if path.startswith("commitlog/") and disk.exists(path):
        file = disk.open(path)
        file.data[:] = bytes(len(file.data))
    remove(disk, path)


@pytest.mark.parametrize(
    ("fault", "planted", "problem"),
    [
        ("halfmoon.store.maintenance.expired_before", all_but_the_last, "hours after its last message"),
        ("halfmoon.store.log.retention.is_cleaning_hour", lambda *arguments: False, "is kept for"),
        ("halfmoon.store.queues.consume_queue.ConsumeQueue.correct_min", nothing, "goes from"),
        ("halfmoon.store.keyindex.key_index.KeyIndex.drop_before", lambda *arguments: [], "of the index are left"),
        ("halfmoon.testing.disk.SimDisk.remove", wiping, "what is being read changed"),
    ],
)
def test_a_rule_that_is_broken_is_found(monkeypatch: pytest.MonkeyPatch, fault: str, planted: Any, problem: str):
    monkeypatch.setattr(fault, planted)
    found = [problems for seed in range(3) if (problems := Months(seed).run().problems)]
    assert any(problem in text for problems in found for text in problems), found
