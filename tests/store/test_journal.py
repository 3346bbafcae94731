"""The journal: whatever a stop, a loss of power, damage or a full disk does, the rows are those of some moment since the last sync.

`Run` keeps every state that the rows went through, and after each stop compares what a start finds. The same run with a fault
planted into the journal must find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from errno import EIO
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.store import journal as module
from halfmoon.store.journal import Journal, Kind, Row, queue_key, queue_of
from halfmoon.testing.disk import SimDisk, Stopped

State = dict[tuple[int, bytes], bytes]
KINDS = [kind for kind in Kind if kind != Kind.END]


def state_of(journal: Journal) -> State:
    return {(kind, key): value for kind in KINDS for key, value in journal.rows(kind)}


def with_rows(state: State, rows: Sequence[Row]) -> State:
    after = dict(state)
    for kind, key, value in rows:
        after.pop((kind, key), None)
        if value is not None:
            after[kind, key] = value
    return after


def opened(disk: SimDisk) -> Journal:
    journal = Journal(disk)
    journal.begin(again=True)
    return journal


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations of two pages a half, so that some rows fill one."""
    monkeypatch.setattr(module, "_HALF_BYTES_MIN", 8192)
    monkeypatch.setattr(module, "_ROWS_A_RECORD", 8)
    monkeypatch.setattr(module, "_RETRY_BYTES", 300)


class Wrong(AssertionError):
    """A start found what was never there, or lacks what a sync had waited for."""


class Run:
    """One directory over many starts. ``states`` are those since the last one; none before the ``durable`` one may come back."""

    def __init__(self, seed: int, *, write_back: float = 0.2) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(self.random, write_back=write_back)
        self.states: list[State] = [{}]
        self.durable = 0
        self.torn = False
        """The last state is of a write that was cut short, and may be there or not."""
        self.starts = self.generations = 0
        self.journal = opened(self.disk)

    def rows(self) -> list[Row]:
        random = self.random
        return [
            Row(
                random.choice(KINDS),
                b"%d" % random.randrange(12),
                random.choice((None, random.randbytes(random.randrange(40)), bytes(random.randrange(200)))),
            )
            for _ in range(random.choice((1, 1, 1, 2, 9)))
        ]

    def write(self) -> None:
        rows = self.rows()
        self.states.append(with_rows(self.states[-1], rows))
        try:
            self.journal.write(*rows)
        except OSError:
            self.states.pop()
            assert self.disk.full or self.disk.descriptors is not None
        except Stopped:
            self.torn = True
            raise

    def sync(self) -> None:
        written = len(self.states) - 1
        try:
            self.journal.sync()
        except OSError:
            if self.disk.descriptors is None:
                with suppress(OSError):
                    self.journal.sync()
                    raise Wrong("a sync failed, and the next one says that all is well") from None
                self.stop(power=False)
        else:
            self.durable = written

    def stop(self, *, power: bool) -> None:
        """Stop process or machine, and start again, perhaps more than once."""
        while True:
            self.disk.crash(power=power)
            self.disk.full, self.disk.descriptors, self.disk.fail_syncs = False, None, 0
            journal = Journal(self.disk)
            found = state_of(journal)
            lowest = self.durable if power else len(self.states) - 1 - self.torn
            if found not in self.states[lowest:]:
                raise Wrong(f"start {self.starts}: {'a loss of power' if power else 'a kill'} left {found}, not {self.states[-1]}")
            self.starts += 1
            last = max(at for at, state in enumerate(self.states) if state == found)
            self.states, self.torn = self.states[: last + 1], False
            if self.random.random() < 0.2:
                self.disk.stop_after_writes = self.random.randrange(2)
            try:
                journal.begin(again=True)
            except Stopped:
                power = self.random.random() < 0.5
                continue
            self.disk.stop_after_writes = None
            self.journal, self.states, self.durable = journal, [found], 0
            return

    def flip(self) -> None:
        """Turn a bit over in a file that is whole on the device; nothing may be lost."""
        self.sync()
        if self.durable == len(self.states) - 1:
            self.disk.crash(power=True)
            paths = [path for path in self.disk.paths() if path.startswith("journal/")]
            if paths:
                self.disk.flip(paths[-1])
            self.durable = len(self.states) - 1
            self.stop(power=False)

    def step(self, name: str) -> None:
        random, disk = self.random, self.disk
        if name == "torn":
            disk.stop_after_writes = random.randrange(8)
            with suppress(Stopped):
                for _ in range(random.randrange(1, 6)):
                    self.write()
            self.stop(power=random.random() < 0.5)
        elif name in ("kill", "power"):
            self.stop(power=name == "power")
        elif name == "fill":
            for _ in range(random.randrange(60)):
                self.write()
        elif name == "full":
            disk.full = not disk.full
        elif name == "descriptors":
            disk.descriptors = None if disk.descriptors is not None else random.randrange(3)
        elif name == "failed sync":
            disk.fail_syncs = 1
            self.write()
            self.sync()
            disk.fail_syncs = 0
        else:
            getattr(self, name)()


