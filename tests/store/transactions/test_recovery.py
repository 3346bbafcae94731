"""What a start of the transaction index believes, what it reads again, and what it rebuilds."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from halfmoon.instant import instant
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import HALF_TOPIC, UNIT_BYTES
from halfmoon.store.transactions import recovery
from halfmoon.store.transactions.index import State
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import HOST, NOW, carry_out, draft, edit_journal, run
from tests.store.transacting import (
    NO_WATERMARK,
    REAL,
    TABLE,
    add_halves,
    add_op,
    add_visible,
    assert_agrees,
    carry_out_both,
    close_both,
    commit,
    decided,
    disk_of,
    open_both,
    roll_back,
    save_all,
    settings,
    some_work,
    truth_of,
    zero,
)
from tests.store.transactions.test_copied import Master, Slave, copy_all


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From where each start reads the log."""
    starts: list[int] = []
    records = recovery.transaction_records

    def watched(store: Store, start: int):
        starts.append(start)
        return records(store, start)

    monkeypatch.setattr(recovery, "transaction_records", watched)
    return starts


def lost_decisions(seed: int) -> SimDisk:
    """A disk after a loss of power that left 30 decisions in the table whose records are not in the log."""
    disk = disk_of(seed)
    store, index = open_both(disk)
    add_halves(store, index, ["a"] * 50)
    save_all(store, index, NOW)
    for at in range(30):
        commit(store, index, at)
    disk.open(TABLE).sync()  # the kernel writes the states back, and not the log
    disk.crash(power=True)
    return disk


# ---------------------------------------------------------------- believed


@pytest.mark.mission("004-37")
def test_after_a_clean_stop_the_files_are_believed_and_the_log_is_not_read(walked: list[int]):
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 250)
    expected = [index.half(at) for at in range(250)]
    close_both(store, index)
    walked.clear()
    store, index = open_both(disk)
    assert walked == [store.end_offset]
    assert [index.half(at) for at in range(250)] == expected
    assert_agrees(index, truth_of(store))


@pytest.mark.mission("004-36")
@pytest.mark.skipif(sys.platform != "linux", reason="the mappings of a process are read where Linux lists them")
def test_a_load_maps_the_files(tmp_path: Path):
    store, index = open_both(RealDisk(tmp_path / "store"))
    some_work(store, index, 30)
    close_both(store, index)
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy)
    assert str(copy) not in Path("/proc/self/maps").read_text()
    store, index = open_both(RealDisk(copy))
    mapped = Path("/proc/self/maps").read_text()
    assert str(copy / "transaction" / "statetable") in mapped
    assert_agrees(index, truth_of(store))
    close_both(store, index)


@pytest.mark.mission("004-38")
def test_after_a_kill_the_log_is_read_from_the_watermark(walked: list[int]):
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 100)
    save_all(store, index, NOW)
    saved = store.end_offset
    some_work(store, index, 100, seed=2)
    commit(store, index, index.lowest_pending())
    expected = [index.half(at) for at in range(200)]
    disk.crash(power=False)
    walked.clear()
    store, index = open_both(disk)
    assert walked == [saved]
    assert 0 < saved < store.end_offset
    assert [index.half(at) for at in range(200)] == expected
    assert (index.rebuilt, index.ignored) == (None, 0)
    units = list(index._redo.units(0, index._redo.end))
    assert len(units) == len(set(units)) == 200 + 200 - index.pending_count, "what was entered again is there once"


@pytest.mark.mission("004-39", "004-40")
def test_after_a_power_loss_no_state_is_believed_that_the_synced_redo_log_does_not_tell(walked: list[int]):
    taken_back = 0
    for seed in range(30):
        disk = disk_of(seed)
        store, index = open_both(disk)
        add_halves(store, index, ["a"] * 50)
        roll_back(store, index, 3)
        save_all(store, index, NOW)
        saved = store.end_offset
        for at in range(10, 30):
            commit(store, index, at)
        disk.open(TABLE).sync()  # the kernel writes the states back, and not the log
        disk.crash(power=True)
        walked.clear()
        store, index = open_both(disk)
        assert walked == [saved]
        truth = truth_of(store)
        assert_agrees(index, truth)
        assert truth.halves[3].state is State.ROLLED_BACK
        taken_back += sum(truth.halves[at].state is State.PREPARED for at in range(10, 30))
    assert taken_back > 0, "no seed lost a decision whose state had reached the device"


