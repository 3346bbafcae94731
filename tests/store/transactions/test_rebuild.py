"""When the transaction index is rebuilt from the log: files that cannot be believed, and directories of other brokers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from halfmoon.instant import instant
from halfmoon.store import Store
from halfmoon.store.check.fsck import fsck
from halfmoon.store.layout import HALF_TOPIC, OP_TOPIC
from halfmoon.store.transactions.index import Half, State, TransactionIndex
from halfmoon.testing.disk import SimDisk, Stopped
from tests.store.driving import HOST, NOW, carry_out, draft, edit_journal
from tests.store.transacting import (
    NO_WATERMARK,
    OP_TAG,
    REAL,
    REDO,
    TABLE,
    add_halves,
    assert_agrees,
    close_both,
    decided,
    disk_of,
    move_watermark,
    open_both,
    roll_back,
    save_all,
    settings,
    some_work,
    truth_of,
    zero,
)

# ---------------------------------------------------------------- rebuilt


def _remove_all(disk: SimDisk, *kinds: str) -> None:
    for kind in kinds:
        for name in disk.list(f"transaction/{kind}"):
            disk.remove(f"transaction/{kind}/{name}")


DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "neither files nor watermark": lambda disk: (_remove_all(disk, "statetable", "redolog"), edit_journal(disk, NO_WATERMARK))[1],
    "no watermark": lambda disk: edit_journal(disk, NO_WATERMARK),
    "no table": lambda disk: _remove_all(disk, "statetable"),
    "no redo log": lambda disk: _remove_all(disk, "redolog"),
    "the first table file is missing": lambda disk: disk.remove(TABLE),
    "a table file is missing": lambda disk: disk.remove(f"transaction/statetable/{2400:020d}"),
    "the last table file is missing": lambda disk: disk.remove(f"transaction/statetable/{4800:020d}"),
    "a table file of another size": lambda disk: disk.create(TABLE, 2424),
    "a redo file of another size": lambda disk: disk.create(REDO, 20),
    "zeros for the last records": lambda disk: zero(disk, f"transaction/statetable/{4800:020d}", 24 * 40, 24 * 20),
    "the last record is of another message": lambda disk: zero(disk, f"transaction/statetable/{4800:020d}", 24 * 49, 8),
    "a state that is none": lambda disk: zero(disk, f"transaction/statetable/{4800:020d}", 24 * 20 + 23, 1, b"\x05"),
    "a watermark behind the end": lambda disk: move_watermark(disk, position=10**9),
}


@pytest.mark.mission("004-25", "004-41")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_files_that_cannot_be_believed_are_rebuilt_from_the_log(damage: str, power: bool, caplog: pytest.LogCaptureFixture):
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 250)
    index.checked(index.lowest_pending(), 5, 5)
    save_all(store, index, NOW)
    expected = [index.half(at) for at in range(250)]
    disk.crash(power=power)
    DAMAGES[damage](disk)
    store, index = open_both(disk)
    assert index.rebuilt is not None
    assert "rebuilt" in caplog.text
    assert [index.half(at) for at in range(250)] == expected
    assert_agrees(index, truth_of(store))
    assert index.checks(index.lowest_pending())[0] == 1, "checks are not derived, and stay"
    some_work(store, index, 50)
    save_all(store, index, NOW)
    disk.crash(power=True)
    store, index = open_both(disk)
    assert index.rebuilt is None
    assert_agrees(index, truth_of(store))
    assert list(fsck(disk, settings())) == []


@pytest.mark.slow
@pytest.mark.mission("004-41")
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_a_rebuild_that_is_stopped_anywhere_begins_again(power: bool):
    for stop in range(0, 400, 7):
        disk = disk_of(stop)
        store, index = open_both(disk)
        some_work(store, index, 120)
        close_both(store, index)
        disk.remove(TABLE)
        disk.stop_after_writes = stop
        with suppress(Stopped):
            open_both(disk)
        disk.crash(power=power)
        store, index = open_both(disk)
        assert_agrees(index, truth_of(store))


def test_a_redo_log_that_contradicts_the_table_is_rebuilt_after_a_loss():
    disk = disk_of()
    store, index = open_both(disk)
    some_work(store, index, 50)
    save_all(store, index, NOW)
    disk.crash(power=True)
    data = disk.open(REDO).data
    for unit in range(30, 60):
        data[20 * unit + 12 : 20 * unit + 20] = (10**6).to_bytes(8, "big")
    store, index = open_both(disk)
    assert index.rebuilt is not None
    assert "a decision about 1000000" in index.rebuilt
    assert_agrees(index, truth_of(store))


# ---------------------------------------------------------------- other brokers' logs


def apache_store(disk: SimDisk, halves: int = 20) -> Store:
    """A directory with half messages and no index."""
    store = Store.open(disk, settings(), HOST, instant(NOW))
    for number in range(halves):
        store.append(HALF_TOPIC, 0, [draft(b"%d" % number, b"PGROUP\x01g\x02")], NOW)
    return store


def reopened(disk: SimDisk, store: Store, settled_below: int = 0) -> TransactionIndex:
    return TransactionIndex.open(disk, store, settings(), settled_below=settled_below, now=NOW)


def test_op_records_with_many_offsets_and_with_odd_ones_are_read():
    disk = disk_of()
    store = apache_store(disk)
    for body in (b"3,5,", b"7", b",,8,", b"x,9,-1", b"500", b"99999999999999999999"):
        store.append(OP_TOPIC, 0, [draft(body, OP_TAG, tag=100)], NOW)
    index = reopened(disk, store)
    decided = [at for at in range(20) if (half := index.half(at)) and half.state is State.ROLLED_BACK]
    assert (decided, index.ignored, index.pending_count) == ([3, 5, 7, 8, 9], 4, 15)


def test_the_first_of_contradicting_decisions_counts():
    disk = disk_of()
    store = apache_store(disk)
    places = [half.physical_offset for at in range(20) if (half := truth_of(store).halves[at])]
    store.append(OP_TOPIC, 0, [draft(b"3", OP_TAG, tag=100)], NOW)
    store.append(*REAL, [draft(sys_flag=8, prepared=places[3])], NOW)
    store.append(*REAL, [draft(sys_flag=8, prepared=places[4])], NOW)
    store.append(OP_TOPIC, 0, [draft(b"4", OP_TAG, tag=100)], NOW)
    store.append(*REAL, [draft(sys_flag=8, prepared=places[4])], NOW)
    store.append(*REAL, [draft(sys_flag=8, prepared=places[5] + 1), draft(sys_flag=8, prepared=-5)], NOW)
    store.append(OP_TOPIC, 0, [draft(b"4", OP_TAG, tag=100)], NOW)
    index = reopened(disk, store)
    states = [half.state for at in (3, 4, 5) if (half := index.half(at))]
    assert states == [State.ROLLED_BACK, State.COMMITTED, State.PREPARED]
    assert (list(index.unfinished), index.ignored) == ([], 3)


def test_what_another_broker_settled_has_no_state_unless_the_log_decides_it():
    disk = disk_of()
    store = apache_store(disk)
    store.append(OP_TOPIC, 0, [draft(b"3,12,", OP_TAG, tag=100)], NOW)
    index = reopened(disk, store, settled_below=10)
    assert [half.state for at in (0, 3, 9, 10, 12) if (half := index.half(at))] == [
        State.NONE, State.ROLLED_BACK, State.NONE, State.PREPARED, State.ROLLED_BACK,
    ]  # fmt: skip
    assert (index.lowest_pending(), index.pending_count) == (10, 9)
    with pytest.raises(ValueError, match="not pending"):
        decided(index, [(0, 1, 1, True)])
    for power in (False, True):
        save_all(store, index, NOW)
        disk.crash(power=power)
        assert list(fsck(disk, settings())) == []
        store, index = open_both(disk, settled_below=15)  # the directory has an index now: what it says counts
        assert (index.lowest_pending(), index.pending_count, index.rebuilt) == (10, 9, None)


def test_what_another_broker_settled_stays_settled_when_the_first_start_is_stopped():
    outcomes = set()
    for stop in range(60):
        disk = disk_of(stop)
        carry_out(apache_store(disk))
        disk.crash(power=False)
        disk.stop_after_writes = stop
        try:
            open_both(disk, settled_below=10)
            outcomes.add("whole")
        except Stopped:
            outcomes.add("stopped")
        disk.crash(power=False)
        _, index = open_both(disk, settled_below=10)
        assert (index.lowest_pending(), index.pending_count) == (10, 10), stop
    assert outcomes == {"whole", "stopped"}


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_what_another_broker_settled_in_a_directory_of_ours_is_pending_once(power: bool):
    for stop in [*range(0, 24, 2), None]:
        disk = disk_of(1)
        store, index = open_both(disk)
        add_halves(store, index, ["g"] * 8)
        roll_back(store, index, 2)
        close_both(store, index)
        store = Store.open(disk, settings(), HOST, instant(NOW))  # it copied four, and decided one of the copies
        store.append(HALF_TOPIC, 0, [draft(b"copy", b"PGROUP\x01g\x02")] * 4, NOW)
        store.append(OP_TOPIC, 0, [draft(b"9", OP_TAG, tag=100)], NOW)
        store.stop(instant(NOW))
        carry_out(store)
        store.close(instant(NOW))
        disk.stop_after_writes = stop
        with suppress(Stopped):
            open_both(disk, settled_below=5)
        disk.crash(power=power)
        store, index = open_both(disk, settled_below=5)
        assert [half.index for half in index.pending(0, 20)[0]] == [5, 6, 7, 8, 10, 11]
        states = [half.state for at in (0, 2, 4, 9) if (half := index.half(at))]
        assert states == [State.NONE, State.ROLLED_BACK, State.NONE, State.ROLLED_BACK]
        save_all(store, index, NOW)
        assert list(fsck(disk, settings())) == []
        disk.crash(power=power)
        if stop is None:
            disk.remove(TABLE)  # rebuilt from the log, it still knows
        assert [half.index for half in open_both(disk)[1].pending(0, 20)[0]] == [5, 6, 7, 8, 10, 11]


def test_a_half_message_whose_record_is_damaged_has_no_state():
    disk = disk_of()
    store, index = open_both(disk)
    for _ in range(6):
        add_halves(store, index, ["a"])
    half = index.half(3)
    assert half is not None
    disk.crash(power=False)
    zero(disk, "commitlog/" + "0" * 20, half.physical_offset + 88, 1, b"X")
    store, index = open_both(disk)
    assert index.half(3) == Half(3, 0, 0, 0, 0, State.NONE)
    assert ([half.index for half in index.pending(0, 10)[0]], index.end) == ([0, 1, 2, 4, 5], 6)
