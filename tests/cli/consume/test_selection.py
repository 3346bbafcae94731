"""Options that select messages: times and offsets are told apart, and what does not fit together is refused."""

from __future__ import annotations

import click
import pytest

from halfmoon.cli.consume.selection import Selection
from halfmoon.cli.shared.reading import FIRST, LAST


def test_a_small_number_ends_at_an_offset_and_a_large_one_at_a_time():
    assert Selection(until="40").wanted(by_group=False)[-2:] == (None, 40)
    assert Selection(until="1700000000000").wanted(by_group=False)[-2:] == (1_700_000_000_000, None)
    assert Selection(until="2023-11-14T22:13:20Z").wanted(by_group=False)[-2:] == (1_700_000_000_000, None)


def test_a_selection_begins_at_the_first_or_behind_the_last_message():
    assert Selection().wanted(by_group=True).since_ms == FIRST
    assert Selection(since="last").wanted(by_group=True).since_ms == LAST


@pytest.mark.parametrize("selection", [Selection(last=1), Selection(offset=0), Selection(queue=["0"]), Selection(until="1d")])
def test_a_group_begins_at_its_progress_alone(selection):
    with pytest.raises(click.BadParameter, match="leave --group out"):
        selection.wanted(by_group=True)