@pytest.mark.mission("004-39")
def test_states_are_rebuilt_from_the_redo_log_alone():
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 300)
    save_all(store, index, NOW)
    expected = [index.half(at) for at in range(300)]
    disk.crash(power=True)
    lowest = next(half.index for half in expected if half is not None and half.state is State.PREPARED)
    data = disk.open(f"transaction/statetable/{2400:020d}").data
    for at in range(max(100, lowest), 200):
        if data[24 * (at - 100) + 23] == 8:
            data[24 * (at - 100) + 23] = 12  # what a page that came back from an older life may say
    store, index = open_both(disk)
    assert index.rebuilt is None
    assert [index.half(at) for at in range(300)] == expected


def test_a_lost_start_that_is_stopped_is_as_lost_as_before():
    for stop in range(0, 60, 3):
        disk = lost_decisions(stop)
        disk.stop_after_writes = stop
        with suppress(Stopped):
            open_both(disk)
        disk.crash(power=False)
        store, index = open_both(disk)
        assert_agrees(index, truth_of(store))


def test_a_start_of_the_store_alone_does_not_hide_a_loss():
    for seed in range(20):
        disk = lost_decisions(seed)
        store = Store.open(disk, settings(), HOST, instant(NOW))
        carry_out(store)
        disk.crash(power=False)
        store, index = open_both(disk)
        assert_agrees(index, truth_of(store))


def test_an_index_closed_before_the_log_is_durable_is_not_believed_beyond_it():
    lost = 0
    for seed in range(20):
        disk = disk_of(seed)
        store, index = open_both(disk)
        add_halves(store, index, ["a"] * 20)
        save_all(store, index, NOW)
        for at in range(10):
            roll_back(store, index, at)
        index.close(NOW)
        disk.crash(power=True)
        store, index = open_both(disk)
        assert_agrees(index, truth_of(store))
        lost += index.pending_count == 20
    assert lost > 0


def test_files_whose_names_a_killed_process_did_not_sync_are_synced_by_the_next():
    for seed in range(20):
        disk = disk_of(seed)
        store, index = open_both(disk)
        add_halves(store, index, ["a"] * 100)  # a whole file
        save_all(store, index, NOW)
        add_halves(store, index, ["a"])
        disk.crash(power=False)
        store, index = open_both(disk)
        save_all(store, index, NOW)
        disk.crash(power=True)
        store, index = open_both(disk)
        assert (index.rebuilt, index.end) == (None, 101)


def test_states_that_a_failed_sync_dropped_are_written_again():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"] * 3)
    now = save_all(store, index, NOW)
    for at in range(3):
        roll_back(store, index, at)
    index.tick(now + 1000)
    disk.fail_syncs = 1
    for work in index.work():
        run(work, now)
    disk.fail_syncs = 0
    disk.crash(power=False)
    store, index = open_both(disk)
    save_all(store, index, now)
    disk.crash(power=True)
    store, index = open_both(disk)
    assert_agrees(index, truth_of(store))
    assert index.pending_count == 0


def test_a_redo_log_whose_last_file_was_let_go_is_believed():
    disk = disk_of()
    store, index = open_both(disk, transaction_file_records=16)
    for at in add_halves(store, index, ["a"] * 8):
        roll_back(store, index, at)
    index.make_room(1, 1)  # behind the last unit of the first file
    save_all(store, index, save_all(store, index, NOW))
    assert disk.list("transaction/redolog") == [f"{16 * 20:020d}"]
    assert list(fsck(disk, settings(transaction_file_records=16))) == []
    disk.crash(power=False)
    store, index = open_both(disk, transaction_file_records=16)
    assert (index.rebuilt, index.end, index.pending_count) == (None, 8, 0)
    add_halves(store, index, ["b"])
    save_all(store, index, NOW)
    disk.crash(power=True)
    assert open_both(disk, transaction_file_records=16)[1].pending_count == 1


# ---------------------------------------------------------------- unfinished