STEPS = [
    "write",
    "write",
    "write",
    "sync",
    "sync",
    "fill",
    "kill",
    "power",
    "torn",
    "torn",
    "flip",
    "full",
    "descriptors",
    "failed sync",
]


def history(seed: int, steps: int = 60) -> Run:
    run = Run(seed)
    for _ in range(steps):
        run.step(run.random.choice(STEPS))
    run.stop(power=True)
    return run


def found_in(seeds: int) -> int | None:
    """Return the first seed whose history finds something wrong, None: none of so many does."""
    for seed in range(seeds):
        try:
            history(seed)
        except Wrong:
            return seed
    return None


# ---------------------------------------------------------------- histories


@pytest.mark.parametrize("start", range(0, 120, 20))
def test_every_start_finds_the_rows_of_a_moment_since_the_last_sync(start: int) -> None:
    generations = 0
    for seed in range(start, start + 20):
        run = history(seed)
        assert run.starts > 5
        generations += run.journal._last_number
    assert generations > 60, "the histories go through many generations"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 1800, 200))
def test_every_start_finds_the_rows_of_a_moment_since_the_last_sync_in_long_histories(start: int) -> None:
    for seed in range(start, start + 200):
        history(seed, steps=150)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), max_size=40), write_back=st.sampled_from((0.0, 0.2, 1.0)))
def test_any_order_of_writes_stops_and_damage_is_survived(seed: int, steps: list[str], write_back: float) -> None:
    run = Run(seed, write_back=write_back)
    for name in steps:
        run.step(name)
    run.stop(power=True)


def _without_zeros(begin: Callable[..., None]) -> Callable[..., None]:
    """A start that goes on behind the last row without clearing what follows."""

    def planted(journal: Journal, *, again: bool) -> None:
        journal._content, journal.damaged = b"", False
        begin(journal, again=False)

    return planted


def _with_an_end(apply: Callable[..., None]) -> Callable[..., None]:
    """A start to which any rows are a whole snapshot."""

    def planted(rows: Any, tables: Any) -> None:
        apply(rows, tables)
        if not isinstance(rows, tuple):  # those of a file
            tables[Kind.END][b""] = b""

    return planted


def _one_half(written: Callable[..., tuple[bytes, int]]) -> Callable[..., tuple[bytes, int]]:
    """A write that leaves the second half alone."""
    return lambda file, half, at, rows, crc: written(file, 0, at, rows, crc)


def _careless(sync: Callable[..., None]) -> Callable[..., None]:
    """A sync that removes the older generations before it waits."""

    def planted(journal: Journal) -> None:
        for name in list(journal._older):
            journal._disk.remove(name)
            journal._disk.sync_directory("journal")
            del journal._older[name]
        sync(journal)

    return planted


def _never_waits(sync: Callable[..., None]) -> Callable[..., None]:
    """A sync that waits for nothing."""
    return lambda journal: None


