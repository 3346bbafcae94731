"""States that the redo log restores after a loss: decisions without a synced unit are taken back."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.errors import StoreError
from halfmoon.store.transactions.redispatch import restore_states
from halfmoon.store.transactions.redo_log import PREPARED_TAG, RedoLog, decided_tag
from halfmoon.store.transactions.state_table import State, StateTable
from halfmoon.store.transactions.watermark import Watermark
from halfmoon.testing.disk import SimDisk


def table_and_redo() -> tuple[StateTable, RedoLog]:
    """Ten half messages at 100, 200, …, of which the table says that 3 and 4 are decided."""
    disk = SimDisk(Random(1))
    table, redo = StateTable(disk, 100), RedoLog(disk, 100)
    table.put(0, [(100 * (number + 1), 90, 1, 7) for number in range(10)])
    redo.append([(100 * (number + 1), 90, PREPARED_TAG) for number in range(10)])
    for index, state in ((3, State.COMMITTED), (4, State.ROLLED_BACK)):
        half = table.half(index)
        assert half is not None
        table.settle(half, state)
    return table, redo


def states(table: StateTable) -> list[State]:
    return [half.state for index in range(10) if (half := table.half(index)) is not None]


def test_only_decisions_with_a_unit_stay_and_the_first_counts():
    table, redo = table_and_redo()
    redo.append([(5000, 80, decided_tag(400, committed=True)), (5100, 80, decided_tag(400, committed=False))])
    redo.append([(5200, 80, decided_tag(900, committed=False))])
    restore_states(table, redo, Watermark(position=6000, records=10, units=13))
    expected = [State.PREPARED] * 10
    expected[3], expected[8] = State.COMMITTED, State.ROLLED_BACK
    assert states(table) == expected


def test_a_unit_about_no_half_message_or_missing_units_cannot_be_believed():
    table, redo = table_and_redo()
    redo.append([(5000, 80, decided_tag(450, committed=True))])
    with pytest.raises(StoreError, match="a decision about 450"):
        restore_states(table, redo, Watermark(position=6000, records=10, units=11))