def test_a_commit_without_an_op_record_is_found_again_until_it_has_one():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"] * 4)
    now = save_all(store, index, NOW)
    for at in (1, 2):
        place, size = add_visible(store, index, at)
        decided(index, [(at, place, size, True)])
    for power in (False, True, False):
        carry_out_both(store, index)
        store.tick(instant(now + 5000))
        carry_out_both(store, index)
        disk.crash(power=power)
        store, index = open_both(disk)
        assert list(index.unfinished) == [1, 2]
        assert [half.index for half in index.pending(0, 10)[0]] == [0, 3]
        now = save_all(store, index, now)
    for at in index.unfinished:
        add_op(store, at)
    index.hold(None)
    save_all(store, index, now)
    assert index.files.watermark.last.position == store.end_offset
    disk.crash(power=False)
    assert open_both(disk)[1].unfinished == {}


def test_an_unfinished_commit_survives_a_clean_stop():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"] * 4)
    place, size = add_visible(store, index, 1)
    decided(index, [(1, place, size, True)])
    index.hold(place)
    roll_back(store, index, 0)
    close_both(store, index)
    store, index = open_both(disk)
    assert (list(index.unfinished), index.rebuilt) == ([1], None)
    assert_agrees(index, truth_of(store))
    assert list(fsck(disk, settings())) == []


def test_a_decision_does_not_count_when_its_visible_record_was_cut_short():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"])
    half = index.half(0)
    assert half is not None
    store.append(*REAL, [draft(b"x", b"K\x01" + b"v" * 50 + b"\x02", sys_flag=8, prepared=half.physical_offset)], NOW)
    end = store.end_offset
    store.append(*REAL, [draft(b"behind")], NOW)
    disk.crash(power=False)
    zero(disk, "commitlog/" + "0" * 20, end - 20, 20)
    store, index = open_both(disk)
    assert [error.physical_offset for error in store.recovered.damaged] == [half.physical_offset + half.size]
    assert (index.pending_count, list(index.unfinished)) == (1, [])


def test_a_commit_counts_when_its_topic_was_deleted_since():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"])
    commit(store, index, 0)
    store.delete_topic(REAL[0], NOW)
    carry_out_both(store, index)
    disk.crash(power=False)
    edit_journal(disk, NO_WATERMARK)
    store, index = open_both(disk)
    half = index.half(0)
    assert half is not None
    assert (half.state, list(index.unfinished)) == (State.COMMITTED, [])


def test_states_that_were_taken_before_a_kill_stay_taken_after_a_loss_of_power() -> None:
    for seed in range(5):
        master, slave = Master(Random(1), disk_of()), Slave(SimDisk(Random(seed), write_back=0), transaction_file_records=16)
        master.append(HALF_TOPIC, 0, *[draft(b"half", b"PGROUP\x01g\x02")] * 20)
        copy_all(master, slave)
        slave.save()
        slave.index.settle_below(16)
        while slave.index.lowest_pending() < 16:  # the last sync of these states does not happen
            carry_out_both(slave.store, slave.index, slave.now)
            slave.now += 2000
            slave.transactions.tick(instant(slave.now).steady)
        slave.disk.crash(power=False)
        slave.open()
        slave.save()
        slave.disk.crash(power=True)
        slave.open()
        assert slave.index.files.watermark.last.settled == 16
        master.ops(list(range(16)))
        copy_all(master, slave)
        slave.check()
        assert (slave.index.lowest_pending(), slave.index.pending_count) == (16, 4)


def test_a_start_behind_a_full_redo_log_leaves_files_that_the_next_start_believes() -> None:
    master, slave = Master(Random(1), disk_of()), Slave(disk_of(), transaction_file_records=16)
    master.append(HALF_TOPIC, 0, *[draft(b"half", b"PGROUP\x01g\x02")] * 8)
    master.ops(list(range(8)))
    copy_all(master, slave)
    slave.index.make_room(1, 0)
    slave.save()
    slave.save()
    assert slave.index.files.redo.segments.first == slave.index.files.redo.end * UNIT_BYTES
    for _ in range(3):
        slave.disk.crash(power=False)
        slave.open()
        assert slave.index.rebuilt is None
