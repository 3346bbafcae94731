"""The state table: bytes as 3.x wrote them, who is pending, and what is never looked at."""

from __future__ import annotations

from random import Random
from struct import Struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halfmoon.store.transactions import state_table
from halfmoon.store.transactions.state_table import BLOCK, Half, State, StateTable
from halfmoon.testing.disk import SimDisk, SimFile

RECORD = Struct(">qiiii")


def table_of(per_file: int = 100, disk: SimDisk | None = None) -> StateTable:
    return StateTable(disk or SimDisk(Random(1)), per_file)


def rows(count: int, *, at: int = 0, group: int = 7) -> list[tuple[int, int, int, int]]:
    return [(1000 * (at + number), 200, 1_700_000_000, group) for number in range(count)]


def settle(table: StateTable, index: int, state: State) -> None:
    half = table.half(index)
    assert half is not None
    table.settle(half, state)


@pytest.mark.mission("004-23", "004-25")
def test_a_record_is_24_bytes_appended_when_prepared_and_changed_in_place_when_decided():
    disk = SimDisk(Random(1))
    table = table_of(disk=disk)
    table.put(0, [(5000, 321, 1_700_000_123, -5), (6000, 400, 1_700_000_124, 9), (7000, 1, 1, 1)])
    data = disk.read("transaction/statetable/00000000000000000000")
    assert len(data) == 2400
    assert RECORD.unpack(data[:24]) == (5000, 321, 1_700_000_123, -5, 4)
    settle(table, 0, State.COMMITTED)
    settle(table, 1, State.ROLLED_BACK)
    data = disk.read("transaction/statetable/00000000000000000000")
    assert [RECORD.unpack(data[at : at + 24]) for at in (0, 24, 48)] == [
        (5000, 321, 1_700_000_123, -5, 8),
        (6000, 400, 1_700_000_124, 9, 12),
        (7000, 1, 1, 1, 4),
    ]
    assert not any(data[72:])


@pytest.mark.mission("004-26")
def test_an_index_counts_records_over_files():
    disk = SimDisk(Random(1))
    table = table_of(disk=disk)
    table.put(0, rows(250))
    assert disk.list("transaction/statetable") == [f"{at:020d}" for at in (0, 2400, 4800)]
    assert table.half(201) == Half(201, 201_000, 200, 1_700_000_000, 7, State.PREPARED)
    assert (table.first, table.end, table.half(250), table.half(-1)) == (0, 250, None, None)


@pytest.mark.mission("004-28")
def test_what_is_decided_is_not_pending():
    table = table_of()
    table.put(0, rows(10))
    for index in (0, 1, 4, 9):
        settle(table, index, State.COMMITTED if index % 2 else State.ROLLED_BACK)
    found, following = table.pending(0, 100, 100)
    assert ([half.index for half in found], following) == ([2, 3, 5, 6, 7, 8], 10)
    assert (table.pending_count, table.by_group, table.lowest_pending()) == (6, {7: 6}, 2)


