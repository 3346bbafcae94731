"""The rules of batch transactions are needed: a broker without one of them is found out by the checkers.

A fault needs its chance: each test runs seeds until the checkers have found it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from simulation.batches.history import simulate_batches
from tests.simulation.batches.planted import (
    Unfinished,
    changeable,
    counting_from_the_piece,
    deciding,
    forgetful,
    forgiving,
    guessing,
    hasty,
    parking_again,
    parking_for_the_first_queue,
    parking_without_identity,
    plain,
    presuming,
    reopening,
    repeating,
    showing,
    showing_after_a_start,
    trusting,
)
from tests.simulation.finding import some_seed_finds

found = partial(some_seed_finds, simulate_batches, range(40), sends=())
"""Of plain messages, when ``sends`` is not given."""


def found_by_each(*checkers: str, seeds: range = range(1, 4), **planted: Any) -> bool:
    """Whether each of a few seeds' histories, of plain messages, makes one of the checkers speak."""
    verdicts = [simulate_batches(seed, **{"sends": (), "queries": 2, **planted}) for seed in seeds]
    return all(any(problem.startswith(checkers) for problem in verdict.problems) for verdict in verdicts)


def test_without_rule_1_brokers_publish_parts_of_different_decisions() -> None:
    assert found("lost", "twice", make_broker=changeable, kinds=("second", "driver"))


def test_without_rule_2_a_crash_while_a_batch_is_published_repeats_messages() -> None:
    assert found("twice", make_broker=repeating, kinds=("torn", "kill"))


def test_without_rule_3_messages_that_are_not_there_are_voted_for() -> None:
    assert found("lost", make_broker=trusting, kinds=("power",), flush="async")


def test_without_rule_4_an_attempt_is_decided_that_was_aborted() -> None:
    assert found("lost", make_broker=forgiving, kinds=(), steps=20, target=15, broker={"batch_timeout_ms": 1000})


def test_without_rule_5_a_batch_that_was_published_in_part_stays_so() -> None:
    assert found("lost", make_broker=Unfinished, kinds=("torn", "kill"), messages_a_turn=2)


def test_without_rule_6_what_comes_after_the_decision_is_published_too() -> None:
    assert found("twice", make_broker=reopening, kinds=("driver", "second"))


def test_without_rule_7_what_is_decided_is_dropped_when_its_time_is_over() -> None:
    assert found("lost", make_broker=presuming, kinds=("driver",), broker={"batch_timeout_ms": 1000})


def test_without_rule_8_a_participant_is_told_that_a_decided_attempt_is_none() -> None:
    assert found("lost", make_broker=forgetful, kinds=("driver", "second"), broker={"batch_timeout_ms": 1000})


def test_a_coordinator_that_is_guessed_from_the_brokers_of_today_is_found() -> None:
    joined: dict[str, Any] = {"kinds": ("join",), "steps": 4, "brokers": 1, "target": 15}

    assert found_by_each("hangs", "twice", coordinate=guessing, end_ms=1000, **joined)  # a query that hangs asks on and on
    assert simulate_batches(1, **joined).problems == []


def test_a_broker_that_decides_what_another_one_coordinates_is_found() -> None:
    assert found_by_each("decides", make_broker=deciding, kinds=("stray",), brokers=2)


def test_a_batch_that_is_published_where_everybody_looks_on_is_found() -> None:
    assert found_by_each("part", make_broker=showing, kinds=(), messages_a_turn=1)


def test_a_batch_that_a_start_shows_before_it_is_whole_is_found() -> None:
    assert found_by_each("part", make_broker=showing_after_a_start, kinds=("midway",), messages_a_turn=1)


@pytest.mark.parametrize("sends", [("level",), ("time",)])
def test_a_delayed_message_that_is_published_at_once_is_found(sends: tuple[str, ...]) -> None:
    assert found("early", make_broker=hasty, kinds=(), sends=sends)


def test_a_delay_that_begins_before_the_batch_is_published_is_found() -> None:
    assert found("early", make_broker=counting_from_the_piece, kinds=(), sends=("level",))


@pytest.mark.parametrize("sends", [("level",), ("time",)])
@pytest.mark.parametrize("broker", [parking_again, parking_without_identity])
def test_a_delayed_message_that_a_crash_while_its_batch_is_published_repeats_is_found(broker: Any, sends: tuple[str, ...]) -> None:
    assert found("twice", make_broker=broker, kinds=("torn", "kill"), sends=sends)


def test_a_delayed_message_that_comes_elsewhere_is_found() -> None:
    assert found("place", make_broker=parking_for_the_first_queue, kinds=(), sends=("level", "time"))


def test_a_compressed_message_that_does_not_say_so_is_found() -> None:
    assert found("body", make_broker=plain, kinds=(), sends=("compressed",))


@pytest.mark.parametrize("kinds", [("second", "driver"), ("torn", "kill"), ("power",), ("stray",)])
def test_with_all_rules_the_same_seeds_hold(kinds: tuple[str, ...]) -> None:
    for seed in range(5):
        assert simulate_batches(seed, kinds=kinds).problems == []
