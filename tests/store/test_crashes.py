"""Seeded histories of appends, syncs, kills and power losses on a disk that forgets; after each start everything must hold."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from halfmoon.instant import instant
from halfmoon.model import java_hash
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import HOST, NOW, draft, read_all, run, small

KEPT = [88, 94, 125, 2022, 2070]
HISTORIES = [
    *((seed, sync) for seed in (*range(10), *KEPT) for sync in (False, True)),
    *(pytest.param(seed, bool(seed % 2), marks=pytest.mark.slow) for seed in range(10, 60)),
]
"""A few and those that once found something in both flush modes, and fifty in one that are left out of the quick run."""
in_histories = pytest.mark.parametrize(("seed", "sync"), HISTORIES, ids=lambda value: str(value).lower())
QUEUES = [("orders", 0), ("orders", 1), ("paid", 0)]


class History:
    """One broker's life: a store that is used, stopped in any way and opened again, and what its users were told."""

    def __init__(self, seed: int, *, sync: bool, **settings) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(Random(seed + 1), write_back=self.random.choice([0.0, 0.05, 0.5]))
        self.sync = sync
        self.settings = small(flush_disk_type="SYNC_FLUSH" if sync else "ASYNC_FLUSH", **settings)
        self.now = NOW
        self.sent: dict[tuple[str, int], dict[int, bytes]] = {queue: {} for queue in QUEUES}
        """Every message that was ever given an offset which somebody outside may know."""
        self.kept: dict[tuple[str, int], dict[int, tuple[bytes, int]]] = {queue: {} for queue in QUEUES}
        """Body and physical end of the messages that are there, as far as somebody outside may know."""
        self.count = 0
        self.in_doubt: set[bytes] = set()
        """Bodies of an append that was cut short: nobody was told of them, any of them may be there."""
        self.waiting: list = []
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.disk, self.settings, HOST, instant(self.now))
        self.waiting = []
        self.unanswered: list[tuple[tuple[str, int], int, bytes, int]] = []

    def append(self) -> None:
        queue = self.random.choice(QUEUES)
        drafts = []
        for _ in range(self.random.choice([1, 1, 3, 40])):
            self.count += 1
            tag = self.random.choice("ab")
            properties = f"KEYS\x01k{self.count % 50}\x02TAGS\x01{tag}\x02".encode()
            body = b"%d:" % self.count + self.random.randbytes(self.random.choice([0, 30, 700, 3000]))
            drafts.append(draft(body, properties, tag=java_hash(tag)))
        self.in_doubt = {draft[0] for draft in drafts}
        appended = self.store.append(*queue, drafts, self.now)
        self.in_doubt = set()
        end = [*appended.physical_offsets[1:], appended.end_offset]
        for number, (body, *_) in enumerate(drafts):
            offset = appended.queue_offset + number
            assert offset not in self.sent[queue], f"queue offset {offset} of {queue} was given out twice"
            if self.sync:
                self.unanswered.append((queue, offset, body, end[number]))
            else:
                self.sent[queue][offset] = body
                self.kept[queue][offset] = (body, end[number])
        self.store.flush(len(drafts), self.now)
        self.waiting += self.store.work()

    def step(self) -> None:
        self.now += self.random.choice([0, 1, 5, 200])
        choice = self.random.random()
        if choice < 0.6:
            self.append()
        elif choice < 0.9 and self.waiting:
            run(self.waiting.pop(self.random.randrange(len(self.waiting))), self.now)
        else:
            self.store.tick(instant(self.now))
        self.waiting += self.store.work()
        self._note_answers()

    def _note_answers(self) -> None:
        """In sync flush a sender hears of its message once it is durable; nobody knew of it before."""
        rest = []
        for queue, offset, body, end in self.unanswered:
            if end <= self.store.durable_offset:
                assert offset not in self.sent[queue], f"queue offset {offset} of {queue} was answered twice"
                self.sent[queue][offset] = body
                self.kept[queue][offset] = (body, end)
            else:
                rest.append((queue, offset, body, end))
        self.unanswered = rest

    def crash(self, *, power: bool) -> None:
        durable = self.store.durable_offset
        unanswered = {(*queue, offset): body for queue, offset, body, _ in self.unanswered}
        self.disk.crash(power=power)
        self.now += 1000
        self.open()
        for queue in QUEUES:
            found = read_all(self.store, *queue)
            for offset, (body, end) in self.kept[queue].items():
                if not power or end <= durable:
                    assert found.get(offset, (None,))[0] == body, f"{queue} lost offset {offset} (power={power})"
            for offset, (body, _) in found.items():
                known = self.sent[queue].get(offset) or unanswered.get((*queue, offset))
                assert known == body or (known is None and body in self.in_doubt), f"{queue} has something else at offset {offset}"
                self.sent[queue][offset] = body  # readers have seen it now
            self.kept[queue] = found
        assert [problem for problem in fsck(self.disk, self.settings) if problem.what != "record"] == []
        self.in_doubt = set()

    def stop(self) -> None:
        while self.waiting:
            run(self.waiting.pop(0), self.now)
            self.waiting += self.store.work()
        self.store.stop(instant(self.now))
        for work in self.store.work():
            run(work, self.now)
        self._note_answers()
        self.store.close(instant(self.now))
        self._note_answers()
        assert not self.unanswered
        assert list(fsck(self.disk, self.settings)) == []
        self.now += 1000
        self.open()
        for queue in QUEUES:
            found = read_all(self.store, *queue)
            assert _bodies(found) == _bodies(self.kept[queue])


def _bodies(messages: dict[int, tuple[bytes, int]]) -> dict[int, bytes]:
    return {offset: body for offset, (body, _) in messages.items()}


@pytest.mark.slow
@in_histories
def test_a_store_keeps_its_promises_over_kills_power_losses_and_stops(seed: int, sync: bool):
    history = History(seed, sync=sync)
    for _ in range(6):
        for _ in range(history.random.randrange(60)):
            history.step()
        kind = history.random.choice(["kill", "power", "power", "stop"])
        if kind == "stop":
            history.stop()
        else:
            history.crash(power=kind == "power")


@in_histories
def test_a_store_keeps_its_promises_when_stopped_inside_a_write(seed: int, sync: bool):
    history = History(seed, sync=sync)
    for _ in range(5):
        history.disk.stop_after_writes = history.random.randrange(200)
        with suppress(Stopped):
            for _ in range(60):
                history.step()
        history.disk.stop_after_writes = None
        history.crash(power=history.random.random() < 0.5)


@pytest.mark.parametrize("seed", range(6))
def test_a_store_keeps_its_promises_when_files_of_its_indexes_vanish_between_a_kill_and_a_start(seed: int):
    history = History(seed, sync=seed % 2 == 0)
    vanished = 0
    for _ in range(6):
        for _ in range(history.random.randrange(20, 80)):
            history.step()
        crash, disk = history.disk.crash, history.disk

        def crash_and_vanish(*, power: bool, crash=crash, disk=disk) -> None:
            nonlocal vanished
            crash(power=power)
            derived = [path for path in disk._files if path.startswith(("consumequeue/", "index/"))]
            path = history.random.choice(derived)
            vanished += disk.vanish(history.random.choice([path, path.rpartition("/")[0] + "/"]))

        disk.crash = crash_and_vanish
        history.crash(power=False)
        disk.crash = crash
    assert vanished >= 6
