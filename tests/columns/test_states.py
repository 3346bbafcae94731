"""Entries of the transaction index of a turn, with both twins: prepared, decided, and refused."""

from __future__ import annotations

import pytest

from halfmoon.hot import ENTRY, STATE, UNIT


def test_prepared_rows_say_where_the_half_messages_are(twin):
    states, units = twin.prepared_rows(ENTRY.pack(100, 90, 0) + ENTRY.pack(190, 80, 0), 17, -5)
    assert [*STATE.iter_unpack(states)] == [(100, 90, 17, -5, 4), (190, 80, 17, -5, 4)]
    assert [*UNIT.iter_unpack(units)] == [(100, 90, -1), (190, 80, -1)]


def test_runs_join_what_is_near_inside_of_one_block(twin):
    assert twin.runs_of([9, 3, 5, 200], 1000, 100) == [(3, 10, 3), (200, 201, 1)]
    assert twin.runs_of([99, 100], 1000, 100) == [(99, 100, 1), (100, 101, 1)]


def test_decided_rows_change_states_and_count_groups(twin):
    states = b"".join(STATE.pack(100 * number, 90, 17, 7, 4) for number in range(3))
    entries = ENTRY.pack(5000, 70, 0) + ENTRY.pack(6000, 60, 0)
    changed, units, groups = twin.decided_rows(states, [(0, 3, 2)], [2, 0], entries, 1)
    assert [row[4] for row in STATE.iter_unpack(changed)] == [12, 4, 8]
    assert [*UNIT.iter_unpack(units)] == [(5000, 70, 200), (6000, 60, -2)]
    assert groups == [(7, 2)]


def test_a_half_message_cannot_be_decided_twice(twin):
    states = STATE.pack(100, 90, 17, 7, 4)
    with pytest.raises(ValueError, match="is not pending"):
        twin.decided_rows(states, [(0, 1, 2)], [0, 0], ENTRY.pack(1, 1, 0) * 2, 1)
