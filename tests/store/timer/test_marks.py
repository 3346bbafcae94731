"""What is taken for delivered after a start is what was delivered, however the clock is set."""

from __future__ import annotations

from random import Random

import pytest

from halfmoon.store.timer.marks import MARKS_MAX, Mark, Marks


def covers(marks: tuple[Mark, ...], due: int, offset: int) -> bool:
    """Whether a start takes a message for delivered."""
    mark = next((mark for mark in marks if offset < mark.end), None)
    return mark is not None and (due, offset) <= mark[1:]


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_parked_delivered_and_set_back_the_marks_say_what_was_delivered(seed: int) -> None:
    chance, marks, now, end = Random(seed), Marks(()), 1000, 0
    waiting: list[tuple[int, int]] = []
    begun: list[tuple[int, int]] = []
    delivered: set[tuple[int, int]] = set()
    written, bounded = marks.at(0), False
    for _ in range(400):
        now = max(0, now + chance.choice((1, 1, 1, 20, 20, -15, -200)))
        if chance.random() < 0.6:
            pair = (now + chance.randint(1, 60), end)
            end += 1
            marks.parked(*pair, begun)
            waiting = sorted([*waiting, pair])
        elif begun:
            waiting = [pair for pair in waiting if pair not in begun]
            marks.delivered(begun, waiting[0][0] if waiting else None)
            delivered.update(begun)
            begun = []
        else:
            begun = [pair for pair in waiting if pair[0] <= now][: chance.randint(1, 4)]
        if chance.random() < 0.5:
            written = marks.at(end)
        if chance.random() < 0.02 and not begun:  # a start
            marks = Marks(marks.at(end))
            marks.delivered((), waiting[0][0] if waiting else None)
        assert not [pair for pair in waiting if covers(written, *pair)], "lost"
        now_says = marks.at(end)
        assert len(now_says) <= MARKS_MAX
        bounded |= len(now_says) == MARKS_MAX
        if not bounded:  # else what was delivered may come again
            assert all(covers(now_says, *pair) for pair in delivered), "twice"


def test_at_the_bound_nothing_counts_as_delivered_that_was_not() -> None:
    marks = Marks(())
    marks.delivered([(1000, 0)], None)
    marks.parked(990, 1, ())
    for number in range(2, 3 * MARKS_MAX):
        marks.parked(900 - number, number, ())
        marks.delivered([(900 - number, number)], 990)
    found = marks.at(3 * MARKS_MAX)
    assert len(found) <= MARKS_MAX
    assert not covers(found, 990, 1)
    full = Marks([Mark(number, 900 - number, number) for number in range(MARKS_MAX)]).at(100)
    assert len(full) == MARKS_MAX, "with the one that goes on"
    assert not covers(full, 900, 0)
    assert covers(full, 899, 0)


def test_once_the_clock_has_reached_where_it_was_one_mark_says_everything() -> None:
    marks = Marks(())
    marks.delivered([(100, 0)], None)
    marks.parked(50, 1, ())
    assert marks.at(2) == (Mark(1, 100, 0), Mark(2, -1, -1))
    marks.delivered([(50, 1)], 101)
    assert marks.at(2) == (Mark(2, 100, 0),)
