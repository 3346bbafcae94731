"""Jobs that run again under their ids after weeks: what they wrote is known while it is there, or the run is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from simulation.batches.weeks import simulate_weeks
from tests.simulation.batches.planted import by_dates, clinging, weekly, without_reserve
from tests.simulation.finding import some_seed_finds

SEEDS = (2, 6, 10, 16, 33)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_runs_again_after_weeks_doubles_nothing(seed: int) -> None:
    verdict = simulate_weeks(seed)
    assert verdict.problems == [], verdict.summary()


def test_histories_of_weeks_are_worth_judging() -> None:
    verdict = simulate_weeks(33)
    assert verdict.already > 20
    assert verdict.refused > 5
    assert verdict.anew > 5


@pytest.mark.parametrize(("planted", "seed"), [(weekly, 3), (by_dates, 6)])
def test_a_broker_that_forgets_an_id_whose_messages_are_there_is_found(planted: Any, seed: int) -> None:
    problems = simulate_weeks(seed, make_broker=planted).problems
    assert any(problem.startswith("twice:") for problem in problems), problems


EXPIRING = ("once", "pass", "full")
FULL = ("full", "kill")


@pytest.mark.parametrize(("kinds", "seed"), [(EXPIRING, 1), (EXPIRING, 2), (FULL, 1), (FULL, 2)])
def test_a_full_disk_has_room_again_whatever_ids_are_known_or_forgotten(kinds: tuple[str, ...], seed: int) -> None:
    verdict = simulate_weeks(seed, weeks=4, kinds=kinds)
    assert verdict.problems == [], verdict.summary()
    assert verdict.freed > 1


@pytest.mark.parametrize(("planted", "kinds"), [(clinging, EXPIRING), (without_reserve, FULL)])
def test_a_broker_whose_disk_stays_full_is_found(planted: Any, kinds: tuple[str, ...]) -> None:
    assert some_seed_finds(partial(simulate_weeks, weeks=4, kinds=kinds, make_broker=planted), (1, 2), "stays:")