def test_a_look_is_bounded_and_goes_on_where_it_ended():
    table = table_of(per_file=3 * BLOCK)
    table.put(0, rows(2 * BLOCK + 10))
    assert ([half.index for half in table.pending(5, 3, BLOCK)[0]], table.pending(5, 3, BLOCK)[1]) == ([5, 6, 7], 8)
    for index in range(BLOCK // 2):
        settle(table, index, State.COMMITTED)
    assert table.pending(0, 3, 100) == ([], 100)
    found, following = table.pending(0, BLOCK, BLOCK)
    assert (found[0].index, len(found), following) == (BLOCK // 2, BLOCK // 2, BLOCK)


@pytest.mark.mission("004-35")
def test_blocks_and_files_without_pending_messages_are_never_read(monkeypatch: pytest.MonkeyPatch):
    table = table_of(per_file=100)
    table.put(0, rows(1000))
    for index in range(1000):
        if index not in (3, 950):
            settle(table, index, State.COMMITTED)
    read: list[tuple[str, int]] = []
    view = SimFile.view

    def watched(file: SimFile, at: int, size: int) -> memoryview:
        read.append((file.path[-20:], size))
        return view(file, at, size)

    monkeypatch.setattr(SimFile, "view", watched)
    found, following = table.pending(4, 10, 4096)
    assert ([half.index for half in found], following) == ([950], 1000)
    assert {path for path, _ in read} == {f"{0:020d}", f"{9 * 2400:020d}"}
    settle(table, 3, State.ROLLED_BACK)
    read.clear()
    assert [half.index for half in table.pending(0, 10, 4096)[0]] == [950]
    assert {path for path, _ in read} == {f"{9 * 2400:020d}"}


def test_a_gap_of_indexes_is_a_hole_that_nobody_finds():
    table = table_of()
    table.put(250, rows(2, at=250))
    table.put(460, rows(1, at=460))
    assert (table.first, table.end) == (200, 461)
    assert [half.index for half in table.pending(0, 10, 4096)[0]] == [250, 251, 460]
    assert table.half(300) == Half(300, 0, 0, 0, 0, State.NONE)
    assert table.half(199) is None


@pytest.mark.parametrize("row", [(-(2**63) - 1, 1, 1, 1), (1, 2**31, 1, 1), (1, 1, 2**32, 1), (1, 1, -1, 1), (1, 1, 1, 2**31)])
def test_numbers_that_do_not_fit_are_refused_and_change_nothing(row: tuple[int, int, int, int]):
    table = table_of()
    table.put(0, rows(1))
    with pytest.raises(ValueError, match="does not fit"):
        table.put(1, [*rows(1, at=1), row])
    assert (table.end, table.pending_count, table.half(1)) == (1, 1, None)


def test_an_index_below_the_end_is_refused():
    table = table_of()
    table.put(5, rows(2))
    with pytest.raises(ValueError, match="ends at 7"):
        table.put(6, rows(1))


def test_a_full_disk_is_found_out_by_making_room():
    disk = SimDisk(Random(1))
    table = table_of(disk=disk)
    table.put(0, rows(99))
    table.make_room(50)
    disk.full = True
    table.put(99, rows(50, at=99))
    with pytest.raises(OSError, match="no space"):
        table.make_room(100)
    assert (table.end, table.pending_count) == (149, 149)


def test_files_go_whose_half_messages_all_lie_below_an_offset():
    table = table_of()
    table.put(0, rows(330))
    for index in range(0, 330, 2):
        settle(table, index, State.COMMITTED)
    assert table.drop_before(99_000) == []  # the last of the first file lies there
    assert table.drop_before(99_001) == [f"transaction/statetable/{0:020d}"]
    assert (table.first, table.pending_count, table.by_group, table.lowest_pending()) == (100, 115, {7: 115}, 101)
    assert len(table.drop_before(10**9)) == 2  # never the last
    assert (table.first, table.pending_count) == (300, 15)
    assert [half.index for half in table.pending(0, 3, 4096)[0]] == [301, 303, 305]
    settle(table, 301, State.COMMITTED)
    table.put(330, rows(100, at=330))
    assert (table.pending_count, table.lowest_pending()) == (114, 303)


def test_a_file_of_holes_goes_as_well():
    table = table_of()
    table.put(0, rows(5))
    table.put(350, rows(5, at=350))
    assert len(table.drop_before(4001)) == 3
    assert (table.first, table.pending_count) == (300, 5)


@pytest.mark.mission("004-37")
def test_what_is_pending_is_counted_from_the_files_alone():
    disk = SimDisk(Random(1))
    table = table_of(disk=disk)
    for index in range(250):
        table.put(index, [(1000 * index, 200, 1_700_000_000, index % 3)])
    for index in range(0, 250, 5):
        settle(table, index, State.COMMITTED)
    again = table_of(disk=disk)
    again.segments.load()
    again.cut(250, thorough=False)
    assert again.pending_count == 0
    again.recount(0)
    assert (again.pending_count, again.by_group) == (table.pending_count, table.by_group)
    assert again.pending(0, 999, 4096) == table.pending(0, 999, 4096)


def test_a_state_that_is_none_of_the_four_is_an_error():
    table = table_of()
    table.put(0, rows(150))
    table.segments.write(24 * 120 + 20, b"\0\0\0\x05")
    with pytest.raises(state_table.StoreError, match="has no state"):
        table.recount(0)
    table.recount(121)


def test_what_is_cut_does_not_come_back():
    table = table_of()
    table.put(0, rows(250))
    table.cut(120, thorough=True)
    table.recount(0)
    assert (table.end, table.pending_count) == (120, 120)
    table.put(180, rows(1, at=180))
    assert [half.index for half in table.pending(119, 10, 4096)[0]] == [119, 180]
    table.cut(0, thorough=True)
    assert (table.end, table.first, table.pending(0, 1, 1)) == (0, 0, ([], 0))


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 60), st.sampled_from([0, 0, 0, 1, 25])),
        st.tuples(st.just("settle"), st.integers(0, 400), st.sampled_from([State.COMMITTED, State.ROLLED_BACK])),
        st.tuples(st.just("drop"), st.integers(0, 400_000), st.none()),
        st.tuples(st.just("recount"), st.none(), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(actions, st.sampled_from([16, 33, 100]), st.sampled_from([4, 16, 4096]))
def test_the_table_is_a_dictionary(steps, per_file: int, block: int):
    """Any puts with gaps, decisions, dropped files and restarts of counting: the same as a plain dictionary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_table, "BLOCK", block)
        table, model = table_of(per_file), {}
        for what, number, more in steps:
            if what == "put":
                index = table.end + more
                halves = [(1000 * (index + i), 100 + i, 50 + i, (index + i) % 3) for i in range(number)]
                table.put(index, halves)
                model |= {index + i: Half(index + i, *half, State.PREPARED) for i, half in enumerate(halves)}
            elif what == "settle" and number in model and model[number].state is State.PREPARED:
                settle(table, number, more)
                model[number] = model[number]._replace(state=more)
            elif what == "drop":
                table.drop_before(number)
                assert all(model[index].physical_offset < number for index in model if index < table.first)
                model = {index: half for index, half in model.items() if index >= table.first}
            elif what == "recount":
                table.recount(table.lowest_pending())
        known = {index: half for index in range(table.first, table.end) if (half := table.half(index)) and half.size}
        assert known == model
        pending = [half for half in model.values() if half.state is State.PREPARED]
        assert table.pending_count == len(pending)
        assert table.by_group == {g: n for g in range(3) if (n := sum(half.group_hash == g for half in pending))}
        assert table.lowest_pending() == (pending[0].index if pending else table.end)
        for look, group in ((1, None), (7, None), (4096, None), (7, 0), (4096, 1), (4096, 4)):
            found, at = [], 0
            while at < table.end:
                part, at = table.pending(at, look, look, group)
                found += part
            assert found == [half for half in pending if group in (None, half.group_hash)]


def test_room_for_a_first_half_message_of_a_high_index_makes_one_file_and_not_all_before():
    disk = SimDisk(Random(1))
    table = table_of(disk=disk)
    table.make_room(3, 2**31 + 98)
    disk.full = True
    table.put(2**31 + 98, rows(3))

    assert len(disk.list("transaction/statetable")) == 1
    assert (table.first, table.end, table.lowest_pending()) == (2**31 + 52, 2**31 + 101, 2**31 + 98)
    assert len(table._counts) < 5


def test_room_is_taken_where_the_next_half_message_will_be_when_indexes_are_left_out():
    disk = SimDisk(Random(1))
    table = table_of(per_file=10_000, disk=disk)
    table.make_room(1)
    table.put(0, rows(1))
    table.make_room(20, 5000)
    disk.full = True
    table.put(5000, rows(20, at=1))

    assert [half.index for half in table.pending(0, 100, 99_999)[0]] == [0, *range(5000, 5020)]