PLANTED: dict[str, tuple[str, Any]] = {
    "a crc for each record alone": ("crc32", lambda crc32: lambda data, crc=0: crc32(data)),
    "a snapshot without its end is believed": ("_apply", _with_an_end),
    "what is behind the rows stays": ("begin", _without_zeros),
    "one half alone is written": ("_written", _one_half),
    "older files go too early": ("sync", _careless),
    "a sync waits for nothing": ("sync", _never_waits),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, planted = PLANTED[fault]
    place: Any = Journal if hasattr(Journal, name) else module
    monkeypatch.setattr(place, name, planted(getattr(place, name)))
    assert found_in(60) is not None


# ---------------------------------------------------------------- one thing at a time


def test_rows_are_found_again_and_the_newest_of_a_key_counts() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    assert not journal.there
    journal.write(Row(Kind.SIZES, b"", b"one"), Row(Kind.INDEX, b"a", b"1"), Row(Kind.INDEX, b"b", b""))
    journal.write(Row(Kind.INDEX, b"a", None), Row(Kind.SIZES, b"", b"two"))
    again = Journal(disk)
    assert (again.there, again.value(Kind.SIZES), dict(again.rows(Kind.INDEX))) == (True, b"two", {b"b": b""})
    assert again.value(Kind.WATERMARK) is None


def test_keys_of_queues_name_topic_and_number() -> None:
    assert queue_of(queue_key("%RETRY%g", 2**31 - 1)) == ("%RETRY%g", 2**31 - 1)


def test_a_write_that_is_cut_short_leaves_all_of_its_rows_or_none() -> None:
    for stop in range(2):
        for seed in range(30):
            disk = SimDisk(Random(seed), write_back=0)
            journal = opened(disk)
            journal.write(Row(Kind.INDEX, b"a", b"1"))
            disk.stop_after_writes = stop
            with pytest.raises(Stopped):
                journal.write(*(Row(Kind.DELETED, b"%d" % number, bytes(20)) for number in range(9)))
            disk.crash(power=False)
            assert len(dict(opened(disk).rows(Kind.DELETED))) in (0, 9)


def test_any_byte_may_be_damaged_in_one_half_and_the_start_writes_it_again() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    for number in range(20):
        journal.write(Row(Kind.INDEX, b"%d" % number, b"value"))
    journal.sync()
    [path] = [path for path in disk.paths() if path.startswith("journal/")]
    state, whole = state_of(journal), disk.read(path)
    assert whole is not None
    for at in range(0, 400, 7):
        for half in (0, len(whole) // 2):
            damaged = bytearray(whole)
            damaged[half + at] ^= 0x55
            disk.overwrite(path, damaged)
            found = Journal(disk)
            assert (state_of(found), found.damaged) == (state, True)
    assert not any((opened(disk).damaged, Journal(disk).damaged))
    assert disk.read(path) == whole


def test_a_zeroed_half_takes_nothing_away() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    journal.write(Row(Kind.INDEX, b"a", b"1"))
    [path] = disk.paths()
    half = disk.file_size(path) // 2
    for at in (0, half):
        data = bytearray(disk.read(path) or b"")
        data[at : at + half] = bytes(half)
        disk.overwrite(path, data)
        assert dict(opened(disk).rows(Kind.INDEX)) == {b"a": b"1"}


def test_a_journal_of_which_nothing_can_be_read_is_said_and_another_takes_its_place(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    opened(disk).write(Row(Kind.INDEX, b"a", b"1"))
    [path] = disk.paths()
    disk.overwrite(path, bytes(disk.file_size(path)))
    journal = opened(disk)
    assert "journal cannot be read" in caplog.text
    journal.write(Row(Kind.INDEX, b"b", b"2"))
    journal.sync()
    assert (dict(Journal(disk).rows(Kind.INDEX)), path in disk.paths()) == ({b"b": b"2"}, False)


def test_a_full_disk_refuses_no_row_while_the_last_quarter_has_room_and_then_leaves_all_as_it_was() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    row = Row(Kind.DELAYS, b"", bytes(87))
    while journal._at < 6000:
        journal.write(row)
    journal.sync()
    disk.full = True
    for written in range(1000):
        try:
            journal.write(Row(Kind.INDEX, b"%d" % written, bytes(80)))
        except OSError:
            break
    assert 20 <= written < 200
    assert len(dict(Journal(disk).rows(Kind.INDEX))) == written
    disk.full = False
    journal.write(Row(Kind.INDEX, b"more", b""))
    journal.sync()
    disk.crash(power=True)
    assert len(dict(Journal(disk).rows(Kind.INDEX))) == written + 1
    assert len(disk.list("journal")) == 1


def test_a_start_on_a_full_disk_goes_on_in_the_file_that_is_there() -> None:
    disk = SimDisk(Random(1))
    opened(disk).write(Row(Kind.INDEX, b"a", b"1"))
    disk.crash(power=False)
    disk.full = True
    journal = opened(disk)
    journal.write(Row(Kind.INDEX, b"b", b"2"))
    journal.sync()
    disk.crash(power=True)
    assert set(dict(Journal(disk).rows(Kind.INDEX))) == {b"a", b"b"}


def test_a_generation_is_as_large_as_its_rows_want_it() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    for number in range(500):
        journal.write(Row(Kind.QUEUE, queue_key("topic", number), bytes(48)))
    journal.sync()
    [name] = disk.list("journal")
    assert 60 * 500 * 2 < disk.file_size(f"journal/{name}") < 500 * 70 * 10
    assert len(dict(Journal(disk).rows(Kind.QUEUE))) == 500


def test_a_sync_during_which_the_next_generation_begins_covers_what_was_written_before_it() -> None:
    """The sync runs in another thread: between its steps the loop goes on writing."""
    for seed in range(20):
        disk = SimDisk(Random(seed), write_back=0)
        journal = opened(disk)
        journal.write(Row(Kind.INDEX, b"before", b"1"))
        file = journal._file
        assert file is not None

        def sync(file: Any = file, journal: Journal = journal, before: Any = file) -> None:
            type(file).sync(file)
            while journal._file is before:
                journal.write(Row(Kind.INDEX, b"later", bytes(150)))

        file.sync = sync  # type: ignore[method-assign]
        journal.sync()
        disk.crash(power=True)
        assert Journal(disk).value(Kind.INDEX, b"before") == b"1"


def test_of_two_syncs_at_once_each_waits_for_what_was_written_before_it() -> None:
    disk = SimDisk(Random(1), write_back=0)
    journal = opened(disk)
    journal.write(Row(Kind.INDEX, b"a", b"1"))
    file = journal._file
    assert file is not None
    calls = []

    def sync() -> None:
        calls.append(1)
        if len(calls) == 1:
            journal.sync()  # the second begins while the first one runs

    file.sync = sync  # type: ignore[method-assign]
    journal.sync()
    assert len(calls) == 2
    journal.sync()
    assert len(calls) == 2


def test_what_it_costs_in_waits_for_the_device() -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)

    def syncs_of(action: Callable[[], object]) -> int:
        before = disk.syncs
        action()
        return disk.syncs - before

    assert syncs_of(lambda: journal.write(Row(Kind.INDEX, b"a", b"1"))) == 0
    assert syncs_of(journal.sync) == 2, "the file and, once, its name"
    journal.write(Row(Kind.INDEX, b"b", b"2"), Row(Kind.INDEX, b"c", b"3"))
    assert syncs_of(journal.sync) == 1
    assert syncs_of(journal.sync) == 0
    again = Journal(disk)
    assert syncs_of(lambda: again.begin(again=False)) == 0
    assert syncs_of(lambda: opened(disk)) == 2


def test_rows_that_are_damaged_in_both_halves_are_named_after_a_clean_stop(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    journal.write(Row(Kind.INDEX, b"a", b"1"))
    [path] = disk.paths()
    before = disk.read(path) or b""
    journal.write(Row(Kind.INDEX, b"b", b"2"))
    data = bytearray(disk.read(path) or b"")
    for at in [at for at in range(len(data)) if data[at] != before[at]]:
        data[at] ^= 1
    disk.overwrite(path, bytes(data))

    again = Journal(disk)
    again.begin(again=False)

    assert dict(again.rows(Kind.INDEX)) == {b"a": b"1"}
    assert "is damaged: rows behind byte" in caplog.text


def test_after_an_error_that_does_not_pass_nothing_is_written_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk(Random(1))
    journal = opened(disk)
    journal.write(Row(Kind.INDEX, b"a", b"1"))
    with monkeypatch.context() as broken:
        broken.setattr(module, "_written", _broken)
        with pytest.raises(OSError, match="broken"):
            journal.write(Row(Kind.INDEX, b"b", b"2"))

    for ask in (journal.sync, lambda: journal.write(Row(Kind.INDEX, b"c", b"3"))):
        with pytest.raises(OSError, match="broken"):
            ask()
    assert dict(journal.rows(Kind.INDEX)) == {b"a": b"1"}


def _broken(*arguments: Any) -> Any:
    raise OSError(EIO, "broken")
