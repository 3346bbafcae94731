"""Transactions that stay open for as long as a broker waits: expired in time, never before, and decided once, over restarts."""

from __future__ import annotations

from typing import Any

import pytest

from halfmoon.broker.broker import Broker
from simulation.history import simulate
from simulation.transactions.days import Days
from tests.simulation.transactions.planted_late import counting

SEEDS = (1, 2)


def beginning_anew(*arguments: Any) -> Any:
    """A broker that lets the time of what is open begin anew at each start."""
    broker = Broker(*arguments)
    uptime, started_ms = broker.transactions.checks._uptime, arguments[-1].date
    age_ms = uptime.age_ms
    uptime.age_ms = lambda stored_ms, now: age_ms(max(stored_ms, started_ms), now)  # type: ignore[method-assign]
    return broker


@pytest.mark.parametrize("seed", SEEDS)
def test_an_open_transaction_has_all_its_time_over_kills_and_is_decided_once_even_afterwards(seed: int) -> None:
    verdict = simulate(Days, seed)
    assert verdict.problems == [], verdict.summary()
    assert verdict["expired"] == 3
    assert verdict["checks"] > 4 * 100


@pytest.mark.parametrize(("planted", "checker", "seed"), [(counting, "early", 1), (beginning_anew, "late", 2)])
def test_a_broker_that_counts_open_answers_or_begins_anew_is_found(planted: Any, checker: str, seed: int) -> None:
    problems = simulate(Days, seed, make_broker=planted).problems
    assert any(problem.startswith(checker) for problem in problems), problems
