"""Jobs that run again under their ids after weeks: what they wrote is known while it is there, or the run is refused."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.batches.weeks import Weeks
from simulation.history import simulate
from tests.simulation.batches.planted import by_dates, clinging, weekly, without_reserve
from tests.simulation.faulty import finds

SEEDS = (2, 6, 10, 16, 33)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_job_that_runs_again_after_weeks_doubles_nothing(seed: int) -> None:
    assert simulate(Weeks, seed).problems == []


def test_histories_of_weeks_are_worth_judging() -> None:
    verdict = simulate(Weeks, 33)
    assert verdict["batches decided already"] > 20
    assert verdict["runs refused"] > 5
    assert verdict["messages written anew"] > 5


EXPIRING = ("once", "pass", "full")
FULL = ("full", "kill")


@pytest.mark.parametrize(("kinds", "seed"), [(EXPIRING, 1), (EXPIRING, 2), (FULL, 1), (FULL, 2)])
def test_a_full_disk_has_room_again_whatever_ids_are_known_or_forgotten(kinds: tuple[str, ...], seed: int) -> None:
    verdict = simulate(Weeks, seed, steps=4, kinds=kinds)
    assert verdict.problems == [], verdict.summary()
    assert verdict["full disks that had room again"] > 1


@pytest.mark.parametrize(
    ("checker", "options", "seeds"),
    [
        ("twice:", {"make_broker": weekly}, (3,)),
        ("twice:", {"make_broker": by_dates}, (6,)),
        ("stays:", {"make_broker": clinging, "steps": 4, "kinds": EXPIRING}, (1, 2)),
        ("stays:", {"make_broker": without_reserve, "steps": 4, "kinds": FULL}, (1, 2)),
    ],
)
def test_a_planted_fault_of_weeks_is_found(checker: str, options: dict[str, Any], seeds: tuple[int, ...]) -> None:
    assert finds(Weeks, seeds, checker, **options)
