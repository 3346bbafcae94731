"""A group whose members know different topics: nothing expires, and the one that knows is asked in its first round."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.transactions.mixed import CHECKS_MAX, HALVES, MEMBERS, simulate_mixed
from tests.simulation.faulty import faulty_broker


@faulty_broker
def counting(broker: Any) -> None:
    """A broker that asks the next member, and counts the check all the same."""
    index = broker.transactions.index
    answered = index.answered
    index.answered = lambda number, answer, back=0, pardons=0: answered(number, answer, back=back)  # type: ignore[method-assign]


@faulty_broker
def content(broker: Any) -> None:
    """A broker that asks nobody else before the next round."""
    broker.transactions.decisions.answers.on_not_mine = lambda index: None


@pytest.mark.parametrize("seed", range(1, 7))
def test_in_a_mixed_group_nothing_expires_and_the_one_that_knows_is_found(seed: int) -> None:
    verdict = simulate_mixed(seed)
    assert verdict.problems == [], verdict.summary()
    assert verdict.halves >= HALVES
    assert verdict.asked > HALVES * CHECKS_MAX * (MEMBERS - 1)


@pytest.mark.parametrize(("planted", "checker"), [(counting, "expired"), (content, "late")])
def test_a_broker_that_counts_such_answers_or_does_not_ask_on_is_found(planted: Any, checker: str) -> None:
    problems = simulate_mixed(1, kills=0, make_broker=planted).problems
    assert any(problem.startswith(checker) for problem in problems), problems
