"""The transaction index while it runs: what is entered, what is refused, when it is saved, and which files go."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from halfmoon.errors import StoreNotWritable
from halfmoon.instant import instant
from halfmoon.model import java_hash
from halfmoon.runtime.files.disk import RealDisk
from halfmoon.store.transactions.index import Check, Half, State
from halfmoon.store.transactions.redo_log import RedoLog
from tests.store.driving import NOW, draft, run
from tests.store.transacting import (
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
    prepared,
    roll_back,
    save_all,
    some_work,
    truth_of,
)


def test_an_empty_store_has_an_empty_index():
    store, index = open_both(disk_of())
    assert (index.first, index.end, index.pending_count, index.lowest_pending(), index.half(0)) == (0, 0, 0, 0, None)
    assert (index.pending(0, 10), list(index.unfinished), index.checks(0)) == (([], 0), [], (0, 0, []))
    assert dict(index.pending_by_group) == {}
    close_both(store, index)


@pytest.mark.mission("004-23", "004-28")
def test_half_messages_are_pending_until_they_are_decided():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "b", "a", "中"])
    assert dict(index.pending_by_group) == {java_hash("a"): 2, java_hash("b"): 1, java_hash("中"): 1}
    commit(store, index, 0)
    roll_back(store, index, 1)
    assert [half.state for at in range(4) if (half := index.half(at))] == [
        State.COMMITTED,
        State.ROLLED_BACK,
        *2 * [State.PREPARED],
    ]
    assert ([half.index for half in index.pending(0, 10)[0]], index.lowest_pending(), index.pending_count) == ([2, 3], 2, 2)
    assert_agrees(index, truth_of(store))


@pytest.mark.mission("004-32")
def test_a_half_message_is_read_from_the_log_by_offset_and_size():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "b"], body=b"the order")
    half = index.half(1)
    assert half is not None
    record = store.record(half.physical_offset, half.size)
    assert record is not None
    assert b"the order" in bytes(record)
    assert int.from_bytes(record[20:28], "big") == half.index


@pytest.mark.mission("004-24", "004-40")
def test_the_redo_log_tells_what_happened_in_order():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "b"])
    first, second = index.half(0), index.half(1)
    assert first is not None
    assert second is not None
    place, size = add_visible(store, index, 1)
    op = add_op(store, 0)
    decided(index, [(1, place, size, True), (0, *op, False)])
    assert list(index._redo.units(0, 4)) == [
        (first.physical_offset, first.size, -1),
        (second.physical_offset, second.size, -1),
        (place, size, second.physical_offset),
        (*op, -2 - first.physical_offset),
    ]
    save_all(store, index, NOW)
    assert (index.files.watermark.last.units, index.files.watermark.last.position) == (4, store.end_offset)


@pytest.mark.parametrize("wrong", [[(0, 1, 1, True)], [(9, 1, 1, True)], [(-1, 1, 1, True)], [(1, 1, 1, True), (1, 1, 1, False)]])
def test_a_decision_that_cannot_be_is_refused_and_changes_nothing(wrong: list[tuple[int, int, int, bool]]):
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "a", "a"])
    commit(store, index, 0)
    units = index._redo.end
    with pytest.raises(ValueError, match="pending"):
        decided(index, [(2, 5, 5, True), *wrong])
    with pytest.raises(ValueError, match="not as many"):
        index.decided([2], b"", 1)
    assert (index.pending_count, index._redo.end, index.lowest_pending()) == (2, units, 1)


def test_half_messages_below_the_end_are_refused():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "a", "a"])
    with pytest.raises(ValueError, match="ends at 3"):
        prepared(index, 2, [(1, 1, 1, 1)])
    assert index.pending_count == 3


def test_a_pending_message_takes_next_to_no_memory(tmp_path: Path):
    disk = RealDisk(tmp_path)
    _, index = open_both(disk, transaction_file_records=2_000_000)
    prepared(index, 0, [(0, 100, 1, 1)])
    rows = [(100 * (number + 1), 100, 1, number % 7) for number in range(1000)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for turn in range(50):
            prepared(index, 1 + 1000 * turn, rows)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert index.pending_count == 50_001
    assert (after - before) / 50_000 < 1, "bytes a pending message"


# ---------------------------------------------------------------- checks


def test_checks_and_answers_are_remembered_while_the_message_is_there():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a", "a"])
    index.checked(1, 100, 7)
    index.answered(1, 1)
    index.checked(1, 200, 8)
    expected = (2, 2, [Check(100, 1, 7), Check(200, 0, 8)])
    assert (index.checks(1), index.checks(0)) == (expected, (0, 0, []))
    save_all(store, index, NOW)
    disk.crash(power=True)
    store, index = open_both(disk)
    assert index.checks(1) == expected
    close_both(store, index)
    disk.remove("transaction/checks/00000000000000000000")
    _, index = open_both(disk)
    assert index.checks(1) == (0, 0, [])


def test_nobody_can_be_asked_about_what_is_not_there():
    _, index = open_both(disk_of())
    with pytest.raises(ValueError, match="no half message 5"):
        index.checked(5, 1, 1)
    with pytest.raises(ValueError, match="no half message 5"):
        index.answered(5, 1)


def test_a_check_that_cannot_be_written_down_is_counted():
    disk = disk_of()
    store, index = open_both(disk)
    add_halves(store, index, ["a"])
    disk.full = True
    index.checked(0, 100, 7)
    assert (index.checks(0), index.checks_lost) == ((0, 0, []), 1)


# ---------------------------------------------------------------- saving


def test_an_idle_index_asks_for_nothing():
    store, index = open_both(disk_of())
    some_work(store, index, 20)
    now = save_all(store, index, NOW)
    assert index.due() is None
    add_halves(store, index, ["a"])
    assert index.due() is not None
    assert index.due() > now - 2000


def test_the_watermark_waits_for_the_log_and_never_passes_what_is_durable():
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 20)
    index.tick(NOW + 1000)
    for work in index.work():
        run(work, NOW + 1000)
    assert (index.files.watermark.last.position, store.durable_offset) == (0, 0)
    store.tick(instant(NOW + 2000))
    carry_out_both(store, index, NOW + 2000)
    index.tick(NOW + 2000)
    assert index.files.watermark.last.position == store.durable_offset == store.end_offset


def test_units_that_cannot_be_written_before_a_sync_stop_the_index_and_leave_the_watermark(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    store, index = open_both(disk_of())
    now = save_all(store, index, NOW)
    was = index.files.watermark.last
    add_halves(store, index, ["a"])

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(RedoLog, "write", fail)
    index.tick(now + 60_000)
    assert index.failure == "the transaction index cannot be written: [Errno 5] Input/output error"
    assert f"refused until the broker restarts: {index.failure}" in caplog.text
    assert (index.files.watermark.last, index.work()) == (was, [])
    with pytest.raises(StoreNotWritable):
        index.make_room(1, 0)


def test_the_watermark_follows_a_log_without_transactions_and_syncs_nothing_else():
    disk = disk_of()
    store, index = open_both(disk)
    store.append("t", 0, [draft()], NOW)
    save_all(store, index, NOW)
    assert index.files.watermark.last.position == store.end_offset
    assert disk.list("transaction/statetable") == disk.list("transaction/redolog") == []


def test_a_held_record_holds_the_watermark():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a", "a"])
    now = save_all(store, index, NOW)
    place, size = add_visible(store, index, 0)
    decided(index, [(0, place, size, True)])
    index.hold(place)
    roll_back(store, index, 1)
    now = save_all(store, index, now)
    assert index.files.watermark.last.position == place
    add_op(store, 0)
    index.hold(None)
    save_all(store, index, now)
    assert index.files.watermark.last.position == store.end_offset


def test_a_failed_sync_leaves_the_watermark_where_it_is_and_the_index_goes_on():
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 20)
    now = save_all(store, index, NOW)
    was = index.files.watermark.last
    some_work(store, index, 20)
    index.tick(now + 2000)
    disk.fail_syncs = 1
    for work in index.work():
        run(work, now)
    some_work(store, index, 20)
    save_all(store, index, now)
    assert (index.files.watermark.last, index.due(), index.failure) == (was, None, None)
    assert_agrees(index, truth_of(store))
    index.close(now)
    disk.crash(power=True)
    store, index = open_both(disk)
    assert_agrees(index, truth_of(store))
    assert index.rebuilt is None


# ---------------------------------------------------------------- room


def test_a_full_disk_is_found_out_before_a_message_is_stored():
    disk = disk_of()
    _, index = open_both(disk, transaction_file_records=16)
    index.make_room(10, 10)
    disk.full = True
    with pytest.raises(StoreNotWritable, match="no space"):
        index.make_room(20, 20)
    prepared(index, 0, [(number, 1, 1, 1) for number in range(10)])
    decided(index, [(number, 1, 1, True) for number in range(10)])
    assert (index.failure, index.pending_count) == (None, 0)


def test_what_did_not_get_into_the_files_stops_the_index_until_the_next_start():
    disk = disk_of()
    store, index = open_both(disk, transaction_file_records=16)
    add_halves(store, index, ["a"] * 10)
    for at in range(5):
        commit(store, index, at)
    disk.full = True
    with pytest.raises(StoreNotWritable, match="cannot be written"):
        add_halves(store, index, ["a"] * 10)
    assert index.failure is not None
    with pytest.raises(StoreNotWritable):
        decided(index, [(7, 1, 1, True)])
    assert index.due() is None
    disk.full = False
    close_both(store, index)
    store, index = open_both(disk, transaction_file_records=16)
    assert_agrees(index, truth_of(store))
    assert index.pending_count == 15


# ---------------------------------------------------------------- files that go


def test_files_go_with_the_log_and_with_what_no_start_needs():
    disk = disk_of()
    options = {"transaction_file_records": 16, "commit_log_file_bytes": 4096, "clean_interval_ms": 1000, "delete_batch_max": 2}
    store, index = open_both(disk, **options)
    for number in range(100):
        [at] = add_halves(store, index, ["a"])
        if number % 10:
            commit(store, index, at)
        else:
            index.checked(at, 1, 1)
    now = save_all(store, index, NOW)
    assert len(disk.list("transaction/statetable")) == 7
    assert disk.list("transaction/redolog")[0] == "0" * 20, "one pending message keeps all units behind it"
    disk.now_ms, disk.used_bytes = NOW, int(disk.total_bytes * 0.89)
    now = save_all(store, index, save_all(store, index, now + 3_600_000))
    assert (store.min_offset, index.pending_count) == (0, 10), "the first message is pending: its file waits"
    assert index.pin.in_the_way_below > 4096
    for at in range(0, 100, 10):
        roll_back(store, index, at)
    assert index.pin.in_the_way_below == 0
    now = save_all(store, index, now)
    disk.used_bytes, gone = 0, min(truth_of(store).halves) // 16 * 16
    save_all(store, index, save_all(store, index, now))
    assert 0 < gone < 100
    assert index.first == gone
    assert disk.list("transaction/statetable")[0] == f"{24 * gone:020d}"
    assert len(disk.list("transaction/redolog")) == 1
    disk.crash(power=False)
    store, index = open_both(disk, **options)
    assert (index.rebuilt, index.pending_count, index.first) == (None, 0, gone)


def test_an_index_follows_a_queue_that_leaves_offsets_out():
    store, index = open_both(disk_of())
    add_halves(store, index, ["a"])
    prepared(index, 5000, [(10**6, 100, 1, 1)])
    assert index.half(4999) == Half(4999, 0, 0, 0, 0, State.NONE)
    assert [half.index for half in index.pending(0, 10)[0]] == [0, 5000]
