"""`fsck` proves the transaction index equal to what the log says, and finds every kind of difference."""

from __future__ import annotations

from random import Random
from struct import Struct

import pytest

from halfmoon.store.check.fsck import Problem, fsck
from halfmoon.store.transactions.index import State
from halfmoon.testing.disk import SimDisk
from tests.store.driving import NOW, edit_journal
from tests.store.transacting import (
    NO_WATERMARK,
    close_both,
    commit,
    move_watermark,
    open_both,
    roll_back,
    save_all,
    settings,
    some_work,
)

NAME = "0" * 20
TABLE, REDO = f"transaction/statetable/{NAME}", f"transaction/redolog/{NAME}"
STATE_AT = 20
UNIT = Struct(">qiq")


@pytest.fixture
def disk() -> SimDisk:
    """A stopped store with 90 half messages, about 30 of each state."""
    disk = SimDisk(Random(1))
    store, index = open_both(disk, transaction_file_records=200)
    some_work(store, index, 90)
    close_both(store, index)
    return disk


def problems(disk: SimDisk) -> list[Problem]:
    before = {path: bytes(file.data) for path, file in disk._files.items()}
    found = list(fsck(disk, settings()))
    assert {path: bytes(file.data) for path, file in disk._files.items()} == before, "fsck wrote"
    return found


def first_with(disk: SimDisk, state: State) -> int:
    data = disk.open(TABLE).data
    return next(at for at in range(90) if data[24 * at + 23] == state)


@pytest.mark.mission("004-25")
def test_a_sound_index_has_no_findings(disk: SimDisk):
    assert problems(disk) == []


@pytest.mark.parametrize("was", [State.PREPARED, State.COMMITTED, State.ROLLED_BACK])
@pytest.mark.parametrize("now", list(State))
def test_a_wrong_state_is_found(disk: SimDisk, was: State, now: State):
    at = first_with(disk, was)
    disk.open(TABLE).data[24 * at + 23] = now
    expected = [(f"transaction/statetable, record {at}", f"is {now.name}, the log says {was.name}")] if was is not now else []
    assert [(problem.place, problem.reason) for problem in problems(disk)] == expected


@pytest.mark.parametrize("at", [0, 8, 12, 16])
def test_a_wrong_record_is_found(disk: SimDisk, at: int):
    disk.open(TABLE).data[24 * 50 + at + 3] ^= 1
    assert [(problem.place, problem.what) for problem in problems(disk)] == [("transaction/statetable, record 50", "record")]


def test_a_record_of_no_half_message_is_found(disk: SimDisk):
    move_watermark(disk, records=91)
    disk.open(TABLE).data[24 * 90 : 24 * 91] = disk.open(TABLE).data[:24]
    [problem] = problems(disk)
    assert problem.place == "transaction/statetable, record 90"
    assert "no half message of its index" in problem.reason


def test_a_wrong_unit_is_found(disk: SimDisk):
    data = disk.open(REDO).data
    unit = next(number for number in range(100, 150) if UNIT.unpack_from(data, 20 * number)[2] >= 0)
    place, size, tag = UNIT.unpack_from(data, 20 * unit)
    for changed in ((place, size, -2 - tag), (0, size, tag), (place, size, tag + 1), (place, 0, tag), (1, size, -1)):
        data[20 * unit : 20 * unit + 20] = UNIT.pack(*changed)
        assert f"transaction/redolog, unit {unit}" in [problem.place for problem in problems(disk)], changed
    data[20 * unit : 20 * unit + 20] = UNIT.pack(place, size, tag)
    assert problems(disk) == []


def test_a_missing_unit_is_found(disk: SimDisk):
    data = disk.open(REDO).data
    unit = next(number for number in range(100, 150) if UNIT.unpack_from(data, 20 * number)[2] >= 0)
    data[20 * unit : 20 * unit + 20] = data[20 * (unit - 1) : 20 * unit]  # the one before, twice
    [problem] = problems(disk)
    assert (problem.what, problem.reason) == ("unit", "is missing")


@pytest.mark.parametrize("path", [TABLE, REDO])
def test_a_missing_file_is_found(disk: SimDisk, path: str):
    disk.remove(path)
    assert [(problem.place, problem.what) for problem in problems(disk)] == [(path.rpartition("/")[0], "files")]


def test_a_watermark_behind_the_end_is_found(disk: SimDisk):
    move_watermark(disk, position=10**9)
    assert [problem.place for problem in problems(disk)] == ["transaction/watermark"]


def test_a_directory_without_an_index_has_no_findings(disk: SimDisk):
    for path in (TABLE, REDO):
        disk.remove(path)
    edit_journal(disk, NO_WATERMARK)
    assert problems(disk) == []


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_what_the_watermark_has_not_reached_is_no_finding(power: bool):
    for seed in range(10):
        disk = SimDisk(Random(seed))
        store, index = open_both(disk)
        some_work(store, index, 40)
        save_all(store, index, NOW)
        some_work(store, index, 40, seed=2)
        for half in index.pending(0, 10)[0]:
            (commit if half.index % 2 else roll_back)(store, index, half.index)
        disk.crash(power=power)
        found = [problem for problem in problems(disk) if problem.place.startswith("transaction")]
        assert found == [], seed
