"""Virtual time: order, chance and the end of a run."""

from __future__ import annotations

import pytest

from halfmoon.testing.timeline import START_MS, Timeline, TooManyEvents


def test_things_happen_in_order_of_time_and_ties_in_order_of_asking() -> None:
    timeline, done = Timeline(1), []
    timeline.after(5, lambda: done.append("late"))
    timeline.after(2, lambda: done.append("first"))
    timeline.after(2, lambda: done.append("second"))
    timeline.run(ms=10)
    assert done == ["first", "second", "late"]
    assert timeline.now == START_MS + 10


def test_what_lies_behind_the_end_of_a_run_waits_for_the_next() -> None:
    timeline, done = Timeline(1), []
    timeline.after(11, lambda: done.append(timeline.now))
    timeline.run(ms=10)
    assert done == []
    timeline.run(ms=1)
    assert done == [START_MS + 11]


def test_a_cancelled_timer_does_nothing() -> None:
    timeline, done = Timeline(1), []
    timeline.after(1, lambda: done.append(1)).cancel()
    timeline.run(ms=5)
    assert done == []


def test_run_until_stops_at_the_event_that_made_it_true() -> None:
    timeline, done = Timeline(1), []
    for ms in (1, 2, 3):
        timeline.after(ms, lambda: done.append(timeline.now))
    assert timeline.run_until(lambda: len(done) == 2, within_ms=100)
    assert timeline.now == START_MS + 2
    assert not timeline.run_until(lambda: len(done) == 9, within_ms=100)
    assert timeline.now == START_MS + 102


def test_the_same_seed_and_name_give_the_same_chance_and_others_do_not() -> None:
    first, same, other = Timeline(7), Timeline(7), Timeline(8)
    other_name = first.split("b").random()
    assert first.split("a").random() == same.split("a").random()
    assert first.split("a").random() != other_name
    assert first.split("a").random() != other.split("a").random()


def test_a_world_in_which_time_stands_still_is_found() -> None:
    timeline = Timeline(1)

    def again() -> None:
        timeline.after(0, again)

    again()
    with pytest.raises(TooManyEvents):
        timeline.run(ms=1)
